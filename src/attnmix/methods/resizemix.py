"""ResizeMix (Qin et al., 2020): the whole source, made smaller, pasted at a random place."""

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.pasting import Pasting
from attnmix.mixing.draws import check_choice
from attnmix.mixing.resized import INTERPOLATIONS, PasteResized, boxes_inside


def scale_ratio(uniform: Tensor, scale: tuple[float, float]) -> Tensor:
    """tau ~ U(low, high), the ratio of sides, from uniform numbers in [0, 1) of any shape."""
    low, high = scale
    return low + uniform * (high - low)


class ResizeMix(Pasting):
    """ResizeMix (Qin et al., 2020): the whole source resized and pasted, so that its object is never cut.

    Both sides shrink by one ratio; the box lies wholly inside the target, anywhere, and the label weight is its
    exact area. An image that is its own partner stays itself.

    Args:
        scale: low and high of the ratio of sides (paper: 0.1 and 0.8).
        interpolation: `bilinear`, `bicubic` or `nearest`, each as `torch.nn.functional.interpolate` has it.
        num_classes, prob, mixup_prob, mixup_alpha, mode, pairing, label, smoothing, seed: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range, naming it.
    """

    about = About(paper="Qin et al., 2020", images="the whole source, resized, pasted in a box", labels="by area")
    moves_content = True

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        scale: tuple[float, float] = (0.1, 0.8),
        interpolation: str = "bilinear",
        mixup_prob: float = 0.0,
        mixup_alpha: float = 0.8,
        mode: str = "batch",
        pairing: str = "flip",
        label: str = "area",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        # all of `Pasting`'s but cutmix_alpha, which would do nothing here
        super().__init__(
            num_classes=num_classes,
            prob=prob,
            mixup_prob=mixup_prob,
            mixup_alpha=mixup_alpha,
            mode=mode,
            pairing=pairing,
            label=label,
            smoothing=smoothing,
            seed=seed,
        )
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError(f"scale is {scale}, but must be (low, high) with 0 < low <= high <= 1")
        check_choice("interpolation", interpolation, INTERPOLATIONS)
        self.scale = (float(scale[0]), float(scale[1]))
        self.interpolation = interpolation

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> PasteResized:
        """Draw a box per draw of the batch; nothing of the images is looked at."""
        batch, _, height, width = images.shape
        drawn = torch.rand(self.sampler.count(batch), 3, generator=self.generator, dtype=torch.float64)
        box = boxes_inside(scale_ratio(drawn[:, 0], self.scale), drawn[:, 1:], image_size=(height, width))
        return PasteResized(self.partners(images), self.sampler.spread(box, batch), self.interpolation)
