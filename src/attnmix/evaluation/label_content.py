"""Does the label say what can be seen? Exact, where the objects' masks are known.

Label-content error is the mean over mixed images of |label weight of the source - its visible share of all object
pixels|. It is always to be read beside its controls: a label that is one half whatever happens, a fixed prior for
the picture's centre in attention's place, and an untrained network.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.pasting import (
    options_of_pasting,
    pasting_members,
    pasting_method,
    spelled_out,
    with_what_it_learnt,
)
from attnmix.evaluation.subject import Subject
from attnmix.methods import MixMethod, method_options
from attnmix.methods.transmix import attention_weight
from attnmix.mixing import MixedBatch
from attnmix.task import MixTask

LOOKED_AT = 512
POLICIES = ("cutmix", "transmix", "smmix", "tl-align")  # asked of every model
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


def visible_share(mixed: MixedBatch, masks: Tensor) -> Tensor:
    """The source's share of all object pixels that can be seen in each mixed image.

    Args:
        mixed: a batch of pasted images.
        masks: `[B, H, W]` bool, True = object pixel of the unmixed images.

    Returns:
        `[B]` in [0, 1]; NaN where no object pixel is left.
    """
    visible = mixed.draw.apply(masks[:, None].float()).images[:, 0]
    if mixed.source_mask is not None:
        visible = (visible > 0.5).float()
        of_source = visible * mixed.source_mask
    else:  # a soft mask: both show through, each as much as it is there
        assert mixed.source_share is not None
        of_source = (visible - (1 - mixed.source_share) * masks).clamp(min=0)
    return of_source.sum(dim=(1, 2)) / visible.sum(dim=(1, 2))


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


def _ask(exam: Exam) -> Answer:
    subject = exam.subject
    picked = exam.first_images(LOOKED_AT)
    assert exam.truth is not None
    found = exam.truth.masks(picked.index)
    if found is None:
        raise ValueError(NO_MASKS)
    masks = (found == 1).to(picked.images.device)
    known = masks.any(dim=2).any(dim=1)
    if int(known.sum()) < 2:
        raise ValueError(f"{int(known.sum())} of {len(known)} images have object masks, but 2 or more are mixed")
    labels = exam.data.model_labels(picked.labels)
    asked = picked.images[known], labels[known], masks[known]
    num_classes = BackboneView(subject.model).num_classes

    rows, notes = [], []
    values: dict[str, float | None] = {}
    for name, options in _policies(subject.method, subject.method_options):
        exam.progress.begin(DRAWS * BATCH, name)
        error, note = _policy_error(subject, name, options, asked, num_classes=num_classes, seed=exam.seed)
        exam.progress.advance(DRAWS * BATCH, DRAWS * BATCH)
        label = spelled_out(name, options)
        if note:
            notes.append(f"{label}{note}")
        if error is not None:
            rows.append(_row(label, "method", error))
            values[f"label-content error, {label}"] = error.mean
    exam.progress.begin(None, "controls")
    controls = label_content_controls(subject.fresh(), *asked, num_classes=num_classes, seed=exam.seed)
    rows += [_row(label, "control", error) for label, error in controls.items()]
    left_out = len(known) - int(known.sum())
    return {
        "values": values,
        "tables": {"labels": rows},
        "notes": [
            f"mean |label weight of the source - its visible share of all object pixels| over {DRAWS} batches of "
            f"at most {BATCH} of {int(known.sum())} images"
            + (f" ({left_out} without object pixels are left out)" if left_out else "")
            + ", each method under this model as it is, Mixup left out; compare a label with the controls on its "
            "own boxes. Bias: negative where more of the source is to be seen than its label says",
            *notes,
        ],
    }


def _policies(trained_with: str | None, options: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The papers' methods, as they are; then the one trained with, where it pastes in another way."""
    plain: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in POLICIES]
    if trained_with is None or not pasting_members(trained_with, options):
        return plain
    own = (trained_with, options_of_pasting(trained_with, options))
    # TokenMixup's labels are its base's
    known = own in plain or own == ("tokenmixup", {})
    return plain if known else [*plain, own]


def _policy_error(
    subject: Subject,
    name: str,
    options: dict[str, Any],
    asked: tuple[Tensor, Tensor, Tensor],
    *,
    num_classes: int,
    seed: int,
) -> tuple[LabelContentError | None, str]:
    """A method's error, by image attention where the model has no other; else None. And what is to be noted."""
    reason = ""
    for instead in ({}, {"attention": "image"}):
        if instead and ("attention" in options or "attention" not in method_options(name, options)):
            break
        try:
            method = pasting_method(name, num_classes=num_classes, seed=seed, **{**options, **instead})
            assert method is not None
            if name == subject.method:
                method = with_what_it_learnt(method, subject.model, subject.method_learnt)
            error = label_content_error(subject.model, method, *asked, seed=seed)
        except ValueError as refused:
            reason = reason or str(refused)
        else:
            return error, " reads image attention: there is no class token's" if instead else ""
    return None, f" is left out: {reason}"


def _row(label: str, kind: str, error: LabelContentError) -> dict[str, Any]:
    return {
        "label": label,
        "kind": kind,
        "label-content error": error.mean,
        "standard error": error.standard_error,
        "bias": error.bias,
    }


def _missing(exam: Exam) -> str | None:
    if no_attention(exam) is not None:
        return no_attention(exam)
    return NO_MASKS if exam.truth is None or exam.truth.masks(torch.zeros(1, dtype=torch.int64)) is None else None


NO_MASKS = (
    "the objects' pixels are unknown: give --annotations with masks (a COCO file), or ask on the embedded digits"
)

QUESTION = Question(
    name="label-content",
    about="does the mixed label say what can be seen, where object masks are known (ours)",
    ask=_ask,
    missing=_missing,
    uses=("truth", "method"),
)
