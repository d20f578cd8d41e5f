"""No mixing: the plain model and its smoothed labels."""

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.base import MixMethod
from attnmix.mixing import Keep, MixedBatch


class NoMix(MixMethod):
    """No mixing: the baseline of every baseline.

    Args:
        num_classes: classes of the labels.
        smoothing: label smoothing.
        seed: taken for uniformity's sake; nothing is drawn.
    """

    def mix(self, view: BackboneView, images: Tensor) -> MixedBatch:
        """The batch as it is."""
        return Keep().apply(images)
