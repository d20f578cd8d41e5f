"""TokenMixup's horizontal step as pure tensors: who is mixed with whom, which tokens move, what label follows.

Equations are those of Choi et al., NeurIPS 2022. Saliency S `[B, N]` has one number, not negative, per image
token. Here the source is the partner, whose tokens are put in; the target is the sample they are put into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.mixing.targets import mix_targets

# Numbers of saliency differences [b', chunk, N] held at once: 64 MiB in float32.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class TokenSwap:
    """Which tokens of each sample are taken from which partner. The order of the batch never changes.

    Attributes:
        partner: `[B]` int64; a sample that is left alone is its own partner.
        mask: `[B, N]` bool over the image tokens, True = token taken from the partner.
        source_weight: `[B]` float32 in [0, 1], weight of the partner's label.
    """

    partner: Tensor
    mask: Tensor
    source_weight: Tensor

    def apply(self, tokens: Tensor) -> Tensor:
        """Swap tokens at the same place (eq. 10): `[B, prefix + N, D]` or `[B, gh, gw, D]` -> the same shape.

        Prefix tokens stay. Partners' tokens are those given, not yet mixed; both sides keep their gradient.
        """
        if tokens.ndim == 3:
            mask = F.pad(self.mask, (tokens.shape[1] - self.mask.shape[1], 0))
        else:
            mask = self.mask.unflatten(1, tokens.shape[1:-1])
        return torch.where(mask[..., None], tokens[self.partner], tokens)

    def relabel(self, target: Tensor) -> Tensor:
        """Mix label distributions `[B, C]` as the tokens were mixed (eq. 11)."""
        return mix_targets(target, self.partner, self.source_weight)


def total_gain(saliency: Tensor, *, rho: float) -> Tensor:
    """Saliency that each sample would gain from each partner, over the threshold (eq. 6).

    C_ij = sum over t of max(S_j,t - S_i,t - rho, 0).

    Args:
        saliency: `[B, N]`.
        rho: least gain for which a token is worth replacing.

    Returns:
        `[B, B]`, rows for samples, columns for partners.
    """
    own = saliency[:, None]
    step = max(1, CHUNK_ELEMENTS // max(1, own.numel()))
    parts = [((part - own) - rho).clamp_min(0).sum(dim=2) for part in saliency.split(step)]
    return torch.cat(parts, dim=1)


def match_partners(gain: Tensor, easy: Tensor) -> Tensor:
    """Partners of the easy samples that maximise the summed gain, each used at most once (eq. 7).

    Worked out on the CPU: the one place of a step where a GPU is waited for. Gains that are not numbers count as
    none.

    Args:
        gain: `[B, B]`.
        easy: `[B]` bool, True = to be matched.

    Returns:
        `[B]` int64; a sample that is not easy is its own partner, and an easy one may be, which changes nothing.
    """
    from scipy.optimize import linear_sum_assignment  # the other methods run without SciPy

    matrix = gain.nan_to_num(0.0, posinf=0.0).double()
    both = torch.cat((matrix, easy[:, None]), dim=1).cpu().numpy()  # one copy, hence one wait
    rows = both[:, -1].nonzero()[0]
    partner = np.arange(len(both))
    partner[rows] = linear_sum_assignment(both[rows, :-1], maximize=True)[1]
    return torch.from_numpy(partner).to(gain.device, non_blocking=True)


def swap_salient(saliency: Tensor, easy: Tensor, *, rho: float) -> TokenSwap:
    """Match easy samples and swap every token in which the partner is more salient by more than rho.

    Args:
        saliency: `[B, N]`.
        easy: `[B]` bool, True = to be mixed (eq. 3).
        rho: the threshold.
    """
    partner = match_partners(total_gain(saliency, rho=rho), easy)
    return _swap(saliency, partner, _salient(saliency, partner, easy, rho))


def swap_random(saliency: Tensor, easy: Tensor, *, rho: float, generator: torch.Generator) -> TokenSwap:
    """The paper's random baseline (supplement H.2): random partners, random tokens, equally many as on average.

    As many tokens per easy sample as its partner leads by more than rho, on the mean over the easy samples.

    Args:
        saliency: `[B, N]`; decides how many tokens are swapped, and the label.
        easy: `[B]` bool, True = to be mixed.
        rho: the threshold.
        generator: on the CPU.
    """
    batch, tokens = saliency.shape
    own = torch.arange(batch, device=saliency.device)
    drawn = torch.randperm(batch, generator=generator).to(saliency.device, non_blocking=True)
    partner = torch.where(easy, drawn[(easy.cumsum(dim=0) - 1).clamp_min(0)], own)
    place = torch.rand(batch, tokens, generator=generator).argsort(dim=1)
    place = place.to(saliency.device, non_blocking=True)
    count = _salient(saliency, partner, easy, rho).sum() / easy.sum().clamp_min(1)
    others = partner != own
    return _swap(saliency, partner, (place < count.round()) & (easy & others)[:, None])


def _salient(saliency: Tensor, partner: Tensor, easy: Tensor, rho: float) -> Tensor:
    """`[B, N]` bool, True where the partner leads by more than rho (eq. 9), in easy samples alone."""
    return (saliency[partner] - saliency > rho) & easy[:, None]


def _swap(saliency: Tensor, partner: Tensor, mask: Tensor) -> TokenSwap:
    """Eq. 11: the label follows the saliency of the tokens on both sides; none at all, no weight."""
    source = torch.where(mask, saliency[partner], 0.0).sum(dim=1)
    kept = torch.where(mask, 0.0, saliency).sum(dim=1)
    weight = source / (source + kept)
    # a sample none of whose tokens move keeps its label to the bit, whatever its saliency is
    return TokenSwap(partner, mask, torch.where(source > 0, weight, 0.0).float())
