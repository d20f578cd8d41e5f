"""CutMix (Yun et al., 2019), alone or in turns with Mixup as DeiT trains."""

from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.mixing import MixSampler


class CutMix(MixMethod):
    """CutMix (Yun et al., 2019): a random box of one image on another, labels by area.

    The label weight is the exact share of pixels after the box is clipped at the border. DeiT's recipe, the
    baseline of all four papers, draws Mixup half of the time: `mixup_prob=0.5`.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        cutmix_alpha: the box's area is drawn from Beta(alpha, alpha).
        mixup_prob: share of the mixed steps that draw Mixup instead.
        mixup_alpha: Mixup's weight is drawn from Beta(alpha, alpha).
        mode: one draw per `batch`, `pair` or `elem`.
        pairing: partner by `flip`, `roll` or `shuffle`.
        smoothing: label smoothing.
        seed: of the method's generator.
    """

    about = About(paper="Yun et al., ICCV 2019", images="a random box pasted", labels="by area")

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        cutmix_alpha: float = 1.0,
        mixup_prob: float = 0.0,
        mixup_alpha: float = 0.8,
        mode: str = "batch",
        pairing: str = "flip",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        self.sampler = MixSampler(prob, mixup_prob, mixup_alpha, cutmix_alpha, mode, pairing)

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps, blends or pastes."""
        return self.sampler.shares

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and paste, or blend."""
        batch, _, height, width = images.shape
        return Plan(self.sampler.draw(batch, (height, width), self.generator, kinds=self.kinds).apply(images))
