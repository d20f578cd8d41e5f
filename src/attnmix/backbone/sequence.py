"""Models whose blocks all attend over one sequence: ViT, DeiT, DINOv2, SigLIP, EVA, BEiT, CCT, ViT-Lite."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from attnmix.attention.flow import Flow, Grid, Join, PoolAttention, SequenceAttention, Step
from attnmix.backbone.layout import BIAS_IS_FIXED, NO_FUSED_ATTENTION, Layout, Size, pair


def sequence_flow(grid: Grid, depth: int, *, prefix: int, class_token: bool) -> list[Step]:
    """Prefix tokens join, then `depth` times everything attends to everything."""
    joins: list[Step] = [Join(prefix)] if prefix else []
    return [*joins, *[SequenceAttention(grid, prefix, class_token)] * depth]


class SequenceLayout(Layout):
    """timm's ViT, EVA and BEiT, with class, distillation and register tokens or none, any pooling, any grid."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.class_token = getattr(model, "cls_token", None) is not None
        self.pool = getattr(model, "attn_pool", None)
        self.pool_is_one_query = hasattr(self.pool, "latent")
        self.reads_prefix = getattr(model, "pool_include_prefix", self.pool is not None)  # EVA's pool reads all
        reads_class_token = model.global_pool == "token" or (self.pool is not None and not self.pool_is_one_query)
        self.has_class_row = self.pool_is_one_query or (self.class_token and reads_class_token)
        for block in model.blocks:
            if hasattr(block, "num_parallel") or any(hasattr(part, "lambda_init") for part in block.modules()):
                raise ValueError(
                    f"{self.name} has blocks of several attention layers each ({type(block).__name__}), whose "
                    "attention cannot be told apart; use a model with one per block"
                )

    @property
    def patch_size(self) -> Size:
        """What the model says that its patches measure, a convolutional stem included."""
        return pair(self.model.patch_embed.feat_ratio(as_scalar=False))

    @property
    def blocks(self) -> list[nn.Module]:
        """All blocks."""
        return list(self.model.blocks)

    def flow(self, image_size: Sequence[int]) -> Flow:
        """A sequence, and the attention pool where there is one."""
        grid, prefix = self.grid_size(image_size), self.num_prefix_tokens
        steps = sequence_flow(grid, len(self.blocks), prefix=prefix, class_token=self.class_token)
        if self.pool_is_one_query:
            shown = prefix if self.reads_prefix else 0
            steps.append(PoolAttention(grid, shown, drops=prefix - shown))
        elif self.pool is not None:
            steps.append(SequenceAttention(grid, prefix, self.class_token, skips=False))
        return tuple(steps)

    def readout(self, values: Tensor) -> Tensor:
        """The class token (the mean of it and the distillation token), the pool's value, or the mean."""
        if hasattr(self.model, "head_dist"):
            return values[:, :2].mean(dim=1)
        if self.has_class_row:
            return values[:, 0]
        return values[:, 0 if self.reads_prefix else self.num_prefix_tokens :].mean(dim=1)

    def obstacle(self, number: int) -> str | None:
        """None for plain attention."""
        if number >= len(self.blocks):
            return "its query pools the tokens"
        attention = getattr(self.blocks[number], "attn", None)
        if attention is None:
            return "its attention is one with its MLP"
        tables = ("relative_position_bias_table", "rel_pos")
        shared = ("rel_pos_bias", "shared_rel_pos")
        if any(getattr(attention, name, None) is not None for name in tables) or any(
            getattr(self.model, name, None) is not None for name in shared
        ):
            return BIAS_IS_FIXED
        if getattr(self.model, "rope", None) is not None:
            return "its rotary positions are made for a fixed number of keys"
        return None if getattr(attention, "fused_attn", False) else NO_FUSED_ATTENTION
