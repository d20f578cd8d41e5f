"""Swin: stages of windows, shifted in every other block; patches merge in between."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnmix.attention.flow import ClassAttention, Flow, Grid, Join, Merge, Step, WindowAttention
from attnmix.backbone.layout import BIAS_IS_FIXED, Layout, Size, check_same, pair, scaled


class Window(NamedTuple):
    """One block's window and by how much it is shifted."""

    size: Size
    shift: Size


def swin_flow(grid: Grid, stages: Iterable[Sequence[Window]], *, pads_first: bool) -> list[Step]:
    """Windows of each stage; between two stages, 2x2 tokens become one."""
    steps: list[Step] = []
    for number, windows in enumerate(stages):
        if number:
            merging = Merge(grid, (2, 2), (2, 2), completes=True)
            steps.append(merging)
            grid = merging.merged_grid
        steps.extend(WindowAttention(grid, window.size, window.shift, pads_first) for window in windows)
    return steps


class SwinLayout(Layout):
    """timm's Swin: the classifier reads the mean of the last stage's tokens."""

    def image_tokens(self, features: Tensor, grid: Grid) -> Tensor:
        """Features are a map `[B, rows, columns, D]`."""
        tokens = features.flatten(1, 2) if features.ndim == 4 else features
        return super().image_tokens(tokens, grid)

    def classify(self, tokens: Tensor) -> Tensor:
        """From a map of one place."""
        return self.model.forward_head(tokens[:, None, None])

    @property
    def patch_size(self) -> Size:
        """Of the last stage's tokens."""
        return scaled(self.token_patch_size, 2 ** (len(self.model.layers) - 1))

    @property
    def token_patch_size(self) -> Size:
        """Of the patches."""
        return pair(self.model.patch_embed.patch_size)

    @property
    def example_size(self) -> Size:
        """The one it was made for."""
        return pair(self.model.patch_embed.img_size)

    def check_size(self, image_size: Sequence[int]) -> None:
        """Windows are made for one image size, unless the model is dynamic."""
        embed = self.model.patch_embed
        if embed.strict_img_size:
            check_same(
                image_size, pair(embed.img_size), self.name, "create it with strict_img_size=False for more"
            )

    @property
    def blocks(self) -> list[nn.Module]:
        """Of all stages."""
        return [block for stage in self.model.layers for block in stage.blocks]

    def block_width(self, number: int) -> int:
        """Of the block's stage."""
        block: Any = self.blocks[number]
        return block.dim

    def flow(self, image_size: Sequence[int]) -> Flow:
        """See `swin_flow`."""
        return tuple(self._windows(image_size))

    def obstacle(self, number: int) -> str | None:
        """Every window has its table."""
        return super().obstacle(number) if self.calls[number].one_query else BIAS_IS_FIXED

    def _windows(self, image_size: Sequence[int]) -> list[Step]:
        stages = [
            [Window(pair(block.window_size), pair(block.shift_size)) for block in stage.blocks]
            for stage in self.model.layers
        ]
        return swin_flow(self.token_grid_size(image_size), stages, pads_first=False)


class ClassAttentionSwinLayout(SwinLayout):
    """Ours: class attention in the place of Swin's last block (TransMix, section 4.5)."""

    has_class_row = True

    def classify(self, tokens: Tensor) -> Tensor:
        """From a sequence."""
        return Layout.classify(self, tokens)

    def flow(self, image_size: Sequence[int]) -> Flow:
        """Windows, then the class token."""
        return *self._windows(image_size), Join(1), ClassAttention(self.grid_size(image_size))
