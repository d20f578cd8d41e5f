"""Partners and masks of a whole batch chosen together (Co-Mixup). In NumPy, on the CPU.

Output j holds image j, and image partners[j] in the share z of each block; o_j `[n]` is its share of every image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnmix.mixing.block_masks import Array, cheapest_levels, level_energy

_FIRST = 4  # partners whose graphs are cut before the others' bounds are looked at


def compatibility(places: Array, omega: float) -> Array:
    """Which images the same output had better hold: A = (1 - omega) I + omega D (Co-Mixup, A_c).

    D is the distance between the images' most salient places, scaled to a mean row sum of 1. Images far from
    each other cost more in two outputs than in one.

    Args:
        places: `[n, 2]`, each image's most salient place.
        omega: the part of D.

    Returns:
        `[n, n]`, symmetric; the identity where all places are the same.
    """
    distance = np.abs(places[:, None] - places).sum(axis=2)
    total = distance.sum()
    own = np.eye(len(places))
    return own if total == 0 else (1 - omega) * own + omega * distance * len(places) / total


def usage(levels: Array, partners: Array, top: int) -> Array:
    """o: each output's share of every image, `[n, n]`, rows sum to 1."""
    share = levels.mean(axis=(1, 2)) / top
    index = np.arange(len(partners))
    held = np.zeros((len(partners), len(partners)))
    np.add.at(held, (index, index), 1 - share)
    np.add.at(held, (index, partners), share)
    return held


def over_threshold(used: Array, tau: float, law: str) -> Array:
    """What counts of an image's use: max(tau, use) by the law `max`; by `hard` the use above tau, else 0."""
    return np.maximum(used, tau) if law == "max" else np.where(used > tau, used, 0.0)


@dataclass(frozen=True)
class JointCost:
    """Co-Mixup's objective over the outputs that are chosen together.

    Attributes:
        saliency: `[n, r, c]`, each image's sums to 1.
        scarcity: `[n]`, what holding an image costs by the prior, -log alpha.
        compatible: A, `[n, n]`.
        top: m, the highest level of a mask.
        beta: smoothness of the masks.
        gamma: diversity of the outputs.
        eta: of the prior.
        tau: how much the other outputs may hold of an image before it counts.
        law: of the threshold, `max` or `hard`.
    """

    saliency: Array
    scarcity: Array
    compatible: Array
    top: int = 2
    beta: float = 0.32
    gamma: float = 1.0
    eta: float = 0.05
    tau: float = 0.83
    law: str = "max"

    @property
    def cells(self) -> int:
        """Blocks of an image."""
        return self.saliency[0].size

    def holding(self) -> Array:
        """What each block costs in an output: less its saliency, plus the prior, `[n, r, c]`."""
        return self.eta / self.cells * self.scarcity[:, None, None] - self.saliency

    def crowding(self, used: Array) -> Array:
        """What a block of each image costs because of how much the other outputs hold, `[n]`.

        The supermodular term, made modular at what the others hold: 2 gamma max(tau, A sum_{k != j} o_k).
        """
        return 2 * self.gamma * over_threshold(self.compatible @ used, self.tau, self.law)

    def smoothness(self, count: int) -> tuple[Array, Array]:
        """Weights of the borders, of the blocks below and right of another, for so many masks."""
        rows, columns = self.saliency.shape[1:]
        weight = self.beta / self.cells
        return np.full((count, rows - 1, columns), weight), np.full((count, rows, columns - 1), weight)

    def ramp(self, dearer: Array) -> Array:
        """What every level costs where the partner's block is dearer: `[n, r, c]` -> `[n, m + 1, r, c]`."""
        return np.arange(self.top + 1)[:, None, None] / self.top * dearer[:, None]

    def total(self, levels: Array, partners: Array) -> float:
        """The whole objective of masks `[n, r, c]` and partners `[n]`.

        - saliency kept + beta smoothness + eta prior + gamma sum_{j != k} o_j . A o_k, its threshold left out.
        """
        holding = self.holding()
        unary = self.ramp(holding[partners] - holding)
        modular = holding.sum() + level_energy(levels, unary, *self.smoothness(len(levels))).sum()
        held = usage(levels, partners, self.top)
        other = held.sum(axis=0) - held
        return float(modular + self.gamma * self.cells * (held * (other @ self.compatible)).sum())


def best_partner(cost: JointCost, output: int, used: Array, charge: Array) -> tuple[int, Array, float]:
    """The partner and the mask of least cost for one output, given what the others hold; exactly.

    A mask cannot cost less than its blocks do without smoothness, so that only partners that might win by that
    bound have their graphs cut.

    Args:
        cost: the objective.
        output: j.
        used: `[n]`, how much the other outputs hold of each image.
        charge: `[n]`, what a block of each image costs besides as a partner.

    Returns:
        The partner, the levels `[r, c]`, and their cost beside the unmixed image's, at most 0.
    """
    block = cost.holding() + cost.crowding(used)[:, None, None]
    dearer = block + charge[:, None, None] - block[output]
    bound = np.minimum(dearer, 0).sum(axis=(1, 2))
    bound[output] = np.inf
    best, mask, least = -1, np.zeros(dearer.shape[1:], dtype=np.int64), 0.0
    order = np.argsort(bound, kind="stable")
    for some in (order[:_FIRST], order[_FIRST:]):
        some = some[bound[some] < least]
        if not len(some):
            break
        unary, borders = cost.ramp(dearer[some]), cost.smoothness(len(some))
        levels = cheapest_levels(unary, *borders)
        energy = level_energy(levels, unary, *borders)
        if energy.min() < least:
            at = int(energy.argmin())
            best, mask, least = int(some[at]), levels[at], float(energy[at])
    return best, mask, least


def same_pair_charge(levels: Array, partners: Array, amount: float) -> Array:
    """Two outputs of the same two images: the later one is charged for its partner, `[n, n]`."""
    index = np.arange(len(partners))
    mixed = levels.max(axis=(1, 2)) > 0
    twice = mixed & mixed[partners] & (partners[partners] == index) & (partners < index)
    charge = np.zeros((len(partners), len(partners)))
    charge[index[twice], partners[twice]] = amount
    return charge


def choose_together(
    cost: JointCost, levels: Array, partners: Array, *, iterations: int, resolve: bool = True
) -> tuple[Array, Array]:
    """Co-Mixup's algorithm: sweeps over the outputs, each given the best partner and mask while the others stay.

    Args:
        cost: the objective.
        levels: `[n, r, c]`, where to start.
        partners: `[n]`, other images than one's own; an output that is best left unmixed keeps its last one.
        iterations: sweeps; fewer where one changes nothing.
        resolve: before the last one, charge outputs that repeat another's pair.

    Returns:
        The levels and the partners.
    """
    levels, partners = levels.copy(), partners.copy()
    if len(partners) == 1:
        return np.zeros_like(levels), partners
    held = usage(levels, partners, cost.top)
    charge = np.zeros_like(held)
    settled = False
    for sweep in range(iterations):
        last = sweep == iterations - 1
        if resolve and last and sweep > 0:
            charge = same_pair_charge(levels, partners, cost.gamma / cost.cells)
            settled = settled and not charge.any()
        if settled:
            continue
        settled = True
        for output in range(len(partners)):
            best, mask, _ = best_partner(cost, output, held.sum(axis=0) - held[output], charge[output])
            partner = partners[output] if best < 0 else best
            if partner != partners[output] or not np.array_equal(mask, levels[output]):
                settled = False
            partners[output], levels[output] = partner, mask
            share = mask.mean() / cost.top
            held[output] = 0
            held[output, output] = 1 - share
            held[output, partner] += share
    return levels, partners
