"""Co-Mixup (Kim, Choo, Jeong, Song, ICLR 2021): partners and masks of a whole batch, chosen together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.input_saliency import input_saliency
from attnmix.methods.pasting import Pasting
from attnmix.mixing import Draw, PasteMask
from attnmix.mixing.block_masks import (
    Array,
    block_grid,
    block_saliency,
    check_maxflow,
    checked_blocks,
    checked_levels,
    drawn_blocks,
    spread_blocks,
)
from attnmix.mixing.draws import check_choice
from attnmix.mixing.joint_masks import JointCost, choose_together, compatibility
from attnmix.mixing.whole_numbers import is_whole


def salient_places(saliency: Tensor, window: tuple[int, int]) -> Tensor:
    """Where the most salient window of each image lies, as a share of its sides: `[B, H, W]` -> `[B, 2]`.

    Windows lie an eighth of their side apart, at least a pixel: with 4 blocks on CIFAR as in the authors' code.
    """
    step = max(window[0] // 8, 1), max(window[1] // 8, 1)
    means = F.avg_pool2d(saliency[:, None].nan_to_num(0, 0, 0), window, stride=step)[:, 0]
    at = means.flatten(1).argmax(dim=1)
    row, column = at // means.shape[2] * step[0], at % means.shape[2] * step[1]
    return torch.stack([row / saliency.shape[1], column / saliency.shape[2]], dim=1)


class CoMixup(Pasting):
    """Co-Mixup (Kim, Choo, Jeong, Song, ICLR 2021): partners and masks of a batch, chosen together.

    One more forward of the unmixed batch, in evaluation mode, and its backward pass to the pixels alone give each
    pixel's saliency. On a grid of blocks, partners and masks are chosen that keep much saliency, are smooth, and
    are diverse: it costs to hold an image of which the other outputs hold more than tau (the supermodular term,
    made modular at the others' masks as in the paper's algorithm), and to repeat another's pair. Sweeps over the
    outputs give each in turn its best partner and mask, by graph cuts.

    Departure from the paper: there an output may hold any number of images. Here output i holds image i and at
    most one other, because a label is of two images; the objective is the paper's, restricted to such outputs. It
    chooses partners itself, in groups of at most `part` images, so that it has no `pairing`. An output that is
    best left alone stays itself, and so does the only image of a group. With `beta=gamma=eta=0` and `levels=2`
    each block is of the more salient image. Saliency is that of the smoothed labels. Left out: the authors'
    further loss on the unmixed batch (`clean_lam`). The graphs are cut on the CPU, which takes about 0.2 to 0.4 s
    of a step of 128 images of 48 to 224 pixels: the step waits for the device once.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        mixup_prob: share of the mixed steps that draw Mixup instead.
        mixup_alpha: Mixup's weight is drawn from Beta(alpha, alpha).
        mode: of Mixup, one draw per `batch`, `pair` or `elem`.
        blocks: how many blocks a side has, or several of which each step draws one; of a side that it does not
            divide, the next smaller number that does.
        levels: of a mask: 2 is hard, 3 (the authors' code) knows halves. The graphs, and with them the time on
            the CPU, grow with their square.
        beta: smoothness of the masks, divided by the number of blocks.
        gamma: diversity of the outputs.
        eta: of the prior, divided by the number of blocks.
        dirichlet_alpha: the prior's chance of each image is drawn from a symmetric Dirichlet(alpha).
        tau: how much of an image the other outputs may hold, in images, before it counts.
        threshold: `max`, max(tau, use) as in the paper, or `hard`, the use where it is above tau, else nothing
            (the authors' code).
        omega: the part of compatibility, the distance between most salient places, in the matrix A.
        part: the most images that are chosen together; a batch is dealt out evenly.
        iterations: sweeps over the outputs; fewer where one changes nothing.
        resolve: before the last sweep, charge an output that holds the same pair as another (the authors' code).
        label: the source's label weight by `area`, or read from the training forward by `transmix`,
            `transmix-image` (models without class token) or `tl-align`.
        smoothing: label smoothing.
        seed: of the method's generator.

    Raises:
        ValueError: a value outside its range, naming it; PyMaxflow is missing.
    """

    about = About(
        paper="Kim, Choo, Jeong, Song, ICLR 2021",
        images="masks and partners of a batch, chosen together",
        labels="by area",
        forwards=1,
        backwards=1,
        more="graph cuts on the CPU",
        needs=("the package PyMaxflow",),
    )

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        mixup_prob: float = 0.0,
        mixup_alpha: float = 0.8,
        mode: str = "batch",
        blocks: int | Sequence[int] = 4,
        levels: int = 3,
        beta: float = 0.32,
        gamma: float = 1.0,
        eta: float = 0.05,
        dirichlet_alpha: float = 2.0,
        tau: float = 0.83,
        threshold: str = "max",
        omega: float = 0.001,
        part: int = 20,
        iterations: int = 4,
        resolve: bool = True,
        label: str = "area",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        # all of `Pasting`'s but pairing and cutmix_alpha, which would do nothing here
        super().__init__(
            num_classes=num_classes,
            prob=prob,
            mixup_prob=mixup_prob,
            mixup_alpha=mixup_alpha,
            mode=mode,
            label=label,
            smoothing=smoothing,
            seed=seed,
        )
        check_choice("threshold", threshold, ("max", "hard"))
        self.blocks = checked_blocks(blocks)
        for name, value in (("beta", beta), ("gamma", gamma), ("eta", eta), ("tau", tau)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}, but must be finite and at least 0")
        if not (dirichlet_alpha > 0 and math.isfinite(dirichlet_alpha)):
            raise ValueError(f"dirichlet_alpha is {dirichlet_alpha}, but Dirichlet needs a finite alpha above 0")
        if not 0 <= omega <= 1:
            raise ValueError(f"omega is {omega}, but a part lies between 0 and 1")
        for name, number, least in (("part", part, 2), ("iterations", iterations, 1)):
            if not (is_whole(number) and number >= least):
                raise ValueError(f"{name} is {number!r}, but must be a whole number, at least {least}")
        self.top = checked_levels(levels) - 1
        self.beta = beta
        self.gamma = gamma
        self.eta = eta
        self.dirichlet_alpha = dirichlet_alpha
        self.tau = tau
        self.threshold = threshold
        self.omega = omega
        self.part = part
        self.iterations = iterations
        self.resolve = resolve

    def bind(self, view: BackboneView) -> None:
        """Needs PyMaxflow."""
        super().bind(view)
        check_maxflow("co-mixup")

    @torch.no_grad()
    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """Choose partners and masks by the saliency of blocks."""
        size = images.shape[-2], images.shape[-1]
        grid = block_grid(size, drawn_blocks(self.blocks, self.kinds))
        pixels = input_saliency(view, images, self.targets(labels))
        places = salient_places(pixels, (size[0] // grid[0], size[1] // grid[1]))
        partners, levels = self.chosen_on_cpu(block_saliency(pixels, grid), places)
        mask = spread_blocks(levels.bool() if self.top == 1 else levels / self.top, size)
        return PasteMask(partners, mask)

    def chosen_on_cpu(self, saliency: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Partners `[B]` and levels `[B, r, c]`, int64: one copy of what is known to the CPU, and one back."""
        grid = saliency.shape[1:]
        known = torch.cat([saliency.flatten(1), places], dim=1).cpu().double().numpy()
        levels, partners = self.choose(known[:, :-2].reshape(-1, *grid), known[:, -2:])
        chosen = np.concatenate([partners[:, None], levels.reshape(len(levels), -1)], axis=1)
        back = torch.from_numpy(chosen).to(saliency.device, non_blocking=True)
        return back[:, 0], back[:, 1:].unflatten(1, grid)

    def choose(self, saliency: Array, places: Array) -> tuple[Array, Array]:
        """Levels `[B, r, c]` and partners `[B]`, group by group; saliency `[B, r, c]`, places `[B, 2]`."""
        batch = len(saliency)
        levels, partners = np.zeros(saliency.shape, dtype=np.int64), np.arange(batch)
        start = torch.randint(self.top + 1, saliency.shape, generator=self.generator).numpy()
        chance = self._gamma(batch)
        groups = math.ceil(batch / self.part)
        for group in range(groups):
            members = np.arange(group, batch, groups)
            order = torch.randperm(len(members), generator=self.generator).numpy()
            first = np.empty(len(members), dtype=np.int64)
            first[order] = np.roll(order, 1)  # a ring, in which nobody is their own partner
            alpha = chance[members] / chance[members].sum()
            cost = JointCost(
                saliency=saliency[members],
                scarcity=-np.log(alpha + 1e-8),
                compatible=compatibility(places[members], self.omega),
                top=self.top,
                beta=self.beta,
                gamma=self.gamma,
                eta=self.eta,
                tau=self.tau,
                law=self.threshold,
            )
            chosen = choose_together(cost, start[members], first, iterations=self.iterations, resolve=self.resolve)
            levels[members], partners[members] = chosen[0], members[chosen[1]]
        return levels, partners

    def _gamma(self, batch: int) -> Array:
        """Gamma(alpha, 1) for every image, by inversion: scaled to sum 1 they are a draw of Dirichlet's."""
        from scipy.special import gammaincinv

        uniform = torch.rand(batch, generator=self.generator, dtype=torch.float64).numpy()
        return gammaincinv(self.dirichlet_alpha, uniform).clip(min=1e-300)
