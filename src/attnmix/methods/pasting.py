"""What the methods share that paste by a rule of their own."""

from abc import abstractmethod

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.methods.label_names import named_label
from attnmix.mixing import Draw, Keep, MixSampler


class Pasting(MixMethod):
    """A method that draws Mixup, or pastes in its own way: a subclass says how, in `paste`.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        cutmix_alpha: the source's share of the image is drawn from Beta(alpha, alpha), where the method draws one.
        mixup_prob: share of the mixed steps that draw Mixup instead.
        mixup_alpha: Mixup's weight is drawn from Beta(alpha, alpha).
        mode: one draw per `batch`, `pair` or `elem`.
        pairing: partner by `flip`, `roll` or `shuffle`.
        label: the source's label weight by `area`, or read from the training forward by `transmix`,
            `transmix-image` (models without class token) or `tl-align`.
        smoothing: label smoothing.
        seed: of the method's generator.
    """

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
        label: str = "area",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        self.sampler = MixSampler(prob, mixup_prob, mixup_alpha, cutmix_alpha, mode, pairing)
        self.label = named_label(label)

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps, blends or pastes."""
        return self.sampler.shares

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw whether to keep, to blend or to paste, and do it."""
        kind = self.sampler.kind(self.kinds)
        if kind == "keep":
            return Plan(Keep().apply(images))
        if kind == "blend":
            return Plan(self.sampler.blend(len(images), self.generator).apply(images))
        return Plan(self.paste(view, images, labels).apply(images))

    @abstractmethod
    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """What is pasted where, for images `[B, C, H, W]`."""

    def partners(self, images: Tensor) -> Tensor:
        """Each image's partner, `[B]` int64, on the images' device."""
        return self.sampler.partners(len(images), self.generator).to(images.device, non_blocking=True)

    def pasted_shares(self, images: Tensor) -> Tensor:
        """The source's wished share of each image, `[B]` float32 on the CPU, by `mode` and `cutmix_alpha`."""
        drawn = self.sampler.pasted_share(len(images), self.generator)
        return self.sampler.spread(drawn, len(images))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) from this method's generator, on the CPU."""
        return torch.rand(*shape, generator=self.generator)
