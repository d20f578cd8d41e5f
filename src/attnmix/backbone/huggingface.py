"""Image classifiers of the transformers library: a backbone, its last hidden state, a linear classifier on it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.attention.flow import Flow
from attnmix.backbone.layout import BIAS_IS_FIXED, NO_FUSED_ATTENTION, Layout, Size, check_same, pair, scaled
from attnmix.backbone.pyramid import Stage, pyramid_flow, total_stride
from attnmix.backbone.sequence import sequence_flow
from attnmix.backbone.swin import Window, swin_flow

OTHER_SIZE = "set image_size in its configuration for another"


class HuggingFaceLayout(Layout):
    """What they have in common; the class token comes first and `classifier` reads it."""

    has_class_row = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        problem = model.config.problem_type
        if problem not in (None, "single_label_classification"):
            raise ValueError(
                f'problem_type is "{problem}" in the configuration of {self.name}, but mixed labels are '
                "distributions over classes: want single_label_classification"
            )
        self.config = model.config
        self.backbone = getattr(model, model.base_model_prefix)
        self.num_prefix_tokens = 1
        self.num_classes = model.config.num_labels
        self.embed_dim = self._width()

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Any]:
        """The last hidden state, and the classifier on what it reads of it."""
        features = self.backbone(images).last_hidden_state
        return features, self.head(features)

    def head(self, sequence: Tensor) -> Tensor:
        """Logits `[B, C]` of a final sequence `[B, M, D]`, as the model's own forward has them."""
        return self.model.classifier(sequence[:, 0])

    def logits(self, output: Any) -> Tensor:
        """Outputs of the whole model are records."""
        return output if isinstance(output, Tensor) else output.logits

    def classify(self, tokens: Tensor) -> Tensor:
        """From a sequence."""
        return self.head(tokens[:, None].expand(-1, self.num_prefix_tokens + 1, -1))

    @property
    def example_size(self) -> Size:
        """The one it was made for."""
        return pair(self.config.image_size)

    def _width(self) -> int:
        return self.config.hidden_size

    def _is_fused(self) -> bool:
        return self.config._attn_implementation == "sdpa"


class HuggingFaceViTLayout(HuggingFaceLayout):
    """ViT, and DeiT without its teacher (whose distillation token is there, but read by nobody)."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.num_prefix_tokens = 2 if hasattr(self.backbone.embeddings, "distillation_token") else 1

    @property
    def patch_size(self) -> Size:
        """Of the patches."""
        return pair(self.config.patch_size)

    def check_size(self, image_size: Sequence[int]) -> None:
        """Positions are made for one image size."""
        check_same(image_size, self.example_size, self.name, OTHER_SIZE)

    @property
    def blocks(self) -> list[nn.Module]:
        """All layers."""
        return list(self.backbone.layers)

    def flow(self, image_size: Sequence[int]) -> Flow:
        """One sequence."""
        grid = self.grid_size(image_size)
        return tuple(sequence_flow(grid, len(self.blocks), prefix=self.num_prefix_tokens, class_token=True))

    def obstacle(self, number: int) -> str | None:
        """None where attention is fused."""
        return None if self._is_fused() else NO_FUSED_ATTENTION


class HuggingFaceTeacherLayout(HuggingFaceViTLayout):
    """DeiT with its teacher: the mean of two heads, on class and distillation token."""

    def head(self, sequence: Tensor) -> Tensor:
        """The mean of both heads."""
        own, distilled = self.model.cls_classifier, self.model.distillation_classifier
        return (own(sequence[:, 0]) + distilled(sequence[:, 1])) / 2

    def readout(self, values: Tensor) -> Tensor:
        """The mean of both tokens."""
        return values[:, :2].mean(dim=1)


class HuggingFaceDinov2Layout(HuggingFaceViTLayout):
    """DINOv2: the classifier reads the class token beside the mean image token; positions are interpolated."""

    def head(self, sequence: Tensor) -> Tensor:
        """On both at once."""
        return self.model.classifier(torch.cat((sequence[:, 0], sequence[:, 1:].mean(dim=1)), dim=1))

    def check_size(self, image_size: Sequence[int]) -> None:
        """Positions are interpolated."""

    @property
    def blocks(self) -> list[nn.Module]:
        """All layers."""
        return list(self.backbone.encoder.layer)

    def readout(self, values: Tensor) -> Tensor:
        """Half of each."""
        return (values[:, 0] + values[:, 1:].mean(dim=1)) / 2


class HuggingFaceSwinLayout(HuggingFaceLayout):
    """Swin: the mean of the last stage's tokens."""

    has_class_row = False

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.num_prefix_tokens = 0

    def head(self, sequence: Tensor) -> Tensor:
        """On the mean, taken as the model takes it."""
        return self.model.classifier(self.backbone.pooler(sequence.transpose(1, 2)).flatten(1))

    @property
    def patch_size(self) -> Size:
        """Of the last stage's tokens."""
        return scaled(self.token_patch_size, 2 ** (len(self.backbone.encoder.layers) - 1))

    @property
    def token_patch_size(self) -> Size:
        """Of the patches."""
        return pair(self.config.patch_size)

    def check_size(self, image_size: Sequence[int]) -> None:
        """Absolute positions, where it has them, are made for one image size."""
        if self.config.use_absolute_embeddings:
            check_same(image_size, self.example_size, self.name, OTHER_SIZE)

    @property
    def blocks(self) -> list[nn.Module]:
        """Of all stages."""
        return [block for stage in self.backbone.encoder.layers for block in stage.blocks]

    def block_width(self, number: int) -> int:
        """Of the block's stage."""
        block: Any = self.blocks[number]
        return block.layernorm_before.normalized_shape[0]

    def flow(self, image_size: Sequence[int]) -> Flow:
        """See `swin_flow`; a window that spans the shorter side of the grid is not shifted."""
        grid = self.token_grid_size(image_size)
        stages = []
        for stage in self.backbone.encoder.layers:
            stages.append([_window(block, min(grid)) for block in stage.blocks])
            grid = (grid[0] + 1) // 2, (grid[1] + 1) // 2
        return tuple(swin_flow(self.token_grid_size(image_size), stages, pads_first=True))

    def obstacle(self, number: int) -> str | None:
        """Every window has its table."""
        return BIAS_IS_FIXED

    def _width(self) -> int:
        return self.backbone.num_features


def _window(block: Any, side: int) -> Window:
    if side > block.window_size:
        return Window(pair(block.window_size), pair(block.shift_size))
    if side < block.window_size:
        raise ValueError(
            f"windows of {block.window_size} tokens do not fit a stage whose grid has a side of {side}; take "
            "larger images, or a smaller window_size in the model's configuration"
        )
    return Window(pair(side), (0, 0))


class HuggingFacePvtLayout(HuggingFaceLayout):
    """PVT, the first version: a class token in the last stage."""

    @property
    def patch_size(self) -> Size:
        """Of the last stage's tokens."""
        return total_stride(self._stages())

    @property
    def token_patch_size(self) -> Size:
        """The first stride."""
        return pair(self._stages()[0].convolution.stride)

    def check_size(self, image_size: Sequence[int]) -> None:
        """Positions are made for one image size."""
        check_same(image_size, self.example_size, self.name, OTHER_SIZE)

    @property
    def blocks(self) -> list[nn.Module]:
        """Of all stages."""
        return [block for stage in self.backbone.encoder.block for block in stage]

    def block_width(self, number: int) -> int:
        """Of the block's stage."""
        block: Any = self.blocks[number]
        return block.layer_norm_1.normalized_shape[0]

    def flow(self, image_size: Sequence[int]) -> Flow:
        """See `pyramid_flow`."""
        return pyramid_flow(self.token_grid_size(image_size), self._stages())

    def _stages(self) -> list[Stage]:
        encoder = self.backbone.encoder
        return [
            Stage(
                embed.projection,
                [int(block.attention.self.sequences_reduction_ratio) for block in blocks],
                int(embed.cls_token is not None),
            )
            for embed, blocks in zip(encoder.patch_embeddings, encoder.block, strict=True)
        ]

    def _width(self) -> int:
        return self.config.hidden_sizes[-1]
