"""One view of every ViT-like timm model: prefix tokens, grid, final tokens, classifier."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

SUPPORTED = "VisionTransformer (ViT, DeiT, DINOv2, SigLIP), Eva, Beit and Cait"


class BackboneView:
    """What the methods need to know of a model; holds no parameters and changes nothing on it.

    Works with timm models that lay out their features as `[B, prefix + gh * gw, D]`: class, distillation and
    register tokens or none, average, token or attention pooling, any grid. A model wrapped by `torch.compile`
    stays compiled, also where its final tokens are read.

    Attributes:
        model: the model, without the wrapper of `torch.compile`.
        num_prefix_tokens: class, distillation and register tokens before the image tokens.
        has_class_row: whether one attention row says what the classifier looks at: the attention pool's, or the
            class token's where the classifier reads it (BEiT has one, but averages the image tokens).
        num_classes: outputs of the classifier.
        embed_dim: width of a final token.

    Raises:
        ValueError: a model of another layout, or already wrapped for distributed training.
    """

    def __init__(self, model: nn.Module) -> None:
        self.compiled: Any = cast(Any, model) if hasattr(model, "_orig_mod") else None
        self.model: Any = cast(Any, model) if self.compiled is None else self.compiled._orig_mod
        self.name = type(self.model).__name__
        if isinstance(self.model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(f"the model is wrapped in {self.name}: give the model itself, and wrap the task")
        needed = ("forward_features", "forward_head", "patch_embed", "num_prefix_tokens", "num_classes")
        missing = [name for name in needed if not hasattr(self.model, name)]
        if missing or not hasattr(self.model.patch_embed, "dynamic_feat_size"):
            raise ValueError(
                f"{self.name} does not lay out its tokens as a ViT does (no "
                f"{', '.join(missing) or 'grid of patches'}); supported are timm's {SUPPORTED}"
            )
        self.num_prefix_tokens: int = self.model.num_prefix_tokens
        self.num_classes: int = self.model.num_classes
        self.embed_dim: int = self.model.num_features
        pool = getattr(self.model, "attn_pool", None)
        reads_class_token = getattr(self.model, "global_pool", "token") == "token"
        self.has_class_row = pool is not None or (
            getattr(self.model, "cls_token", None) is not None and reads_class_token
        )
        # the wrapper's own context: same backend, mode and options for the second entry into the model
        enter = self.compiled.dynamo_ctx if self.compiled is not None else lambda function: function
        self._features_and_logits: Callable[[Tensor], tuple[Tensor, Tensor]] = enter(self._run)

    def __deepcopy__(self, memo: dict[int, Any]) -> BackboneView:
        model = copy.deepcopy(self.model, memo)
        return BackboneView(
            model if self.compiled is None else type(self.compiled)(model, self.compiled.dynamo_ctx)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Logits `[B, C]` of images `[B, 3, H, W]`, through the model's own (compiled) forward."""
        return self._single(self.model(images) if self.compiled is None else self.compiled(images))

    def forward_tokens(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[B, C]` and final image tokens `[B, N, D]` (row-major over the grid) in one forward.

        Tokens are taken after the model's last norm where that comes before pooling.

        Raises:
            ValueError: features that are no sequence over this image's grid.
        """
        features, logits = self._features_and_logits(images)
        rows, columns = self.grid_size(images.shape[-2:])
        expected = self.num_prefix_tokens + rows * columns
        if features.ndim != 3 or features.shape[1] != expected:
            raise ValueError(
                f"{self.name} gives features of shape {tuple(features.shape)} where {expected} tokens were "
                f"expected ({self.num_prefix_tokens} prefix + {rows}x{columns}); supported are timm's {SUPPORTED}"
            )
        return self._single(logits), features[:, self.num_prefix_tokens :]

    def classify(self, tokens: Tensor) -> Tensor:
        """The model's own classifier on pooled tokens: `[B, D]` -> `[B, C]` (SMMix's F, eq. 12).

        The token is given to the head as a whole sequence of itself, so that whatever the model does when it
        pools (class token, average and norm, two distillation heads) comes out as that token's.
        """
        sequence = tokens[:, None].expand(-1, self.num_prefix_tokens + 1, -1)
        return self._single(self.model.forward_head(sequence))

    def grid_size(self, image_size: tuple[int, int] | torch.Size) -> tuple[int, int]:
        """Rows and columns of image tokens for an image of height, width in pixels.

        Raises:
            ValueError: a side that the patches do not divide.
        """
        height, width = image_size
        patch = self.patch_size
        for name, side, length in (("height", height, patch[0]), ("width", width, patch[1])):
            if side % length or side == 0:
                raise ValueError(
                    f"image {name} {side} is not a multiple of the patch, {length} pixels; "
                    f"{max(1, round(side / length)) * length} would be"
                )
        return height // patch[0], width // patch[1]

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        size = self.model.patch_embed.patch_size
        return (size, size) if isinstance(size, int) else tuple(size)

    def require_all_tokens(self) -> None:
        """Raise ValueError for a model that drops patches in training: the grid would have holes."""
        drop = getattr(self.model, "patch_drop", None)
        if drop is not None and getattr(drop, "prob", 0) > 0:
            raise ValueError(
                f"{self.name} drops {drop.prob:.0%} of its patches in training, so that tokens no longer form "
                "the image's grid; create it with patch_drop_rate=0"
            )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for a while; each module gets its own flag back, also after an exception."""
        flags = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            yield
        finally:
            for module, training in flags:
                module.training = training

    def _run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.model.forward_features(images)
        return features, self.model.forward_head(features)

    def _single(self, logits: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """A distilled DeiT in distillation training returns two logits; its prediction is their mean."""
        return logits if isinstance(logits, Tensor) else (logits[0] + logits[1]) / 2
