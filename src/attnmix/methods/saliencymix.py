"""SaliencyMix (Uddin et al., ICLR 2021): CutMix whose box lies on what stands out in the source."""

from typing import Any

import torch
from torch import Tensor, nn

from attnmix.attention.call import aside
from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.pasting import Pasting
from attnmix.mixing import Draw, Paste, max_windows, min_windows
from attnmix.mixing.draws import check_choice
from attnmix.mixing.saliency import (
    fine_grained_saliency,
    opencv_saliency,
    peak_boxes,
    spectral_residual_saliency,
)

PLACES = ("salient", "non-salient")


def pixels_of(images: Tensor, model: nn.Module) -> Tensor:
    """Normalised images `[B, C, H, W]` as pixels in [0, 1], float32.

    By mean and standard deviation of the model's pretrained_cfg; where it has none, each image's own lowest and
    highest value become 0 and 1.
    """
    images = images.float()
    cfg = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (cfg.get(key) or () for key in ("mean", "std"))
    if len(mean) == len(std) == images.shape[1]:

        def channel(values: Any) -> Tensor:
            return torch.tensor(values).to(images.device, non_blocking=True)[:, None, None]

        pixels = images * channel(std) + channel(mean)
    else:
        low, high = (extreme(dim=(1, 2, 3), keepdim=True) for extreme in (images.amin, images.amax))
        pixels = (images - low) / (high - low).clamp(min=1e-12)
    return pixels.nan_to_num().clamp(0, 1)


def extreme_pixel(saliency: Tensor, place: str) -> Tensor:
    """Row and column `[B, 2]` of the most (`salient`) or the least (`non-salient`) salient pixel of `[B, H, W]`.

    Section 3.1, eq. 2; the first on ties.
    """
    find = max_windows if place == "salient" else min_windows
    return find(saliency, (1, 1))[:, :2]


class SaliencyMix(Pasting):
    """SaliencyMix (Uddin et al., ICLR 2021): a box around the source's most salient pixel, pasted in place.

    Every image has its own saliency map, its own peak and so its own box; the authors' code takes one image's
    box for the whole batch. The box's sides follow CutMix's law; it is clipped at the border, and the label
    weight is its exact share of the pixels.

    Args:
        num_classes: classes of the labels.
        saliency: `fine-grained`, OpenCV's (Montabone & Soto, 2010), on the CPU, which the step waits for: 11 to
            25 ms for each image of 224 pixels, on each core, of which all are used. Where that is too slow,
            `spectral-residual` (Hou & Zhang, CVPR 2007), on the images' device. OpenCV is given the image's bytes;
            the authors' normalised floats are misread by it.
        source: around which pixel of the source the box is cut, the most `salient` or the least, `non-salient`
            (section 3.4).
        target: onto which pixel of the target it is pasted: `corr`, the corresponding one, or the target's own
            most `salient` or `non-salient` one (section 3.4).
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range, naming it; when bound, OpenCV's saliency is not installed.
    """

    about = About(
        paper="Uddin et al., ICLR 2021",
        images="a box around the source's most salient pixel, in place",
        labels="by area",
        more="saliency on the CPU, or on the device with `saliency=spectral-residual`",
        needs=("the package opencv-contrib-python, or `saliency=spectral-residual`",),
    )

    def __init__(
        self, *, saliency: str = "fine-grained", source: str = "salient", target: str = "corr", **options: Any
    ) -> None:
        super().__init__(**options)
        check_choice("saliency", saliency, ("fine-grained", "spectral-residual"))
        check_choice("source", source, PLACES)
        check_choice("target", target, ("corr", *PLACES))
        self.saliency = saliency
        self.source = source
        self.target = target

    def bind(self, view: BackboneView) -> None:
        """Needs OpenCV's contributed modules, for their saliency."""
        super().bind(view)
        if self.saliency == "fine-grained":
            try:
                opencv_saliency()
            except ImportError as error:
                raise ValueError(
                    f'saliency="fine-grained" is OpenCV\'s ({error}): pip install "attnmix[saliencymix]", or use '
                    'saliency="spectral-residual", which needs no package'
                ) from error

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """Each partner's box, where it is pasted."""
        share, partners = self.pasted_shares(images), self.partners(images)
        places = [self.source] if self.target == "corr" else [self.source, self.target]
        pixels = self._pixels(view, images, places)
        source = pixels[0][partners]
        if self.target == "corr":
            return Paste(partners, self._boxes(share, source, source, images))
        own = partners == torch.arange(len(images), device=images.device)
        source = torch.where(own[:, None], pixels[1], source)
        return Paste(partners, self._boxes(share, source, pixels[1], images), source - pixels[1])

    def _boxes(self, share: Tensor, source: Tensor, target: Tensor, images: Tensor) -> Tensor:
        return peak_boxes(share, source, target, image_size=(images.shape[-2], images.shape[-1]))

    def _pixels(self, view: BackboneView, images: Tensor, places: list[str]) -> list[Tensor]:
        """Each image's pixels of these names, `[B, 2]` each, on the images' device."""
        with aside(images.device):
            pixels = pixels_of(images, view.model)
            if self.saliency == "spectral-residual":
                saliency = spectral_residual_saliency(pixels)
                return [extreme_pixel(saliency, place) for place in places]
            # bytes go down, and places come up
            saliency = fine_grained_saliency((pixels * 255).round().to(torch.uint8).cpu())
            found = torch.stack([extreme_pixel(saliency, place) for place in places])
            return list(found.to(images.device, non_blocking=True).unbind())
