"""Attentive CutMix (Walawalkar et al., ICASSP 2020): the patches of the source that a network looks at most."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.pasting import Pasting
from attnmix.methods.patch_saliency import PatchSaliency
from attnmix.mixing import Draw, PasteMask
from attnmix.mixing.patch_masks import top_cells
from attnmix.mixing.whole_numbers import is_whole

PAPER_PATCHES = 49  # of the 7 x 7 grid that top_k is counted on


def patch_counts(share: Tensor, patches: int) -> Tensor:
    """How many of the patches a share `[B]` of them is: rounded, at least one, and never all."""
    return (share.double() * patches).round().long().clamp(min=1).clamp(max=patches - 1)


def patches_to_pixels(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask of patches `[B, h, w]` for pixels `[B, H, W]`: each is of the patch in which its centre lies."""
    return F.interpolate(mask[:, None].float(), size=size, mode="nearest-exact")[:, 0].bool()


class AttentiveMix(Pasting):
    """Attentive CutMix (Walawalkar et al., ICASSP 2020): the source's most attended patches, pasted in place.

    A frozen network looks at the unmixed images. The patches are the places of its last map (7 x 7 for the paper's
    ResNet-50 at 224 pixels); the `top_k` strongest of the source go onto the target where they were, and the
    label weight is their exact share of the pixels. A CNN's strength is the mean over its channels, a
    transformer's the attention on its image tokens.

    Args:
        num_classes: classes of the labels.
        top_k: how many patches of a 7 x 7 grid are pasted, 1 to 48: on another grid, the same share of its
            patches, k / 49, rounded, and at least one. Or that share itself, between 0 and 1 (the authors take 6
            of 8 x 8 for CIFAR: 0.09375). Or None: a share drawn by `cutmix_alpha` and `mode` (OpenMixup's
            variant).
        provider: who looks: timm's name of a CNN or a transformer, with its pretrained weights; the folder of an
            exported run; a module; or `self`, the model under training, in evaluation mode.
        provider_options: of `timm.create_model`, for a name; `pretrained` is on by default.
        provider_size: the shorter side, in pixels, at which images are shown to the provider; None leaves them as
            they are. Small images need it: a ResNet-50 has a single patch for 32 pixels.
        attention: what is read of a transformer, `class`, `image`, `class-rollout` or `image-rollout`, see
            `AttentionGuide`; None is `class` where there is a class row, else `image`.
        block: whose attention, of a transformer; -1 is the last.
        channels: of a CNN's map, the `mean`, or the `last` one alone (the authors' code).
        options: as `Pasting`'s. `cutmix_alpha`, and what `mode` says of pasting, count with `top_k=None` only.

    Raises:
        ValueError: a value outside its range, naming it; when bound, a provider that cannot be made or does not
            fit the images.
    """

    about = About(
        paper="Walawalkar et al., ICASSP 2020",
        images="the source's most attended patches, in place",
        labels="by area",
        teacher_forwards=1,
        needs=("a teacher: ResNet-50 (download), any model, or `provider=self`",),
    )
    teacher_option = "provider"

    def __init__(
        self,
        *,
        top_k: int | float | None = 6,
        provider: str | nn.Module = "resnet50",
        provider_options: Mapping[str, Any] | None = None,
        provider_size: int | None = None,
        attention: str | None = None,
        block: int = -1,
        channels: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.share = None if top_k is None else _share(top_k)
        self.saliency = PatchSaliency(
            provider, provider_options, size=provider_size, attention=attention, block=block, channels=channels
        )

    def bind(self, view: BackboneView) -> None:
        """Makes the provider; needs a map of more than one patch."""
        super().bind(view)
        self.saliency.bind(view)

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """Each partner's patches."""
        if self.share is None:
            share = self.pasted_shares(images)
        else:
            share = torch.full((len(images),), self.share, dtype=torch.float64)
        partners = self.partners(images)
        saliency = self.saliency(view, images)[partners]
        counts = patch_counts(share, saliency[0].numel()).to(images.device, non_blocking=True)
        mask = top_cells(saliency.flatten(1), counts).view(saliency.shape)
        return PasteMask(partners, patches_to_pixels(mask, (images.shape[-2], images.shape[-1])))


def _share(top_k: int | float) -> float:
    """A number of 49 patches, or a share of them, as a share."""
    whole = is_whole(top_k)
    if not (0 < top_k < PAPER_PATCHES if whole else 0 < top_k < 1):
        raise ValueError(
            f"top_k is {top_k}, but must be a whole number of 49 patches, 1 to 48, or a share between 0 and 1"
        )
    return top_k / PAPER_PATCHES if whole else top_k
