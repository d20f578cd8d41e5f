"""The training loop: one recipe in, one trained model out. It knows no method by name.

A run's folder holds `recipe.yaml`, `metrics.jsonl` (a line per epoch), `tensorboard/`, `checkpoint.pt`,
`result.json` and, as a plain timm checkpoint, `model/`.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

import attnmix
from attnmix.data import evaluation_settings
from attnmix.evaluation.accuracy import evaluate_accuracy
from attnmix.methods.label_source import check_label_maps
from attnmix.training.checkpoint import Position, check_can_go_on, load_checkpoint, load_run, save_run
from attnmix.training.export import export_model
from attnmix.training.loader import create_loaders, epoch_batches, set_epoch
from attnmix.training.progress import epoch_line, progress_bar
from attnmix.training.reading import save_recipe
from attnmix.training.recipe import Recipe
from attnmix.training.setup import (
    create_accelerator,
    create_data,
    create_model,
    create_optimizer,
    create_scheduler,
    model_inputs,
)

__all__ = ["TrainingResult", "has_checkpoint", "train"]

CHECKPOINT = "checkpoint.pt"
RECIPE = "recipe.yaml"
CHECK_EVERY = 10  # steps between looks at the loss: each look waits for the device
CHECK_SECONDS = 1.0  # after which slow steps are looked at sooner


@dataclass
class TrainingResult:
    """What a run came to, measured with the exported weights (the average's, where `ema` is on)."""

    top1: float
    """Percent, as top5."""
    top5: float | None
    """None with five classes or fewer."""
    loss: float
    """Cross-entropy on the evaluation split."""
    confusion: list[list[int]]
    """[C][C] counts: confusion[truth][prediction]."""
    class_names: list[str]
    history: list[dict[str, float]]
    """One dictionary per epoch, as in metrics.jsonl."""
    seconds: float
    """Time spent training, evaluation left out, summed over all epochs."""
    images_per_second: float
    model: str
    """Folder of the exported model."""
    checkpoint: str
    """The checkpoint's file."""


def has_checkpoint(out: str | os.PathLike[str]) -> bool:
    """Whether the folder `out` holds a run that can be resumed."""
    return (Path(out) / CHECKPOINT).is_file()


def train(
    recipe: Recipe, out: str | os.PathLike[str], *, resume: bool = False, progress: bool = True
) -> TrainingResult:
    """Train by `recipe` and leave everything in the folder `out`.

    Initial weights and the order of the data depend on the seed, never on the method. A run that is resumed
    goes on as if it had never stopped: on a CPU to the same bits.

    Args:
        recipe: see `attnmix.training.load_recipe`.
        out: the run's folder; made where missing.
        resume: go on from `out`'s checkpoint; more epochs than before extend the run.
        progress: show a bar on a terminal, and a line per epoch.

    Raises:
        ValueError: a value the user can put right.
        FileExistsError: `out` holds a run and `resume` is off.
        FileNotFoundError: nothing to resume.
        FloatingPointError: the loss or a weight is not finite; names the epoch. The checkpoint is older.
    """
    out = Path(out)
    checkpoint = out / CHECKPOINT
    if has_checkpoint(out) and not resume:
        raise FileExistsError(f"{out} already holds a run: add --resume to go on with it, or choose another --out")
    saved = load_checkpoint(checkpoint) if resume else None

    # ------------------------------------------------------------ set up
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    accelerator = create_accelerator(recipe, out)
    if saved is not None:
        check_can_go_on(saved, recipe, num_processes=accelerator.num_processes, path=checkpoint)
    is_main = accelerator.is_main_process
    console = Console(quiet=not (progress and is_main))

    train_data, eval_data = create_data(recipe)
    num_classes = train_data.num_classes
    model = create_model(recipe, num_classes=num_classes)
    method = attnmix.create_method(
        recipe.method, num_classes=num_classes, **{"seed": recipe.seed, **recipe.method_options}
    )
    check_label_maps(method, given=recipe.label_maps is not None)
    set_seed(recipe.seed, device_specific=True)  # dropout and stochastic depth, other on every process
    task = attnmix.MixTask(model, method).to(accelerator.device)
    optimizer = create_optimizer(task.get_trainable_module(), recipe)
    if recipe.compile:
        task.compile()
    train_loader, eval_loader = create_loaders(train_data, eval_data, recipe, accelerator)
    step, optimizer = accelerator.prepare(task, optimizer)  # step(images, labels): the task, DDP, autocast
    if recipe.ema is not None:
        task.setup_ema(decay=recipe.ema, use_warmup=True)  # else a short run's is still its first weights

    batches = len(train_loader)
    updates_per_epoch = math.ceil(batches / recipe.accumulation_steps)
    scheduler = create_scheduler(optimizer, recipe, updates_per_epoch=updates_per_epoch)
    first_epoch, updates, history = 0, 0, []
    if saved is not None:
        load_run(saved, task, optimizer, accelerator=accelerator)
        first_epoch, updates, history = saved["epoch"], saved["updates"], saved["history"]
        scheduler.step_update(updates)  # by the schedule of now, which may have more epochs
    if is_main:
        out.mkdir(parents=True, exist_ok=True)
        save_recipe(recipe, out / RECIPE)
        _write_lines(out / "metrics.jsonl", history)
    accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": {"purge_step": first_epoch + 1}})
    schedule = recipe.schedule
    if schedule.warmup_epochs >= recipe.epochs:
        console.print(
            f"note: all {recipe.epochs} epochs are warm-up (schedule.warmup_epochs {schedule.warmup_epochs})"
        )

    # ------------------------------------------------------------ train
    measured: dict[str, Any] | None = None
    accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False).to(accelerator.device)
    bar_options = {"total": recipe.epochs * batches, "done": first_epoch * batches}
    with _advice_on_memory(recipe, accelerator.device), progress_bar(console, **bar_options) as bar:
        for epoch in range(first_epoch + 1, recipe.epochs + 1):
            started = looked = time.perf_counter()
            set_epoch(train_loader, epoch - 1)
            task.get_trainable_module().train()
            optimizer.zero_grad()
            accuracy.reset()
            sums: dict[str, Tensor | int] = {}  # over images; on the device, so as not to wait for it
            images_seen, unchecked = 0, []
            for index, (images, labels), is_last in epoch_batches(train_loader, batches):
                images = images.to(accelerator.device, non_blocking=True)
                labels = labels.to(accelerator.device, non_blocking=True)
                # Gradients gather over a window of batches; the last window of an epoch may be shorter.
                window_start = index - index % recipe.accumulation_steps
                window = min(recipe.accumulation_steps, batches - window_start)
                is_update = is_last or index + 1 == window_start + window
                with contextlib.nullcontext() if is_update else accelerator.no_sync(step):
                    result = step(images, labels)
                    accelerator.backward(result["loss"] / window)
                if is_update:
                    if index + 1 < window_start + window:  # a stream that ended before its time
                        _scale_gradients(task.get_clip_parameters(), window / (index + 1 - window_start))
                    if recipe.clip_grad is not None:
                        accelerator.clip_grad_norm_(task.get_clip_parameters(), recipe.clip_grad)
                    first = optimizer.param_groups[0]
                    lr = first["lr"] / first.get("lr_scale", 1.0)  # the rate before layer_decay
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
                    scheduler.step_update(updates)
                    if recipe.ema is not None:
                        task.update_ema(step=updates)

                loss = result["loss"].detach()
                parts = {f"loss_{name}": part for name, part in result["losses"].items()}
                parts |= {f"stat_{name}": value for name, value in result["stats"].items()}
                for name, value in {"train_loss": loss, **parts}.items():
                    sums[name] = sums.get(name, 0) + value.detach().float() * len(images)
                accuracy.update(result["output"].argmax(dim=1), result["target"].argmax(dim=1))
                images_seen += len(images) * accelerator.num_processes
                unchecked.append(loss)
                now = time.perf_counter()
                if len(unchecked) == CHECK_EVERY or now - looked > CHECK_SECONDS or is_last:
                    _check_losses(unchecked, epoch=epoch, last_step=index + 1, out=out)
                    looked = time.perf_counter()
                    speed = images_seen / (looked - started)
                    bar(epoch, len(unchecked), loss=loss, accuracy=accuracy, speed=speed)
                    unchecked = []

            # -------------------------------------------------------- end of the epoch
            if not sums:
                raise ValueError(f"the training data {recipe.data} gave not one batch in epoch {epoch}")
            seconds = time.perf_counter() - started
            updates = epoch * updates_per_epoch  # also after a stream that ended before its time
            scheduler.step_update(updates)
            _check_weights(task.get_trainable_module(), epoch=epoch, out=out)
            entry: dict[str, float] = {"epoch": epoch, "lr": lr}
            totals = accelerator.reduce(torch.stack([torch.as_tensor(s) for s in sums.values()]), "sum")
            entry.update(zip(sums, (totals / images_seen).tolist(), strict=True))
            entry["train_top1"] = 100 * accuracy.compute().item()
            is_last_epoch = epoch == recipe.epochs
            if epoch % recipe.eval_every == 0 or is_last_epoch:
                for prefix in ("eval", "ema") if recipe.ema is not None else ("eval",):
                    eval_model = task.get_eval_model(ema=prefix == "ema")
                    measured = evaluate_accuracy(eval_model, eval_loader, num_classes, accelerator)
                    if not math.isfinite(measured["loss"]):
                        raise _diverged(f"the evaluated loss is {measured['loss']} after epoch {epoch}", out)
                    for name in ("loss", "top1", "top5"):
                        if measured[name] is not None:
                            entry[f"{prefix}_{name}"] = measured[name]
            entry.update(seconds=seconds, images_per_second=images_seen / seconds)
            history.append(entry)
            accelerator.log({name: value for name, value in entry.items() if name != "epoch"}, step=epoch)
            if is_main:
                _write_lines(out / "metrics.jsonl", history)
            console.print(epoch_line(entry, recipe.epochs), highlight=False, soft_wrap=True)
            if epoch % recipe.checkpoint_every == 0 or is_last_epoch:
                position = Position(epoch=epoch, updates=updates, history=history)
                save_run(checkpoint, task, optimizer, position, accelerator=accelerator, recipe=recipe)

    # ------------------------------------------------------------ what it came to
    final_model = task.get_eval_model(ema=recipe.ema is not None)
    if measured is None:  # a finished run, resumed
        measured = evaluate_accuracy(final_model, eval_loader, num_classes, accelerator)
    total = sum(entry["seconds"] for entry in history)
    images = sum(entry["seconds"] * entry["images_per_second"] for entry in history)
    result = TrainingResult(
        **measured,
        class_names=[str(name) for name in train_data.class_names],
        history=history,
        seconds=total,
        images_per_second=images / total,
        model=str(out / "model"),
        checkpoint=str(checkpoint),
    )
    if is_main:
        export_model(
            final_model,
            out / "model",
            class_names=result.class_names,
            **evaluation_settings(
                recipe.data, model_inputs(recipe)["input_size"], dataclasses.asdict(recipe.augment)
            ),
        )
        text = json.dumps(dataclasses.asdict(result), indent=1, allow_nan=False)
        (out / "result.json").write_text(text, encoding="utf-8")
    accelerator.wait_for_everyone()  # no process ends the group while another still needs it
    accelerator.end_training()
    return result


# ------------------------------------------------------------------ what may go wrong


@contextlib.contextmanager
def _advice_on_memory(recipe: Recipe, device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"batch_size {recipe.batch_size} does not fit on {device}: lower it and raise accumulation_steps"
        ) from error


def _scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _diverged(what: str, out: Path) -> FloatingPointError:
    kept = f"the checkpoint in {out} is of an earlier epoch" if has_checkpoint(out) else "no checkpoint yet"
    return FloatingPointError(f"{what}: {kept}; try a lower lr, clip_grad 1.0, or precision no")


def _check_weights(module: nn.Module, *, epoch: int, out: Path) -> None:
    finite = torch.stack([parameter.isfinite().all() for parameter in module.parameters()])
    if not finite.all():
        names = [name for name, _ in module.named_parameters()]
        raise _diverged(f"{names[int(finite.logical_not().nonzero()[0])]} is not finite after epoch {epoch}", out)


def _check_losses(losses: list[Tensor], *, epoch: int, last_step: int, out: Path) -> None:
    finite = torch.stack(losses).isfinite()
    if not finite.all():
        bad = int(finite.logical_not().nonzero()[0])
        step = last_step - len(losses) + 1 + bad
        raise _diverged(f"the loss is {losses[bad].item()} in epoch {epoch}, step {step}", out)


def _write_lines(path: Path, entries: list[dict[str, float]]) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text("".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries), encoding="utf-8")
    os.replace(aside, path)
