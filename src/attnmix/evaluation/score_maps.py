"""The maps whose sense of place is scored: a model's attention, and what needs no trained attention."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.evaluation.label_content import centre_prior
from attnmix.evaluation.subject import Subject

ATTENTION = "attention"
ScoreMap = Callable[[Tensor], Tensor]


def score_maps(subject: Subject) -> dict[str, ScoreMap]:
    """The maps by name, the subject's attention first: normalised images `[B, C, H, W]` -> scores `[B, gh, gw]`.

    Attention is `Subject.saliency`. The controls: an untrained network's attention, a bump on the centre, the one
    token with the brightest pixels, and the whole image.

    Raises ValueError for attention that is not finite, when it is read.
    """
    untrained = replace(subject, label=f"{subject.label}, untrained", model=subject.fresh())

    def grid(images: Tensor) -> tuple[int, int]:
        assert subject.view is not None
        return subject.view.grid_size(images.shape[-2:])

    def attention(of: Subject) -> ScoreMap:
        return lambda images: _finite(of.saliency(images), of).unflatten(1, grid(images))

    def prior(images: Tensor) -> Tensor:
        bump = centre_prior(grid(images)).to(images.device)
        return bump.expand(len(images), -1).unflatten(1, grid(images))

    return {
        ATTENTION: attention(subject),
        "untrained network": attention(untrained),
        "centre prior": prior,
        "brightest token": lambda images: brightest_token(subject.to_pixels(images), grid(images)),
        "whole image": lambda images: images.new_ones(len(images), *grid(images)),
    }


def _finite(scores: Tensor, of: Subject) -> Tensor:
    if not scores.isfinite().all():
        raise ValueError(f"{of.label}: its attention is not finite; are its weights?")
    return scores


def about_attention(subject: Subject) -> str:
    """A note: which attention is scored."""
    assert subject.view is not None
    if subject.view.has_class_row:
        return "attention: what the last attention's class row gives each image token, mean over heads"
    return "attention: no class row; what each image token gets from all of them in the last attention"


def brightest_token(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """1 at the token with the greatest mean brightness, 0 elsewhere: `[B, C, H, W]` -> `[B, gh, gw]`.

    The first in the order of tokens where several are.
    """
    brightness = F.adaptive_avg_pool2d(pixels.mean(dim=1, keepdim=True), grid).flatten(1)
    # argmax may return any of several equal maxima on a GPU
    first = (brightness == brightness.amax(dim=1, keepdim=True)).cumsum(dim=1).eq(1).byte().argmax(dim=1)
    return F.one_hot(first, brightness.shape[1]).to(pixels.dtype).unflatten(1, grid)


def threshold_mass(scores: Tensor, mass: float = 0.9) -> Tensor:
    """The smallest set of tokens that holds a share of the scores' total, as a mask (DINO; TransMix section 4.4).

    Of tokens with equal scores the first are kept; of a map that is equal everywhere all are.

    Args:
        scores: `[B, gh, gw]`, none below 0.
        mass: the share held at least, in (0, 1].

    Returns:
        `[B, gh, gw]` bool, True = kept.

    Raises ValueError for a share out of range.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass {mass!r}: expected a share above 0 and up to 1")
    flat = scores.flatten(1).double()
    ordered, order = flat.sort(dim=1, descending=True, stable=True)
    held = ordered.cumsum(dim=1)
    needed = held - ordered < mass * held[:, -1:]  # what comes before does not hold enough
    kept = torch.zeros_like(needed).scatter(1, order, needed)
    equal = ordered[:, :1] == ordered[:, -1:]
    return (kept | equal).unflatten(1, scores.shape[1:])


def to_image_size(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask of tokens `[B, gh, gw]` as one of pixels `[B, H, W]`: each pixel as its token."""
    return F.interpolate(mask[:, None].float(), size, mode="nearest-exact")[:, 0] > 0.5
