"""No mixing: the plain model and its smoothed labels."""

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.mixing import Keep


class NoMix(MixMethod):
    """No mixing: the baseline of every baseline.

    Args:
        num_classes: classes of the labels.
        smoothing: label smoothing.
        seed: taken for uniformity's sake; nothing is drawn.
    """

    about = About(paper="-", images="as they are", labels="smoothed")

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """The batch as it is."""
        return Plan(Keep().apply(images))
