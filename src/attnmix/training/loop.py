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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs, gather_object, set_seed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file
from timm.data.model_config import resolve_input_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

import attnmix
from attnmix.data import create_datasets
from attnmix.training.checkpoint import get_rng_state, load_checkpoint, save_checkpoint, set_rng_state
from attnmix.training.export import export_model
from attnmix.training.loader import create_loaders, set_epoch
from attnmix.training.recipe import Recipe, nearest, recipe_defaults, save_recipe

__all__ = ["TrainingResult", "create_model", "has_checkpoint", "train"]

CHECK_EVERY = 10  # steps between looks at the loss: each look waits for the device

# What may differ when a run is resumed: how long it goes on, and what changes speed but not results.
FREE_ON_RESUME = ("epochs", "device", "threads", "eval_every", "checkpoint_every", "loader.workers", "loader.pin")


@dataclass
class TrainingResult:
    """What a run came to; accuracies are percent, of the exported weights (the average's, where `ema` is on)."""

    top1: float
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
    return (Path(out) / "checkpoint.pt").is_file()


def create_model(recipe: Recipe, *, num_classes: int) -> nn.Module:
    """Build the recipe's timm model: its weights depend on the seed (and `init`) alone.

    Raises:
        ValueError: unknown model or option, weights that do not fit; names the nearest model.
    """
    torch.manual_seed(recipe.seed)
    model = _timm_model(recipe, num_classes=num_classes)
    if recipe.init is not None:
        if not Path(recipe.init).is_file():
            raise ValueError(f"init: there is no file {recipe.init!r}")
        try:
            model.load_state_dict(load_file(recipe.init))
        except Exception as error:  # safetensors has its own error type, torch says RuntimeError
            raise ValueError(f"init: {recipe.init!r} does not fit {recipe.model}: {error}") from error
    return model


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
        ValueError: a value the user can put right; FileExistsError: `out` holds a run and `resume` is off;
        FileNotFoundError: nothing to resume; FloatingPointError: the loss is not finite, naming epoch and step.
    """
    out = Path(out)
    if has_checkpoint(out) and not resume:
        raise FileExistsError(f"{out} already holds a run: add --resume to go on with it, or choose another --out")
    saved = load_checkpoint(out / "checkpoint.pt") if resume else None
    if saved is not None:
        _check_same_recipe(saved["recipe"], recipe, out)

    # ------------------------------------------------------------ set up
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    accelerator = _accelerator(recipe, out)
    is_main = accelerator.is_main_process
    console = Console(quiet=not (progress and is_main))

    probe = _timm_model(recipe, device="meta")  # no weights: only to ask for its input size and colours
    inputs = resolve_input_data_config(probe)
    train_data, eval_data = create_datasets(
        recipe.data,
        input_size=inputs["input_size"],
        mean=inputs["mean"],
        std=inputs["std"],
        train_split=recipe.train_split,
        eval_split=recipe.eval_split,
        augment={"crop_pct": inputs["crop_pct"], **_given(dataclasses.asdict(recipe.augment))},
        data_options=recipe.data_options,
    )
    num_classes = train_data.num_classes
    model = create_model(recipe, num_classes=num_classes)
    method = attnmix.create_method(
        recipe.method, num_classes=num_classes, **{"seed": recipe.seed, **recipe.method_options}
    )
    set_seed(recipe.seed, device_specific=True)  # dropout and stochastic depth, other on every process
    task = attnmix.MixTask(model, method).to(accelerator.device)
    optimizer = _optimizer(task.get_trainable_module(), recipe)
    if recipe.compile:
        task.compile()
    train_loader, eval_loader = create_loaders(train_data, eval_data, recipe, accelerator)
    step, optimizer = accelerator.prepare(task, optimizer)  # step(images, labels): the task, DDP, autocast
    if recipe.ema is not None:
        task.setup_ema(decay=recipe.ema)

    batches = len(train_loader)
    updates_per_epoch = math.ceil(batches / recipe.accumulation_steps)
    scheduler = _scheduler(optimizer, recipe, updates_per_epoch)
    first_epoch, updates, history = 0, 0, []
    if saved is not None:
        first_epoch, updates, history = saved["epoch"], saved["updates"], saved["history"]
        _load(saved, task, optimizer, accelerator)
    if is_main:
        out.mkdir(parents=True, exist_ok=True)
        save_recipe(recipe, out / "recipe.yaml")
        _write_lines(out / "metrics.jsonl", history)
    accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": {"purge_step": first_epoch + 1}})
    schedule = recipe.schedule
    if schedule.warmup_epochs >= recipe.epochs:
        console.print(f"note: all {recipe.epochs} epochs are warm-up (schedule.warmup_epochs {schedule.warmup_epochs})")

    # ------------------------------------------------------------ train
    accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False).to(accelerator.device)
    with _progress_bar(console, total=recipe.epochs * batches, done=first_epoch * batches) as bar:
        for epoch in range(first_epoch + 1, recipe.epochs + 1):
            started = time.perf_counter()
            set_epoch(train_loader, epoch - 1)
            task.train()
            accuracy.reset()
            means: dict[str, MeanMetric] = {}
            images_seen, unchecked = 0, []
            for index, (images, labels) in enumerate(train_loader):
                images, labels = images.to(accelerator.device), labels.to(accelerator.device)
                # Gradients gather over a window of batches; the last window of an epoch may be shorter.
                window_start = index - index % recipe.accumulation_steps
                window = min(recipe.accumulation_steps, batches - window_start)
                is_update = index + 1 == window_start + window
                with contextlib.nullcontext() if is_update else accelerator.no_sync(step):
                    result = step(images, labels)
                    accelerator.backward(result["loss"] / window)
                if is_update:
                    if recipe.clip_grad is not None:
                        accelerator.clip_grad_norm_(task.get_clip_parameters(), recipe.clip_grad)
                    lr = optimizer.param_groups[0]["lr"]
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
                    if scheduler is not None:
                        scheduler.step_update(updates)
                    if recipe.ema is not None:
                        task.update_ema(step=updates)

                loss = result["loss"].detach()
                for name, value in {"train_loss": loss, **result["losses"]}.items():
                    if name not in means:
                        means[name] = MeanMetric(nan_strategy="disable").to(accelerator.device)
                    means[name].update(value.detach().float(), weight=len(images))
                accuracy.update(result["output"].argmax(dim=1), result["target"].argmax(dim=1))
                images_seen += len(images) * accelerator.num_processes
                unchecked.append(loss)
                if len(unchecked) == CHECK_EVERY or index + 1 == batches:
                    _check_finite(unchecked, epoch=epoch, last_step=index + 1, out=out)
                    speed = images_seen / (time.perf_counter() - started)
                    bar(epoch, len(unchecked), loss=loss, accuracy=accuracy, speed=speed)
                    unchecked = []

            # -------------------------------------------------------- end of the epoch
            seconds = time.perf_counter() - started
            entry: dict[str, float] = {"epoch": epoch, "lr": lr}
            entry.update({name: mean.compute().item() for name, mean in means.items()})
            entry["train_top1"] = 100 * accuracy.compute().item()
            is_last = epoch == recipe.epochs
            if epoch % recipe.eval_every == 0 or is_last:
                for prefix in ("eval", "ema") if recipe.ema is not None else ("eval",):
                    measured = _evaluate(task.get_eval_model(ema=prefix == "ema"), eval_loader, num_classes, accelerator)
                    for name in ("loss", "top1", "top5"):
                        if measured[name] is not None:
                            entry[f"{prefix}_{name}"] = measured[name]
            entry.update(seconds=seconds, images_per_second=images_seen / seconds)
            history.append(entry)
            accelerator.log({name: value for name, value in entry.items() if name != "epoch"}, step=epoch)
            if is_main:
                _write_lines(out / "metrics.jsonl", history)
            console.print(_epoch_line(entry, recipe.epochs), highlight=False)
            if epoch % recipe.checkpoint_every == 0 or is_last:
                _save(out, task, optimizer, accelerator, recipe, epoch=epoch, updates=updates, history=history)

    # ------------------------------------------------------------ what it came to
    final_model = task.get_eval_model(ema=recipe.ema is not None)
    measured = _evaluate(final_model, eval_loader, num_classes, accelerator)
    accelerator.end_training()
    total = sum(entry["seconds"] for entry in history)
    images = sum(entry["seconds"] * entry["images_per_second"] for entry in history)
    result = TrainingResult(
        **measured,
        class_names=[str(name) for name in train_data.class_names],
        history=history,
        seconds=total,
        images_per_second=images / total,
        model=str(out / "model"),
        checkpoint=str(out / "checkpoint.pt"),
    )
    if is_main:
        export_model(
            final_model, out / "model", class_names=result.class_names, crop_pct=recipe.augment.crop_pct
        )
        (out / "result.json").write_text(json.dumps(dataclasses.asdict(result), indent=1), encoding="utf-8")
    return result


# ------------------------------------------------------------------ the parts of set-up


def _accelerator(recipe: Recipe, out: Path) -> Accelerator:
    """One per run. Accelerate keeps its state between runs of a process, which may differ in device."""
    kind = recipe.device.partition(":")[0]
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind, True):
        raise ValueError(f"device is {recipe.device!r}, but this machine has no {kind} device; use auto or cpu")
    index = int(recipe.device.partition(":")[2] or 0)
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ValueError(f"device is {recipe.device!r}, but this machine has {torch.cuda.device_count()} CUDA devices")
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # by torchrun, which owns the process group and device
    AcceleratorState._reset_state(reset_partial_state=not launched)
    GradientState._reset_state()
    with _environment("ACCELERATE_TORCH_DEVICE", recipe.device if ":" in recipe.device and not launched else None):
        return Accelerator(
            cpu=kind == "cpu",
            mixed_precision=recipe.precision,
            log_with="tensorboard",
            project_dir=str(out),
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=100_003 * recipe.seed),
            # A method may leave parameters of its own unused in a step that draws Mixup.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _timm_model(recipe: Recipe, *, device: str | None = None, **options: Any) -> nn.Module:
    options = {**recipe.model_options, **options}
    if device == "meta":
        options.update(pretrained=False, device=None)
    try:
        with torch.device(device) if device else contextlib.nullcontext():
            return timm.create_model(recipe.model, **{k: v for k, v in options.items() if k != "device"})
    except TypeError as error:
        raise ValueError(f"model_options {recipe.model_options} do not fit {recipe.model}: {error}") from error
    except RuntimeError as error:
        if "Unknown model" not in str(error):
            raise
        hint = nearest(recipe.model, timm.list_models())
        raise ValueError(f"unknown model {recipe.model!r}{hint}; see `attnmix list models`") from error


def _optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    options = dataclasses.asdict(recipe.optimizer)
    betas = options.pop("betas")
    try:
        return create_optimizer_v2(
            module, lr=recipe.lr, **_given(options), **({} if betas is None else {"betas": tuple(betas)})
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"optimizer {_given(dataclasses.asdict(recipe.optimizer))} does not work: {error}") from error


def _scheduler(optimizer: Any, recipe: Recipe, updates_per_epoch: int) -> Scheduler | None:
    scheduler, _ = create_scheduler_v2(
        optimizer,
        **dataclasses.asdict(recipe.schedule),
        num_epochs=recipe.epochs,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    return scheduler


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# ------------------------------------------------------------------ evaluation


@torch.inference_mode()
def _evaluate(model: nn.Module, loader: Any, num_classes: int, accelerator: Accelerator) -> dict[str, Any]:
    """Return loss, top1, top5 (percent; None with five classes or fewer) and confusion [C][C]."""
    options: dict[str, Any] = {"validate_args": False, "sync_on_compute": False}  # gathered below instead
    top1 = MulticlassAccuracy(num_classes, average="micro", **options).to(accelerator.device)
    top5 = MulticlassAccuracy(num_classes, average="micro", top_k=min(5, num_classes), **options)
    top5 = top5.to(accelerator.device)
    confusion = MulticlassConfusionMatrix(num_classes, **options).to(accelerator.device)
    loss = MeanMetric(nan_strategy="disable", sync_on_compute=False).to(accelerator.device)
    model.eval()
    for images, labels in loader:
        with accelerator.autocast():
            logits = model(images.to(accelerator.device)).float()
        # Leaves out what pads the last batch of several processes.
        logits, labels = accelerator.gather_for_metrics((logits, labels.to(accelerator.device)))
        loss.update(nn.functional.cross_entropy(logits, labels), weight=len(labels))
        top1.update(logits, labels)
        if num_classes > 5:
            top5.update(logits, labels)
        confusion.update(logits, labels)
    return {
        "loss": loss.compute().item(),
        "top1": 100 * top1.compute().item(),
        "top5": 100 * top5.compute().item() if num_classes > 5 else None,
        "confusion": confusion.compute().tolist(),
    }


# ------------------------------------------------------------------ checkpoints


def _save(
    out: Path,
    task: Any,
    optimizer: Any,
    accelerator: Accelerator,
    recipe: Recipe,
    *,
    epoch: int,
    updates: int,
    history: list[dict[str, float]],
) -> None:
    # What each process has of its own: its random states and its method's generator.
    per_process = gather_object([{"rng": get_rng_state(), "task": task.get_task_state()}])
    if not accelerator.is_main_process:
        return
    ema = task.get_eval_model(ema=True) if recipe.ema is not None else None
    state = {
        "epoch": epoch,
        "updates": updates,
        "history": history,
        "recipe": dataclasses.asdict(recipe),
        "trainable": task.get_trainable_module().state_dict(),
        "ema": None if ema is None else ema.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": None if accelerator.scaler is None else accelerator.scaler.state_dict(),
        "per_process": per_process,
    }
    save_checkpoint(out / "checkpoint.pt", state)


def _load(saved: dict[str, Any], task: Any, optimizer: Any, accelerator: Accelerator) -> None:
    """Put everything back as `_save` found it. The scheduler is a function of the update, hence has no state."""
    task.get_trainable_module().load_state_dict(saved["trainable"])
    if saved["ema"] is not None:
        task.get_eval_model(ema=True).load_state_dict(saved["ema"])
    optimizer.load_state_dict(saved["optimizer"])
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(saved["scaler"])
    mine = saved["per_process"]
    if len(mine) == accelerator.num_processes:  # else: fresh random states, as on another machine
        task.load_task_state(mine[accelerator.process_index]["task"])
        set_rng_state(mine[accelerator.process_index]["rng"])


def _check_same_recipe(before: dict[str, Any], now: Recipe, out: Path) -> None:
    values = recipe_defaults(now)
    nested = {k: v for k, v in before.items() if isinstance(v, dict) and k not in values}
    before = {k: v for k, v in before.items() if k not in nested}
    before.update({f"{group}.{name}": value for group, items in nested.items() for name, value in items.items()})
    for name, value in values.items():
        if name not in FREE_ON_RESUME and before.get(name) != value:
            raise ValueError(
                f"cannot resume {out} with another recipe: {name} was {before.get(name)!r} and is now {value!r}; "
                "set it back, or choose another --out"
            )


# ------------------------------------------------------------------ what a person sees


def _check_finite(losses: list[Tensor], *, epoch: int, last_step: int, out: Path) -> None:
    finite = torch.stack(losses).isfinite()
    if not finite.all():
        bad = int(finite.logical_not().nonzero()[0])
        step = last_step - len(losses) + 1 + bad
        kept = f"the checkpoint in {out} is of an earlier epoch" if has_checkpoint(out) else "no checkpoint yet"
        raise FloatingPointError(
            f"the loss is {losses[bad].item()} in epoch {epoch}, step {step}: {kept}; "
            "try a lower lr, clip_grad 1.0, or precision no"
        )


@contextlib.contextmanager
def _progress_bar(console: Console, *, total: int, done: int) -> Iterator[Any]:
    """Yield update(epoch, steps, loss=, accuracy=, speed=); shows nothing where there is no terminal."""
    if console.quiet or not console.is_terminal:
        yield lambda *args, **kwargs: None
        return
    numbers = "loss {task.fields[loss]:.3f}  acc {task.fields[accuracy]:.1f} %  {task.fields[speed]:.0f} images/s"
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TextColumn(numbers))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        fields = {"epoch": 0, "loss": math.nan, "accuracy": math.nan, "speed": 0.0}
        bar_task = bar.add_task("train", total=total, completed=done, **fields)

        def update(epoch: int, steps: int, *, loss: Tensor, accuracy: Any, speed: float) -> None:
            # compute() would wait for the other processes: this process's own accuracy is enough here
            percent = 100 * float(accuracy.tp.sum() / (accuracy.tp.sum() + accuracy.fn.sum()))
            bar.update(bar_task, advance=steps, epoch=epoch, loss=loss.item(), accuracy=percent, speed=speed)

        yield update


def _epoch_line(entry: dict[str, float], epochs: int) -> str:
    parts = [f"epoch {int(entry['epoch']):>{len(str(epochs))}}/{epochs}", f"loss {entry['train_loss']:.3f}"]
    parts.append(f"train {entry['train_top1']:.1f} %")
    if "eval_top1" in entry:
        parts.append(f"eval {entry['eval_top1']:.1f} %")
    if "ema_top1" in entry:
        parts.append(f"ema {entry['ema_top1']:.1f} %")
    parts.append(f"{entry['images_per_second']:.0f} images/s")
    return "  ".join(parts)


def _write_lines(path: Path, entries: list[dict[str, float]]) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    os.replace(aside, path)
