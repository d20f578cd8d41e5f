"""FMix (Harris et al., 2020): blobs of any shape, from noise with strong low frequencies."""

import math
from typing import Any

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.pasting import Pasting
from attnmix.mixing import PasteMask
from attnmix.mixing.draws import check_choice
from attnmix.mixing.fourier_masks import low_frequency_noise, soft_share_masks, top_share_masks


class FMix(Pasting):
    """FMix (Harris et al., 2020): the source shows where low-frequency noise is highest, labels by area.

    The share of the source is drawn from Beta(`cutmix_alpha`, `cutmix_alpha`) and the noise is cut off so that
    the mask has it: to the pixel, where no two pixels are alike, as they are in mirrored pairs with
    `spectrum="real"`. The label weight is the mask's own share. Masks are made on the CPU, all of a batch at once
    and one per draw: about a millisecond each at 224 pixels, five with a soft border.

    Args:
        decay_power: how fast the spectrum falls with frequency (paper: 3); lower is more fragmented.
        max_soft: share of the pixels on either side of the edge in which the images fade into each other, at most
            0.5; 0 (paper) is a hard edge.
        spectrum: `complex` (paper), or `real`, the authors' code, whose masks are their own point reflection.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range, naming it.
    """

    about = About(
        paper="Harris et al., 2020",
        images="blobs of low-frequency noise pasted",
        labels="by area",
        more="masks made on the CPU",
    )

    def __init__(
        self, *, decay_power: float = 3.0, max_soft: float = 0.0, spectrum: str = "complex", **options: Any
    ) -> None:
        super().__init__(**options)
        if not (decay_power >= 0 and math.isfinite(decay_power)):
            raise ValueError(f"decay_power is {decay_power}, but must be finite and at least 0")
        if not 0 <= max_soft <= 0.5:
            raise ValueError(f"max_soft is {max_soft}, but a share on one side of the edge lies in [0, 0.5]")
        check_choice("spectrum", spectrum, ("complex", "real"))
        self.decay_power = decay_power
        self.max_soft = max_soft
        self.spectrum = spectrum

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> PasteMask:
        """Draw a mask for each draw of the batch, and move it once."""
        batch, _, height, width = images.shape
        share = self.sampler.pasted_share(batch, self.generator)
        noise = low_frequency_noise(
            len(share), (height, width), self.generator, decay_power=self.decay_power, spectrum=self.spectrum
        )
        if self.max_soft > 0:
            mask = soft_share_masks(noise, share, max_soft=self.max_soft)
        else:
            mask = top_share_masks(noise, share)
        # moved before it is spread: one mask for a whole batch is sent once
        mask = mask.to(images.device, non_blocking=True)
        return PasteMask(self.partners(images), self.sampler.spread(mask, batch))
