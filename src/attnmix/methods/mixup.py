"""Mixup (Zhang et al., 2018)."""

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.mixing import MixSampler


class Mixup(MixMethod):
    """Mixup (Zhang et al., 2018): a weighted sum of two images, and of their labels by the same weight.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        mixup_alpha: the weight is drawn from Beta(alpha, alpha).
        mode: one draw per `batch`, `pair` or `elem`.
        pairing: partner by `flip`, `roll` or `shuffle`.
        smoothing: label smoothing.
        seed: of the method's generator.
    """

    about = About(paper="Zhang et al., ICLR 2018", images="blended", labels="by blending weight")

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        mixup_alpha: float = 0.8,
        mode: str = "batch",
        pairing: str = "flip",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        self.sampler = MixSampler(prob=prob, mixup_prob=1.0, mixup_alpha=mixup_alpha, mode=mode, pairing=pairing)

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps, blends or pastes."""
        return self.sampler.shares

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and blend."""
        batch, _, height, width = images.shape
        return Plan(self.sampler.draw(batch, (height, width), self.generator, kinds=self.kinds).apply(images))
