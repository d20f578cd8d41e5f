"""The one thing every mixer returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from attnmix.mixing.draws import Draw


@dataclass(frozen=True)
class MixedBatch:
    """A batch after mixing. Source = the image pasted in, target = the image pasted onto.

    Attributes:
        images: `[B, C, H, W]`; image i was made from image i and image `source_index[i]`.
        source_index: `[B]` int64, the image that was pasted onto image i.
        source_weight: `[B]` float32 in [0, 1], weight of the source's label; the target's is the rest.
        source_mask: `[B, H, W]` bool, True = the pixel comes from the source; None where pixels are blended.
        source_share: `[B, H, W]` float in [0, 1], the source's share of each pixel, where a soft mask blends
            more of it in some places than in others; else None.
        draw: the record this batch was made from; `draw.apply(masks)` moves masks as it moved the pixels.
    """

    images: Tensor
    source_index: Tensor
    source_weight: Tensor
    source_mask: Tensor | None
    draw: Draw
    source_share: Tensor | None = None

    @property
    def source_map(self) -> Tensor | None:
        """The source's share of every pixel, `[B, H, W]` float in [0, 1]; None where it is the same in all."""
        return self.source_share if self.source_mask is None else self.source_mask.float()

    def with_source_weight(self, source_weight: Tensor) -> MixedBatch:
        """The same pixels under another label weight `[B]`."""
        return replace(self, source_weight=source_weight.detach().float())
