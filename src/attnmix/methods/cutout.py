"""CutOut (DeVries & Taylor, 2017): a square hole in every image, labels as they are."""

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.mixing import Keep
from attnmix.mixing.holes import Cut, square_holes


class CutOut(MixMethod):
    """CutOut (DeVries & Taylor, 2017): a square of fixed size is set to 0, anywhere, in each image its own.

    Its centre lies anywhere on the image and what sticks out is clipped, so that some holes are smaller. No image
    is mixed with another; labels stay. Of normalised images 0 is the mean.

    Args:
        num_classes: classes of the labels.
        prob: share of steps in which holes are cut.
        length: side of the square as a share of the image's shorter side. The paper chooses pixels for each set of
            32-pixel images: 16 for CIFAR-10, hence 0.5 here; 8 (0.25) for CIFAR-100, 20 (0.625) for SVHN.
        smoothing: label smoothing.
        seed: of the method's generator.

    Raises:
        ValueError: a value outside its range, naming it.
    """

    about = About(paper="DeVries & Taylor, 2017", images="a square hole", labels="as they are")
    moves_content = True

    def __init__(
        self, *, num_classes: int, prob: float = 1.0, length: float = 0.5, smoothing: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        if not 0 <= prob <= 1:
            raise ValueError(f"prob is {prob}, but a share of steps lies between 0 and 1")
        if not 0 < length <= 1:
            raise ValueError(f"length is {length}, but a share of the shorter side lies above 0, up to 1")
        self.prob = prob
        self.length = length

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps, or cuts; a cut counts as pasting."""
        return {"keep": 1 - self.prob, "blend": 0.0, "paste": self.prob}

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw a hole per image and cut it out."""
        if float(torch.rand((), generator=self.kinds)) >= self.prob:
            return Plan(Keep().apply(images))
        batch, _, height, width = images.shape
        side = max(1, round(self.length * min(height, width)))
        centre = torch.rand(batch, 2, generator=self.generator)
        return Plan(Cut(square_holes(side, centre, image_size=(height, width))).apply(images))
