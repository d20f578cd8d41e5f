"""Do all tokens count alike after attention? (TL-Align, section 3.2: the token fluctuation phenomenon.)"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnmix.attention import AttentionTap
from attnmix.attention.flow import AttentionStep
from attnmix.attention.trace import Journey
from attnmix.backbone import BackboneView
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.mixed_batches import COUNT, MIXING, MixedImages, mixed_batches
from attnmix.mixing import mask_to_grid

MEASURES = (
    "spread of presence",
    "least presence",
    "greatest presence",
    "drift of the mixing ratio",
    "drift carried along",
)


class Fluctuation(NamedTuple):
    """What attention makes of the mixing ratio of B images.

    Attributes:
        blocks: `[blocks, 5, B]`, `MEASURES` of every block in which image tokens attend.
        readout: `[B]`, the source's weight in what the classifier reads (TL-Align's label).
    """

    blocks: Tensor
    readout: Tensor


def presence_measures(presence: Tensor, is_source: Tensor, source_weight: Tensor) -> Tensor:
    """The first four of `MEASURES` for one block, `[4, B]`.

    Args:
        presence: `[B, N]`, TL-Align's p (eq. 2), whose sum is N.
        is_source: `[B, N]`, the share of the source in each token, on the same grid.
        source_weight: `[B]`, the source's share of the tokens.
    """
    ratio = (presence * is_source).mean(dim=1)
    least, greatest = presence.aminmax(dim=1)
    return torch.stack((presence.std(dim=1, correction=0), least, greatest, (ratio - source_weight).abs()), dim=0)


def fluctuation(view: BackboneView, mixed: MixedImages) -> Fluctuation:
    """Presence block by block, and TL-Align's label through all of them, in one forward on mixed images."""
    size = mixed.images.shape[-2:]
    with torch.no_grad(), view.open_tap(None) as tap:
        view(mixed.images)
    first = mask_to_grid(mixed.source_mask, view.token_grid_size(size), how="area")
    journey = Journey(view.flow(size), first, mixed.source_weight)
    attending, blocks, number = view.image_blocks, [], 0
    while (step := journey.to_attention()) is not None:
        journey.through(step, lambda keys, number=number: tap.attend(keys, number))  # type: ignore[misc]
        if number in attending:
            blocks.append(_block(view, tap, number, step, journey.values, mixed))
        number += 1
    return Fluctuation(torch.stack(blocks), view.readout(journey.values))


def _block(
    view: BackboneView, tap: AttentionTap, number: int, step: AttentionStep, carried: Tensor, mixed: MixedImages
) -> Tensor:
    presence = view.image_presence(tap, number, mixed.images.shape[-2:])
    is_source = mask_to_grid(mixed.source_mask, step.grid, how="area")
    alone = presence_measures(presence, is_source, mixed.source_weight)
    ratio = carried[:, step.prefix :].mean(dim=1)
    return torch.cat((alone, (ratio - mixed.source_weight).abs()[None]))


def _ask(exam: Exam) -> Answer:
    view = exam.subject.view
    assert view is not None
    total = torch.zeros(len(view.image_blocks), len(MEASURES), dtype=torch.float64)
    label_drift, seen = 0.0, 0
    for mixed in mixed_batches(exam, view):
        found = fluctuation(view, mixed)
        total += found.blocks.cpu().double().sum(dim=2)
        label_drift += float((found.readout - mixed.source_weight).abs().sum())
        seen += len(mixed.images)
    mean = total / seen
    table = [
        {"block": block, **dict(zip(MEASURES, row, strict=True))}
        for block, row in zip(view.image_blocks, mean.tolist(), strict=True)
    ]
    return Answer(
        values={
            "mean spread of presence": float(mean[:, 0].mean()),
            "largest drift of the mixing ratio": float(mean[:, 3].max()),
            "drift of the label the classifier reads": label_drift / seen,
        },
        tables={"blocks": table},
        notes=_notes(view),
    )


def _notes(view: BackboneView) -> list[str]:
    notes = [
        "presence: how much of a token there is in all image tokens after a block's attention, 1 if no token is "
        "favoured; each image token's attention to the image tokens is scaled to sum to 1",
        "drift: mean absolute difference, in label weight (0 to 1), from the source's share of the tokens: of one "
        "block's attention alone; carried along, through all blocks so far, averaged in each with the token's own "
        "share as TL-Align's labels are; of the label, what of that the classifier reads, against CutMix's area",
        MIXING.format(count=COUNT),
    ]
    others = view.num_attention_calls - len(view.image_blocks)
    if others:
        notes.append(
            f"{others} attention blocks of one query, at the end, have no line: there no image token attends"
        )
    return notes


def _missing(exam: Exam) -> str | None:
    view = exam.subject.view
    if view is None:
        return no_attention(exam)
    try:
        view.check_traceable()
    except ValueError as error:
        return str(error).partition(";")[0]  # what follows is an option of the method
    return None


QUESTION = Question(
    name="fluctuation",
    about="how unevenly attention keeps tokens, and how far the mixing ratio drifts (TL-Align, section 3.2)",
    ask=_ask,
    missing=_missing,
)
