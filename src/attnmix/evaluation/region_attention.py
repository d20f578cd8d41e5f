"""Do tokens of a mixed image attend to their own image? (SMMix, supplement A1, Tables A1 and A2.)"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnmix.attention.flow import MIXES_CHANNELS, attention_steps
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.mixed_batches import COUNT, MIXING, mixed_batches

REGIONS = ("source", "target")


def region_attention(attend: Callable[[Tensor], Tensor], is_source: Tensor) -> Tensor:
    """Mean attention between the regions of mixed images (SMMix Table A1).

    `1 / (N_q N_k) * sum of A[i, j]` over tokens i of the query's region and j of the key's.

    Args:
        attend: one value per image token `[B, N]` -> each image token's attention times these, `[B, N]`.
        is_source: `[B, N]` bool, True = source token.

    Returns:
        `[B, 2, 2]`, query's region by key's, source first; NaN where a region has no token.
    """
    regions = torch.stack((is_source, ~is_source), dim=1).float()
    given = torch.stack([attend(regions[:, key]) for key in range(2)], dim=2)  # [B, N, 2]
    tokens = regions.sum(dim=2)
    return regions @ given / (tokens[:, :, None] * tokens[:, None, :])


def _ask(exam: Exam) -> Answer:
    view = exam.subject.view
    assert view is not None
    block = view.image_blocks[-1]
    total, seen, left_out, image_tokens = torch.zeros(2, 2, dtype=torch.float64), 0, 0, 0
    for mixed in mixed_batches(exam, view):
        image_tokens = mixed.is_source.shape[1]
        size = mixed.images.shape[-2:]
        with torch.no_grad(), view.open_stopping_tap((block,)) as tap:
            view(mixed.images)
        found = region_attention(
            lambda values, tap=tap, size=size: view.image_attend(tap, block, values, size),  # type: ignore[misc]
            mixed.is_source,
        )
        both = mixed.is_source.any(dim=1) & ~mixed.is_source.all(dim=1)
        total += found[both].cpu().double().sum(dim=0)
        seen += int(both.sum())
        left_out += int((~both).sum())
    mean = (total / seen).tolist() if seen else None
    rows: list[dict[str, Any]] = [
        {
            "query": query,
            "key": key,
            "mean attention": None if mean is None else mean[i][j],
            "times uniform": None if mean is None else mean[i][j] * image_tokens,
        }
        for i, query in enumerate(REGIONS)
        for j, key in enumerate(REGIONS)
    ]
    return Answer(
        values={f"{row['query']} to {row['key']}": row["times uniform"] for row in rows},
        tables={"regions": rows},
        notes=_notes(exam, block, image_tokens, left_out),
    )


def _notes(exam: Exam, block: int, image_tokens: int, left_out: int) -> list[str]:
    view = exam.subject.view
    assert view is not None
    notes = [
        "query to key, times uniform: mean attention of a token of the one region to a token of the other, times "
        f"the {image_tokens} image tokens; 1 is attention spread evenly over the image tokens alone, and all four "
        "are lower by what goes to class and register tokens",
        "SMMix's Table A2 gives the mean attention itself: its figures times 196 tokens compare with these "
        "(0.0051 is uniform); its mixed images are SMMix's own, these are the same for every model",
        MIXING.format(count=COUNT),
    ]
    if block != view.num_attention_calls - 1:
        notes.append(
            f"attention of block {block}, the last in which image tokens attend: behind it one query attends"
        )
    if attention_steps(view.flow(exam.subject.image_size))[block].windows > 1:
        notes.append("image tokens attend inside windows: attention between two windows counts as 0")
    if left_out:
        notes.append(f"{left_out} images left out, whose box covers the whole image")
    return notes


def _missing(exam: Exam) -> str | None:
    view = exam.subject.view
    if view is None:
        return no_attention(exam)
    return None if view.image_blocks else f"{view.name} {MIXES_CHANNELS}, and there no image token attends"


QUESTION = Question(
    name="regions",
    about="attention between and within the two images of a mixed one (SMMix, Tables A1 and A2)",
    ask=_ask,
    missing=_missing,
)
