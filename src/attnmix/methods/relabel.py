"""ReLabel (Yun et al., CVPR 2021): what a teacher sees in an image is its label."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan
from attnmix.methods.label_source import Taught
from attnmix.mixing import Draw, class_labels, soft_targets
from attnmix.mixing.draws import check_choice
from attnmix.mixing.label_maps import pooled_distribution


class ReLabel(Taught):
    """ReLabel (Yun et al., CVPR 2021): CutMix whose labels are a teacher's, pooled over what the crop shows.

    An image's label is the softmax of the mean of its score map (LabelPooling, section 3.2), which covers the
    image as it is cropped for training; the ground truth does not count. Labels are mixed by area as CutMix's
    are. If the teacher is sure of the ground truth everywhere, it is CutMix.

    Args:
        teacher: a frozen model asked once a step, without gradient: timm's name for it, the folder of an exported
            run, a module, or `self`, the model under training as it stands. Without one labels have to come with
            label maps.
        teacher_options: of `timm.create_model`, for a teacher given by name; `pretrained` is on by default.
        classes: `multi`, the whole distribution, or `single`, its best class alone (the paper's ablation).
        smoothing: label smoothing; the paper's labels have none but their own.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range; neither teacher nor label maps.
    """

    about = About(
        paper="Yun et al., CVPR 2021",
        images="as CutMix",
        labels="a teacher's distribution over the crop, by area",
        teacher_forwards=1,
        needs=("a teacher or label maps",),
    )
    own_labels = True

    def __init__(
        self,
        *,
        teacher: str | nn.Module | None = None,
        teacher_options: Mapping[str, Any] | None = None,
        classes: str = "multi",
        smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(teacher=teacher, teacher_options=teacher_options, smoothing=smoothing, **options)
        check_choice("classes", classes, ("multi", "single"))
        self.classes = classes

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """The mix, and what the teacher says of the unmixed images."""
        soft_targets(class_labels(labels), num_classes=self.num_classes)  # found wrong here, as by all methods
        plan = super().plan(view, images, labels)
        seen = pooled_distribution(self.scores(view, images, labels))
        if self.classes == "single":
            seen = F.one_hot(seen.argmax(dim=1), self.num_classes).float()
        return replace(plan, targets=soft_targets(seen, num_classes=self.num_classes, smoothing=self.smoothing))

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """CutMix's box."""
        size = images.shape[-2], images.shape[-1]
        return self.sampler.paste(len(images), size, self.generator)
