"""What a training step of each method costs beside plain CutMix, and what it must cost at least."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.benchmark.device import pinned_threads
from attnmix.benchmark.flops import count_flops
from attnmix.benchmark.memory import peak_allocated, saved_for_backward
from attnmix.benchmark.step_model import check_model, model_and_batch
from attnmix.benchmark.step_rows import ALL_ROWS, StepRow, baseline_of, make_method, with_baseline
from attnmix.benchmark.step_settings import StepSettings
from attnmix.benchmark.step_time import TrainingStep, step_cost, time_steps, weigh
from attnmix.task import MixTask

Progress = Callable[[str, int, int], None]
RECOMPILES = 64
NUMBERS = (
    "seconds",
    "ratio",
    "low",
    "high",
    "images_per_second",
    "floor",
    "memory_bytes",
    "memory_ratio",
    "rounds",
)


def bench_steps(
    models: Sequence[str],
    rows: Sequence[StepRow] = ALL_ROWS,
    settings: StepSettings | None = None,
    *,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Measure a training step of each row on each model.

    Args:
        models: timm's names.
        rows: what is measured; plain CutMix is added where it is missing, since all are compared with it.
        settings: how.
        progress: called with the model's name, and parts done and in all.

    Returns:
        A dictionary for each row: `model`, `method`; `seconds` of a step and `images_per_second`; `ratio`, `low`
        and `high` (95 % interval) of its time to CutMix's; `floor`, the ratio of counted FLOPs, forward and
        backward; `memory_bytes` and `memory_ratio` to CutMix's (on a GPU the most allocated in a step, on the CPU
        what the forward keeps for the backward pass); `rounds`, the seconds of each; `note`, why the method cannot
        work on this model, and then the numbers are None.

    Raises:
        ValueError: no model, an unknown one, or an image size it does not take: before any is measured.
    """
    settings = settings or StepSettings()
    progress = progress or (lambda *_: None)
    rows = with_baseline(rows)
    if not models:
        raise ValueError("no model named; for example deit_tiny_patch16_224")
    for name in models:
        check_model(name, settings)
    gpus = [settings.torch_device] if settings.torch_device.type == "cuda" else []
    # torch stops compiling a model that was compiled eight ways: every method here may have a way of its own
    many = _many_compilations() if settings.compile else nullcontext()
    with pinned_threads(settings.threads), torch.random.fork_rng(gpus), many:
        return [found for name in models for found in _bench_model(name, rows, settings, progress)]


def _many_compilations() -> AbstractContextManager[None]:
    config = torch._dynamo.config
    return config.patch(recompile_limit=max(config.recompile_limit, RECOMPILES))


@dataclass(frozen=True)
class _Part:
    """A step that was made, its FLOPs and its bytes."""

    step: TrainingStep
    flops: int
    memory: int


def _bench_model(
    name: str, rows: Sequence[StepRow], settings: StepSettings, progress: Progress
) -> list[dict[str, Any]]:
    model, images, labels = model_and_batch(name, settings)
    num_classes = BackboneView(model).num_classes
    shares = {row.label: {kind.key: kind.share for kind in row.kinds()} for row in rows}
    kinds = {kind.key: kind for row in rows for kind in row.kinds()}
    total = len(kinds) + settings.warmup + settings.rounds
    moments: defaultdict[Tensor, Any] = defaultdict(dict)
    parts: dict[str, _Part] = {}
    reasons: dict[str, str] = {}
    for done, (key, kind) in enumerate(kinds.items()):
        progress(name, done, total)
        try:
            task = MixTask(model, make_method(kind, num_classes=num_classes, seed=settings.seed))
            step = TrainingStep(task, images, labels, autocast=settings.autocast, moments=moments)
            flops = count_flops(step)
        except ValueError as error:  # the method cannot work on this model: the others can
            reasons[key] = str(error)
            continue
        if settings.compile:
            task.compile()
        parts[key] = _Part(step, flops, _memory(step))
        moments.clear()  # of parameters that this method added
    (base,) = shares[baseline_of(rows).label]
    if base in reasons:
        raise ValueError(f"plain CutMix does not run on {name}: {reasons[base]}")
    seconds = time_steps(
        {key: part.step for key, part in parts.items()},
        rounds=settings.rounds,
        warmup=settings.warmup,
        seed=settings.seed,
        progress=lambda done, _: progress(name, len(kinds) + done, total),
    )
    found = []
    for row in rows:
        mix = shares[row.label]
        refused = next((reasons[key] for key in mix if key in reasons), None)
        numbers: dict[str, Any] = dict.fromkeys(NUMBERS)
        if refused is None:
            taken = weigh(seconds, mix)
            cost = step_cost(taken, seconds[base])
            numbers |= cost.as_dict()
            numbers["rounds"] = [round(each, 6) for each in taken.tolist()]
            numbers["images_per_second"] = settings.batch_size / cost.seconds
            numbers["floor"] = sum(share * parts[key].flops for key, share in mix.items()) / parts[base].flops
            numbers["memory_bytes"] = max(parts[key].memory for key in mix)
            numbers["memory_ratio"] = numbers["memory_bytes"] / parts[base].memory
        found.append({"model": name, "method": row.label, **numbers, "note": refused})
    return found


def _memory(step: TrainingStep) -> int:
    """Bytes: the most allocated on the GPU in a step; on the CPU what the forward keeps for the backward pass."""
    device = step.images.device
    if device.type == "cuda":
        step()  # compiles, and makes what stays from step to step
        return torch.cuda.memory_allocated(device) + peak_allocated(step, device)
    module = step.task.get_trainable_module()
    return saved_for_backward(
        step.forward, known=[*module.parameters(), *module.buffers(), step.images, step.labels]
    )
