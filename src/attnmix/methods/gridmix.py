"""GridMix (Baek et al., Pattern Recognition 2021): cells of a grid from one image or the other, and told apart."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan, Run
from attnmix.methods.frozen import only_size
from attnmix.methods.heads import added_linear, of_the_same_seed
from attnmix.methods.pasting import Pasting
from attnmix.mixing.draws import check_choice
from attnmix.mixing.grid_masks import PasteCells, cell_means, chosen_cells
from attnmix.mixing.whole_numbers import is_whole


def local_loss(
    classify: Callable[[Tensor], Tensor],
    tokens: Tensor,
    cells: Tensor,
    targets: Tensor,
    source_index: Tensor,
    *,
    image_size: tuple[int, int],
) -> Tensor:
    """The local context loss: each cell's mean feature against the label of the image it comes from.

    Args:
        classify: `[n, D]` -> logits `[n, C]`.
        tokens: `[B, gh, gw, D]` final image tokens of the mixed image.
        cells: `[B, rows, columns]` bool, True = source cell.
        targets: `[B, C]` the unmixed images' label distributions.
        source_index: `[B]` int64.
        image_size: height and width in pixels.

    Returns:
        A scalar, the mean over cells and images.
    """
    given = tokens.dtype
    tokens = tokens.to(torch.promote_types(given, torch.float32))
    means = cell_means(tokens, (cells.shape[1], cells.shape[2]), image_size=image_size)
    logits = classify(means.flatten(0, 2).to(given)).float()
    labels = torch.where(cells.flatten(1)[:, :, None], targets[source_index][:, None], targets[:, None])
    return F.cross_entropy(logits, labels.flatten(0, 1))


class GridMix(Pasting):
    """GridMix (Baek et al., Pattern Recognition 2021): a random part of a grid's cells from the source.

    The label weight is the source's exact share of the pixels. Beside it every cell is classified on its own
    (local context mapping): the mean of its final tokens, through a last layer that it does not share with the
    model, against the label of the image the cell is from. In images whose sides are no multiple of the grid's,
    cells differ by a pixel. With a grid as fine as the patches it is token-level random mixing.

    Args:
        grid: rows and columns of cells, or one number for both; 4 is this package's choice.
        cells: `count`, as many cells as make up the drawn share; `bernoulli`, each with that chance.
        local_weight: of the local loss; 1, both losses alike, is this package's choice; 0 leaves it out, and the
            features unread.
        local_head: classify cells by a linear layer of their own (paper), trained and saved, and never part of
            the exported model; or by the model's own classifier.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range, naming it; a grid finer than the image or, with the local loss,
            than the model's final tokens.
    """

    about = About(
        paper="Baek et al., Pattern Recognition 2021",
        images="random cells of a grid pasted",
        labels="by area, and per cell",
        parameters=True,
    )

    def __init__(
        self,
        *,
        grid: int | Sequence[int] = 4,
        cells: str = "count",
        local_weight: float = 1.0,
        local_head: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        sides = tuple(grid) if isinstance(grid, Iterable) else (grid, grid)
        if len(sides) != 2 or not all(is_whole(side) and side >= 1 for side in sides):
            raise ValueError(f"grid is {grid}, but must be rows and columns of cells, whole numbers from 1")
        if not (local_weight >= 0 and math.isfinite(local_weight)):
            raise ValueError(f"local_weight is {local_weight}, but must be finite and at least 0")
        check_choice("cells", cells, ("count", "bernoulli"))
        self.grid = (sides[0], sides[1])
        self.cells = cells
        self.local_weight = local_weight
        self.has_local_head = local_head and local_weight > 0
        self.local_head: nn.Linear | None = None

    def bind(self, view: BackboneView) -> None:
        """The local loss needs every token in its place, and no more cells than tokens; makes its layer."""
        super().bind(view)
        if self.local_weight > 0:
            view.require_all_tokens()
            size = only_size(view.model)
            if size is not None:  # else each step's images say
                self._check_tokens(view.grid_size(size))
        if self.has_local_head and self.local_head is None:
            like = next(view.model.parameters())
            head = added_linear(view.embed_dim, self.num_classes, generator=of_the_same_seed(self.generator))
            self.local_head = head.to(like.device, like.dtype)

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> PasteCells:
        """Draw cells for each draw of the batch."""
        batch = len(images)
        if self.local_weight > 0:
            self._check_tokens(view.grid_size(images.shape[-2:]))
        share = self.sampler.pasted_share(batch, self.generator)
        cells = chosen_cells(share, self.uniform(len(share), *self.grid), law=self.cells)
        cells = self.sampler.spread(cells.to(images.device, non_blocking=True), batch)
        return PasteCells(self.partners(images), cells)

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, with its final tokens where the local loss wants them."""
        if self.local_weight == 0 or not isinstance(plan.mixed.draw, PasteCells):
            return super().run(view, plan)
        (output, tokens), mixed = self.label(view, plan.mixed, view.forward_tokens, self.generator)
        return Run(output, mixed, tokens)

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """The local loss, where cells were pasted."""
        draw = plan.mixed.draw
        if run.tokens is None or not isinstance(draw, PasteCells):
            return {}
        size = run.mixed.images.shape[-2], run.mixed.images.shape[-1]
        loss = local_loss(
            self.local_head or view.classify,
            run.tokens.unflatten(1, view.grid_size(size)),
            draw.cells,
            targets,
            run.mixed.source_index,
            image_size=size,
        )
        return {"local": self.local_weight * loss}

    def _check_tokens(self, tokens: tuple[int, int]) -> None:
        if self.grid[0] > tokens[0] or self.grid[1] > tokens[1]:
            raise ValueError(
                f"grid is {self.grid}, but the model has {tokens[0]} x {tokens[1]} final tokens: the local loss "
                "needs a coarser grid, or local_weight=0"
            )
