"""Draw, then apply: a sampler draws a small record; applying it is deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch
from attnmix.mixing.regions import boxes_to_mask, cutmix_boxes, scale_boxes

MODES = ("batch", "pair", "elem")
PAIRINGS = ("flip", "roll", "shuffle")
Boxes = Callable[..., Tensor]  # as `cutmix_boxes`


class Draw(Protocol):
    """A record of what to mix.

    Its kind: `keep` the batch, `blend` it all alike, `paste` places, `cut` them out, or mix `hidden` states.
    """

    kind: ClassVar[str]

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> the mixed batch; does the same to every channel, so that masks can be moved too."""


@dataclass(frozen=True)
class Keep:
    """Leave the batch as it is."""

    kind: ClassVar[str] = "keep"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> the same tensor, not a copy, with source weight 0."""
        batch, _, height, width = images.shape
        return MixedBatch(
            images=images,
            source_index=torch.arange(batch, device=images.device),
            source_weight=torch.zeros(batch, device=images.device),
            source_mask=torch.zeros(batch, height, width, dtype=torch.bool, device=images.device),
            draw=self,
        )


@dataclass(frozen=True)
class Blend:
    """Mixup: a weighted sum of two images.

    Attributes:
        source_index: `[B]` int64.
        source_weight: `[B]` float32 in [0, 1].
    """

    source_index: Tensor
    source_weight: Tensor

    kind: ClassVar[str] = "blend"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> images blended one by one with their partners."""
        index = self.source_index.to(images.device, non_blocking=True)
        weight = self.source_weight.to(images.device, non_blocking=True)
        # lerp keeps identical images identical to the bit
        mixed = torch.lerp(images, images[index], weight.to(images.dtype)[:, None, None, None])
        return MixedBatch(mixed, index, weight, None, self)


@dataclass(frozen=True)
class Paste:
    """CutMix and its kin: a window of the partner, in place or moved.

    Attributes:
        source_index: `[B]` int64.
        box: `[B, 4]` int64, top, left, height, width in pixels, where the window lands.
        offset: `[B, 2]` int64, rows and columns from there to where the window is taken; None = same place.
    """

    source_index: Tensor
    box: Tensor
    offset: Tensor | None = None

    kind: ClassVar[str] = "paste"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> every pixel from exactly one of two images; source weight = exact pixel share."""
        height, width = images.shape[-2:]
        index = self.source_index.to(images.device, non_blocking=True)
        box = self.box.to(images.device, non_blocking=True)
        mask = boxes_to_mask(box, (height, width))
        source = images[index]
        if self.offset is not None:
            source = _moved(source, self.offset.to(images.device, non_blocking=True))
        return MixedBatch(
            images=torch.where(mask[:, None], source, images),
            source_index=index,
            source_weight=(box[:, 2] * box[:, 3]).float() / (height * width),
            source_mask=mask,
            draw=self,
        )


def _moved(images: Tensor, offset: Tensor) -> Tensor:
    """`[B, C, H, W]` with each pixel taken `offset` `[B, 2]` rows and columns further on."""
    channels, height, width = images.shape[1:]
    row, column = offset[:, :, None].unbind(1)
    # only a window is read, and it lies inside: wrapping round just keeps every index legal
    rows = (torch.arange(height, device=images.device) + row) % height
    columns = (torch.arange(width, device=images.device) + column) % width
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    # one gather, by indices that are never spelled out per channel (as `take_along_dim` does)
    return images.flatten(2).gather(2, places[:, None].expand(-1, channels, -1)).view_as(images)


@dataclass(frozen=True)
class MixSampler:
    """What mixing draws: whether, which kind, how strongly, and with whom.

    Attributes:
        prob: share of steps that are mixed at all.
        mixup_prob: share of those that draw Mixup instead of pasting.
        mixup_alpha: Mixup's weight ~ Beta(alpha, alpha).
        cutmix_alpha: CutMix's box area ~ Beta(alpha, alpha).
        mode: `batch`, one draw for the batch; `pair`, one for image i and its flipped partner; `elem`, one
            each.
        pairing: partner of image i: `flip`, B-1-i (the middle of an odd batch stays itself); `roll`, i-1;
            `shuffle`, a random permutation.

    Raises:
        ValueError: a value outside its range, or `pair` without `flip`.
    """

    prob: float = 1.0
    mixup_prob: float = 0.0
    mixup_alpha: float = 0.8
    cutmix_alpha: float = 1.0
    mode: str = "batch"
    pairing: str = "flip"

    def __post_init__(self) -> None:
        for name in ("prob", "mixup_prob"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, but a share of steps lies between 0 and 1")
        for name in ("mixup_alpha", "cutmix_alpha"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}, but Beta(alpha, alpha) needs a finite alpha above 0")
        check_choice("mode", self.mode, MODES)
        check_choice("pairing", self.pairing, PAIRINGS)
        if self.mode == "pair" and self.pairing != "flip":
            raise ValueError(
                f'mode "pair" needs pairing "flip", not "{self.pairing}": only then are two '
                "images each other's partner"
            )

    @property
    def shares(self) -> dict[str, float]:
        """How often each kind is drawn."""
        blend = self.prob * self.mixup_prob
        return {"keep": 1 - self.prob, "blend": blend, "paste": self.prob - blend}

    def kind(self, generator: torch.Generator) -> str:
        """`keep`, `blend` or `paste`; always two draws, so that a share changes nothing but the kind."""
        mixed, blended = torch.rand(2, generator=generator).tolist()
        if mixed >= self.prob:
            return "keep"
        return "blend" if blended < self.mixup_prob else "paste"

    def partners(self, batch: int, generator: torch.Generator) -> Tensor:
        """Each image's partner, `[B]` int64."""
        index = torch.arange(batch)
        if self.pairing == "flip":
            return index.flip(0)
        if self.pairing == "roll":
            return index.roll(1)
        return torch.randperm(batch, generator=generator)

    def blend(self, batch: int, generator: torch.Generator) -> Blend:
        """Draw Mixup."""
        weight = self._beta(self.mixup_alpha, batch, generator)
        return Blend(self.partners(batch, generator), self.spread(weight, batch))

    def paste(
        self,
        batch: int,
        image_size: tuple[int, int],
        generator: torch.Generator,
        *,
        patch_size: tuple[int, int] = (1, 1),
        boxes: Boxes = cutmix_boxes,
    ) -> Paste:
        """Draw CutMix, in whole patches of `patch_size` pixels, by the law of `boxes`."""
        share = self.pasted_share(batch, generator)
        centre = torch.rand(len(share), 2, generator=generator)
        grid = image_size[0] // patch_size[0], image_size[1] // patch_size[1]
        box = scale_boxes(boxes(share, centre, image_size=grid), patch_size)
        return Paste(self.partners(batch, generator), self.spread(box, batch))

    def draw(
        self,
        batch: int,
        image_size: tuple[int, int],
        generator: torch.Generator,
        *,
        kinds: torch.Generator | None = None,
        patch_size: tuple[int, int] = (1, 1),
        boxes: Boxes = cutmix_boxes,
    ) -> Draw:
        """Draw a whole step of Mixup and CutMix, its kind from `kinds` where given; the last two as in `paste`."""
        kind = self.kind(generator if kinds is None else kinds)
        if kind == "keep":
            return Keep()
        if kind == "blend":
            return self.blend(batch, generator)
        return self.paste(batch, image_size, generator, patch_size=patch_size, boxes=boxes)

    def pasted_share(self, batch: int, generator: torch.Generator) -> Tensor:
        """The wished share of the source where it is pasted, one per draw, `[n]` float32; see `spread`."""
        return self._beta(self.cutmix_alpha, batch, generator)

    def count(self, batch: int) -> int:
        """How many draws a batch takes."""
        return {"batch": 1, "pair": (batch + 1) // 2, "elem": batch}[self.mode]

    def _beta(self, alpha: float, batch: int, generator: torch.Generator) -> Tensor:
        """Beta(alpha, alpha) by inversion: torch's own sampler takes no generator."""
        uniform = torch.rand(self.count(batch), generator=generator, dtype=torch.float64)
        if alpha == 1:
            return uniform.float()
        from scipy.special import betaincinv  # the default above runs on machines that have torch alone

        return torch.from_numpy(betaincinv(alpha, alpha, uniform.numpy())).float()

    def spread(self, drawn: Tensor, batch: int) -> Tensor:
        """From what was drawn, `[n, ...]`, to one row per image, `[B, ...]`."""
        if self.mode == "batch":
            return drawn.expand(batch, *drawn.shape[1:])
        if self.mode == "pair":
            return torch.cat([drawn, drawn[: batch // 2].flip(0)])
        return drawn


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError, naming the choices, unless the value is one of them."""
    if value not in choices:
        raise ValueError(f'{name} is "{value}", but must be one of {", ".join(choices)}')
