"""Models at whose end the class token alone attends: CaiT, XCiT."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from attnmix.attention.flow import ChannelAttention, ClassAttention, Flow, Join, SequenceAttention
from attnmix.backbone.layout import Layout, Size, pair


class CaitLayout(Layout):
    """CaiT: the image tokens attend to each other, with heads that talk; then the class token joins."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.has_class_row = model.global_pool == "token"

    @property
    def patch_size(self) -> Size:
        """Of the patches."""
        return pair(self.model.patch_embed.patch_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """Without the class blocks, which take the class token apart from the others."""
        return list(self.model.blocks)

    def flow(self, image_size: Sequence[int]) -> Flow:
        """Image tokens, then the class token."""
        grid = self.grid_size(image_size)
        image = [SequenceAttention(grid)] * len(self.model.blocks)
        return *image, Join(1), *[ClassAttention(grid)] * len(self.model.blocks_token_only)

    def obstacle(self, number: int) -> str | None:
        """Heads that talk to each other keep attention from being fused."""
        return super().obstacle(number) if self.calls[number].one_query else "its heads talk to each other"


class XcitLayout(Layout):
    """XCiT: channels attend to each other, neighbours mix by convolution; then the class token joins."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.has_class_row = model.global_pool == "token"

    @property
    def patch_size(self) -> Size:
        """Of the convolutional patches."""
        return pair(self.model.patch_embed.patch_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """All of them: the class blocks take the whole sequence."""
        return [*self.model.blocks, *self.model.cls_attn_blocks]

    def flow(self, image_size: Sequence[int]) -> Flow:
        """Channels, then the class token."""
        grid = self.grid_size(image_size)
        channels = [ChannelAttention(grid, self.embed_dim // block.attn.num_heads) for block in self.model.blocks]
        return *channels, Join(1), *[ClassAttention(grid)] * len(self.model.cls_attn_blocks)
