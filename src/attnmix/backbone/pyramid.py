"""PVT, both versions: stages of shrinking grids, in which keys stand for cells of tokens."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnmix.attention.flow import (
    AttentionStep,
    Flow,
    Grid,
    Join,
    Merge,
    ReducedAttention,
    SequenceAttention,
    Step,
)
from attnmix.backbone.layout import Layout, Size, check_multiple, pair, scaled

CellRatio = int | None  # tokens per side of a cell; None: 7x7 cells, however large (linear PVT v2)


class Stage(NamedTuple):
    """What a stage's tokens go through: the convolution that made them, then a block per cell ratio."""

    convolution: Any
    ratios: list[CellRatio]
    prefix: int


def pyramid_flow(grid: Grid, stages: Iterable[Stage]) -> Flow:
    """Merging between stages, prefix tokens that join, attention to cells."""
    steps: list[Step] = []
    for number, (convolution, ratios, prefix) in enumerate(stages):
        if number:
            kernel, stride, padding = map(pair, (convolution.kernel_size, convolution.stride, convolution.padding))
            merging = Merge(grid, kernel, stride, padding)
            steps.append(merging)
            grid = merging.merged_grid
        if prefix:
            steps.append(Join(prefix))
        steps.extend(_attention(grid, ratio, prefix) for ratio in ratios)
    return tuple(steps)


def _attention(grid: Grid, ratio: CellRatio, prefix: int) -> AttentionStep:
    if ratio == 1:
        return SequenceAttention(grid, prefix, has_class_row=prefix > 0)
    if ratio is None:
        return ReducedAttention(grid, (7, 7))
    return ReducedAttention(grid, (grid[0] // ratio, grid[1] // ratio), cell=(ratio, ratio))


def total_stride(stages: Iterable[Stage]) -> Size:
    """Height and width in pixels of a last stage's token."""
    size = (1, 1)
    for stage in stages:
        size = scaled(size, stage.convolution.stride)
    return size


class PyramidLayout(Layout):
    """timm's PVT v2, and ours of the first version, which has a class token in its last stage."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.has_class_row = self.num_prefix_tokens > 0

    def image_tokens(self, features: Tensor, grid: Grid) -> Tensor:
        """PVT v2's features are a map `[B, D, rows, columns]`."""
        tokens = features.flatten(2).transpose(1, 2) if features.ndim == 4 else features
        return super().image_tokens(tokens, grid)

    def classify(self, tokens: Tensor) -> Tensor:
        """From a sequence, or a map of one place."""
        return super().classify(tokens) if self.has_class_row else self.model.forward_head(tokens[..., None, None])

    @property
    def patch_size(self) -> Size:
        """The product of all strides."""
        return total_stride(self._stages())

    @property
    def token_patch_size(self) -> Size:
        """The first stride."""
        return pair(self.model.patch_embed.proj.stride)

    @property
    def example_size(self) -> Size:
        """One that every stage can divide."""
        multiple = getattr(self.model, "size_multiple", None)
        return super().example_size if multiple is None else pair(multiple)

    def check_size(self, image_size: Sequence[int]) -> None:
        """PVT v1 needs whole cells in every stage."""
        multiple = getattr(self.model, "size_multiple", None)
        if multiple is not None:
            check_multiple(image_size, pair(multiple), "what its stages need, ")

    @property
    def blocks(self) -> list[nn.Module]:
        """Of all stages."""
        return [block for stage in self.model.stages for block in stage.blocks]

    def block_width(self, number: int) -> int:
        """Of the block's stage."""
        block: Any = self.blocks[number]
        return block.attn.dim

    def flow(self, image_size: Sequence[int]) -> Flow:
        """See `pyramid_flow`."""
        return pyramid_flow(self.token_grid_size(image_size), self._stages())

    def _stages(self) -> list[Stage]:
        found = []
        for number, stage in enumerate(self.model.stages):
            embed = getattr(stage, "patch_embed", None) or (stage.downsample if number else self.model.patch_embed)
            ratios = [_ratio(block.attn) for block in stage.blocks]
            found.append(Stage(embed.proj, ratios, getattr(stage, "num_prefix_tokens", 0)))
        return found


def _ratio(attention: Any) -> CellRatio:
    if attention.pool is not None:
        return None
    return 1 if attention.sr is None else attention.sr.stride[0]
