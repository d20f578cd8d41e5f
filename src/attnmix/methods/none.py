"""No mixing: the plain model and its smoothed labels."""

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.base import MixMethod, Plan
from attnmix.mixing import Keep


class NoMix(MixMethod):
    """No mixing: the baseline of every baseline.

    Args:
        num_classes: classes of the labels.
        smoothing: label smoothing.
        seed: taken for uniformity's sake; nothing is drawn.
    """

    def plan(self, view: BackboneView, images: Tensor) -> Plan:
        """The batch as it is."""
        return Plan(Keep().apply(images))
