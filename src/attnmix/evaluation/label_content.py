"""Does the label say what can be seen? Exact, where the objects' masks are known.

Label-content error is the mean over mixed images of |label weight of the source - its visible share of all object
pixels|. It is always to be read beside its controls: a label that is one half whatever happens, a fixed prior for
the picture's centre in attention's place, and an untrained network.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods import MixMethod, create_method, method_options
from attnmix.methods.transmix import attention_weight
from attnmix.mixing import MixedBatch
from attnmix.task import MixTask

DRAWS, BATCH = 192, 8  # SMMix draws one window size per batch: many small ones


@dataclass(frozen=True)
class LabelContentError:
    """Mean absolute error of the source's label weight.

    Attributes:
        mean: in label weight, 0 to 1.
        standard_error: of the mean, clustered both by target image and by draw, since mixes of one image, and
            mixes drawn together, are alike.
        bias: mean signed error; negative where the source is shown more than its label says.
    """

    mean: float
    standard_error: float
    bias: float

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, for a results file."""
        return asdict(self)


def pasting_method(name: str, *, num_classes: int, seed: int = 0, **options: Any) -> MixMethod | None:
    """A method made to paste at every step, each image its own box where the method can; None if it never pastes.

    What is judged is the label of pasted images; Mixup's blends show both objects everywhere.
    """
    members = [member for member in name.split("+") if "mixup_prob" in method_options(member, options)]
    if not members:
        return None
    known = set().union(*(method_options(member, options) for member in members))
    forced = {"prob": 1.0, "mixup_prob": 0.0, "mode": "elem", "seed": seed}
    if options.get("pairing", "flip") == "flip":
        forced["pairing"] = "roll"  # nobody is his own partner
    kept = {option: value for option, value in options.items() if option in known}
    return create_method("+".join(members), num_classes=num_classes, **{**kept, **forced})


def visible_share(mixed: MixedBatch, masks: Tensor) -> Tensor:
    """The source's share of all object pixels that can be seen in each mixed image.

    Args:
        mixed: a batch of pasted images.
        masks: `[B, H, W]` bool, True = object pixel of the unmixed images.

    Returns:
        `[B]` in [0, 1]; NaN where no object pixel is left.
    """
    assert mixed.source_mask is not None
    visible = mixed.draw.apply(masks[:, None].float()).images[:, 0] > 0.5
    return (visible & mixed.source_mask).sum(dim=(1, 2)) / visible.sum(dim=(1, 2))


def label_content_error(
    model: nn.Module, method: MixMethod, images: Tensor, labels: Tensor, masks: Tensor, *, seed: int = 0
) -> LabelContentError:
    """Label-content error of a method with a model in evaluation mode, which is given back as it was.

    Args:
        model: a timm model.
        method: as `pasting_method` makes it.
        images: `[N, C, H, W]`, as the model takes them.
        labels: `[N]`.
        masks: `[N, H, W]` bool, True = object pixel.
        seed: of the choice of pairs.
    """
    task = MixTask(model, method)
    weights, truths, targets = [], [], []
    with torch.no_grad(), task.view.evaluating():
        for index in _batches(len(images), seed):
            mixed = task(images[index], labels[index])["mixed"]
            weights.append(mixed.source_weight)
            truths.append(visible_share(mixed, masks[index]))
            targets.append(index)
    return _summarise(weights, truths, targets)


def label_content_controls(
    untrained: nn.Module, images: Tensor, labels: Tensor, masks: Tensor, *, num_classes: int, seed: int = 0
) -> dict[str, LabelContentError]:
    """What no trained attention is needed for; arguments as `label_content_error`'s.

    On CutMix's boxes, which TransMix pastes too, and on TL-Align's own, which are of whole patches; without these
    where the model's labels cannot be traced (XCiT).
    """
    attention = "class" if BackboneView(untrained).has_class_row else "image"
    transmix = pasting_method("transmix", num_classes=num_classes, seed=seed, attention=attention)
    tl_align = pasting_method("tl-align", num_classes=num_classes, seed=seed)
    assert transmix is not None
    assert tl_align is not None
    half, area, centre, fresh = _controls(MixTask(untrained, transmix), images, labels, masks, seed)
    rows = {
        "constant one half": half,
        "area of the box (CutMix)": area,
        "centre prior in attention's place (TransMix)": centre,
        "untrained network (TransMix)": fresh,
    }
    try:
        task = MixTask(untrained, tl_align)
    except ValueError:
        return rows
    _, area, _, fresh = _controls(task, images, labels, masks, seed)
    return {**rows, "area of whole patches (TL-Align)": area, "untrained network (TL-Align)": fresh}


def _controls(
    task: MixTask, images: Tensor, labels: Tensor, masks: Tensor, seed: int
) -> tuple[LabelContentError, ...]:
    """On the task's boxes: constant one half, area, a centre prior read as TransMix does, the task's own label."""
    grid = task.view.grid_size(images.shape[-2:])
    prior = centre_prior(grid).to(images.device)
    found, truths, targets = [], [], []
    with torch.no_grad(), task.view.evaluating():
        for index in _batches(len(images), seed):
            mixed = task(images[index], labels[index])["mixed"]
            assert mixed.source_mask is not None
            area = mixed.source_mask.float().mean(dim=(1, 2))
            centred = attention_weight(prior.expand(len(index), -1), mixed.source_mask, area, grid=grid)
            found.append((torch.full_like(area, 0.5), area, centred, mixed.source_weight))
            truths.append(visible_share(mixed, masks[index]))
            targets.append(index)
    return tuple(_summarise(list(weights), truths, targets) for weights in zip(*found, strict=True))


def centre_prior(grid: tuple[int, int]) -> Tensor:
    """A Gaussian bump on the grid's centre, its deviation a quarter of each side: `[1, N]`, sums to 1."""
    axes = [torch.exp(-0.5 * (((torch.arange(side) + 0.5) / side - 0.5) / 0.25) ** 2) for side in grid]
    bump = axes[0][:, None] * axes[1]
    return (bump / bump.sum()).flatten()[None]


def _batches(count: int, seed: int) -> Iterator[Tensor]:
    """`DRAWS` batches of distinct images, drawn anew each time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(DRAWS):
        yield torch.randperm(count, generator=generator)[:BATCH]


def _summarise(weights: list[Tensor], truths: list[Tensor], targets: list[Tensor]) -> LabelContentError:
    """Mean, its standard error and bias, from one tensor per draw."""
    draw = torch.arange(len(weights)).repeat_interleave(torch.tensor([len(batch) for batch in weights]))
    truth, target = torch.cat(truths).cpu(), torch.cat(targets)
    known = truth.isfinite()
    error = (torch.cat(weights).cpu() - truth)[known].double()
    residual = error.abs() - error.abs().mean()
    # two-way clustering (Cameron, Gelbach, Miller 2011): by image, by draw, less what both count
    variance = _sum_of_squares(residual, target[known]) + _sum_of_squares(residual, draw[known])
    variance = max(variance - float((residual**2).sum()), float((residual**2).sum()))
    return LabelContentError(float(error.abs().mean()), math.sqrt(variance) / len(error), float(error.mean()))


def _sum_of_squares(residual: Tensor, cluster: Tensor) -> float:
    """Squares of each cluster's summed residuals, with the small-sample factor."""
    _, number = cluster.unique(return_inverse=True)
    count = int(number.max()) + 1
    sums = torch.zeros(count, dtype=residual.dtype).index_add_(0, number, residual)
    return float((sums**2).sum()) * count / max(count - 1, 1)
