"""The training loop: one recipe in, one trained model out. It knows no method by name.

A run's folder holds `recipe.yaml`, `metrics.jsonl` (a line per epoch), `tensorboard/`, `checkpoint.pt` and the one
before it, `result.json` and, as a plain timm checkpoint, `model/`.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from attnmix.data import evaluation_settings
from attnmix.evaluation.accuracy import evaluate_accuracy
from attnmix.training.assembly import Assembly
from attnmix.training.card import model_card
from attnmix.training.checkpoint import CHECKPOINT, has_checkpoint, load_latest, set_aside
from attnmix.training.export import export_model
from attnmix.training.faults import explain_dead_workers, explain_memory_and_lost
from attnmix.training.loader import epoch_batches, set_epoch
from attnmix.training.progress import epoch_line, progress_bar
from attnmix.training.reading import save_recipe
from attnmix.training.recipe import Recipe
from attnmix.training.result import TrainingResult, write_lines, write_text
from attnmix.training.resuming import Position, load_run, refuse_changes, save_run
from attnmix.training.setup import create_accelerator, create_model, model_inputs
from attnmix.training.sharding import evaluated, is_sharded, share_buffers, sync_gradients, whole
from attnmix.training.shares import told_shares
from attnmix.training.soundness import diverged, first_unsound, keep_batch, unsound_weight
from attnmix.training.stopping import Stopped, StopRequests
from attnmix.training.sums import EpochSums
from attnmix.training.trackers import tracking

__all__ = ["TrainingResult", "train"]

RECIPE = "recipe.yaml"
CHECK_EVERY = 10  # steps between looks at the loss: each look waits for the device
CHECK_SECONDS = 1.0  # between looks at slower steps
SKIPPED_ON_END = 10  # updates skipped one after the other are no accident

WindowBatch = tuple[int, Tensor, Tensor, Any]  # index in the epoch, loss, images, labels


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> TrainingResult:
    """Train by `recipe` and leave everything in the folder `out`.

    Initial weights and the order of the data depend on the seed, never on the method. A run that is resumed
    goes on as if it had never stopped: on a CPU to the same bits. SIGINT, SIGTERM, SIGUSR1 and SIGHUP end it after
    the step that it is in, with a checkpoint.

    Args:
        recipe: see `attnmix.training.load_recipe`.
        out: the run's folder; made where missing.
        resume: go on from `out`'s checkpoint; more epochs than before extend the run.
        force: resume although the recipe, or the number of processes, is another than the run's.
        progress: show a bar on a terminal, and a line per epoch.

    Raises:
        ValueError: a value the user can put right.
        FileExistsError: `out` holds a run and `resume` is off.
        FileNotFoundError: nothing to resume.
        FloatingPointError: the loss or a weight is not finite; names the epoch. The checkpoint is older.
        MemoryError: a batch does not fit; names one that would, and trains the same.
        OSError: something cannot be written; the last checkpoint is whole.
        Stopped: a signal ended it; the checkpoint is of that moment. It is a `KeyboardInterrupt`.
    """
    run = _Run(recipe, Path(out), resume=resume, force=force, progress=progress)
    first = run.position.epoch
    with tracking(run.accelerator, recipe, run.out, first_epoch=first, resumed=resume) as run.track:
        with (
            StopRequests() as run.requests,
            run.progress_bar() as run.bar,
            explain_memory_and_lost(recipe, run.accelerator, run.kept),
            explain_dead_workers(),
        ):
            for epoch in range(first + 1, recipe.epochs + 1):
                run.train_epoch(epoch)
                run.end_epoch(epoch)
        return run.conclude()


class _Run(Assembly):
    """A run: what it is made of, and how far it is."""

    requests: StopRequests
    bar: Callable[..., None]
    track: Callable[[Mapping[str, float]], None]

    def __init__(self, recipe: Recipe, out: Path, *, resume: bool, force: bool, progress: bool) -> None:
        if has_checkpoint(out) and not resume:
            raise FileExistsError(
                f"{out} already holds a run: add --resume to go on with it, or choose another --out"
            )
        self.recipe, self.out = recipe, out
        saved, notice = load_latest(out) if resume else (None, None)
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        self.accelerator = create_accelerator(recipe, out)
        self.is_main = self.accelerator.is_main_process
        self.console = Console(quiet=not (progress and self.is_main))
        changes = []
        if saved is not None:
            processes = self.accelerator.num_processes
            changes = refuse_changes(saved, recipe, num_processes=processes, path=self.checkpoint, force=force)

        super().__init__(recipe, self.accelerator)
        self.position, self._begun = Position(), None
        if saved is not None:
            self.position, self._begun = load_run(
                saved, self.task, self.optimizer, accelerator=self.accelerator, recipe=recipe
            )
            changes += self._reordered(saved)
            if self.position.batch and (changes or self._begun is None):
                changes.append(f"epoch {self.position.epoch + 1} begins anew")
                self.position.batch, self._begun = 0, None
            if self.position.batch == 0:  # an epoch may be of another number of updates than it was
                self.position.updates = self.position.epoch * self.updates_per_epoch
            self.scheduler.step_update(self.position.updates)  # by the schedule of now, which may have more epochs
        self.measured: dict[str, Any] | None = None
        self._saved_at, self._skipped_on_end = time.monotonic(), 0
        self._stop_by = self._is_due = 0
        self._look_every, self._looked = 1, time.perf_counter()
        if notice is not None:
            changes.insert(0, notice)
            if self.is_main:
                set_aside(self.checkpoint)
        self._begin(changes)

    def _reordered(self, saved: dict[str, Any]) -> list[str]:
        """What changes the order of a stream, whose shards are dealt out to workers."""
        before, now = saved["recipe"].get("loader.workers"), self.recipe.loader.workers
        if before in (None, now) or not isinstance(self.train_loader.dataset, IterableDataset):
            return []
        return [f"loader.workers was {before} and is now {now}, which changes the order of a stream"]

    def _begin(self, notes: list[str]) -> None:
        """Write what is known, and say what ought to be."""
        if self.is_main:
            self.out.mkdir(parents=True, exist_ok=True)
            save_recipe(self.recipe, self.out / RECIPE)
            write_lines(self.out / "metrics.jsonl", self.position.history)
        warmup = self.recipe.schedule.warmup_epochs
        if warmup >= self.recipe.epochs:
            notes.append(f"all {self.recipe.epochs} epochs are warm-up (schedule.warmup_epochs {warmup})")
        if self.recipe.fsdp != "no" and self._is_alone:
            notes.append(f"fsdp {self.recipe.fsdp} parts nothing, as there is one process")
        for note in notes:
            self.console.print(f"note: {note}", highlight=False, soft_wrap=True)

    @property
    def device(self) -> torch.device:
        """Where this process trains."""
        return self.accelerator.device

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file."""
        return self.out / CHECKPOINT

    def progress_bar(self) -> Any:
        """The bar of all epochs' steps."""
        done = self.position.epoch * self.batches + self.position.batch
        return progress_bar(self.console, total=self.recipe.epochs * self.batches, done=done)

    # ------------------------------------------------------------ an epoch

    def train_epoch(self, epoch: int) -> None:
        """The epoch's batches that are not done yet."""
        recipe, position = self.recipe, self.position
        self.sums = EpochSums(self.num_classes, self.accelerator)
        if self._begun is not None:
            self.sums.load(self._begun)
            self._begun = None
        set_epoch(self.train_loader, epoch - 1)
        self.task.get_trainable_module().train()
        self.optimizer.zero_grad()
        unchecked: list[Tensor] = []
        window_batches: list[WindowBatch] = []  # where an update may be left out, to keep the one that did it
        self._looked = time.perf_counter()
        batches = epoch_batches(self.train_loader, self.batches, first=position.batch)
        for index, (images, labels), is_last in batches:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            # Gradients gather over a window of batches; the last window of an epoch may be shorter.
            window_start = index - index % recipe.accumulation_steps
            window = min(recipe.accumulation_steps, self.batches - window_start)
            is_update = is_last or index + 1 == window_start + window
            with self._gathering(is_update):
                result = self.step(images, labels)
                self.accelerator.backward(result["loss"] / window)
            if recipe.nonfinite == "skip":
                window_batches.append((index, result["loss"].detach(), images, labels))
            if is_update:
                if index + 1 < window_start + window:  # a stream that ended before its time
                    _scale_gradients(self.task.get_clip_parameters(), window / (index + 1 - window_start))
                self._update(epoch, window_batches)
                window_batches = []
                position.batch = index + 1
            self.sums.add(result, len(images))
            unchecked.append(result["loss"].detach())
            if len(unchecked) >= self._look_every or is_last:
                self._look(epoch, index + 1, unchecked)
                unchecked = []
            if is_update:
                self._obey()
        if not self.sums:
            raise ValueError(f"the training data {recipe.data} gave not one batch in epoch {epoch}")
        self.sums.freeze()
        seen = self.sums.images // self.accelerator.num_processes
        if epoch == 1 and not (self._is_alone and seen == self.expected_samples["expected"]):
            told = told_shares(self.accelerator, seen, **self.expected_samples)
            self.console.print(told, highlight=False, soft_wrap=True)

    def _gathering(self, is_update: bool) -> contextlib.AbstractContextManager[Any]:
        """Processes add up their gradients before an update alone, and begin each step with the same buffers."""
        if is_sharded(self.task):
            sync_gradients(self.task, is_update)
            share_buffers(self.task)  # as DistributedDataParallel does by itself
            return contextlib.nullcontext()
        return contextlib.nullcontext() if is_update else self.accelerator.no_sync(self.step)

    def _update(self, epoch: int, window: list[WindowBatch]) -> None:
        """Move the weights by the gathered gradients."""
        limit, skips = self.recipe.clip_grad, self.recipe.nonfinite == "skip"
        norm = torch.zeros(())
        if limit is not None or skips:
            parameters = self.task.get_clip_parameters()
            norm = self.accelerator.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        first = self.optimizer.param_groups[0]
        self.sums.lr = first["lr"] / first.get("lr_scale", 1.0)  # the rate before layer_decay
        # the gradients' norm is the same in all processes; with fp16 the scaler skips by itself
        if skips and self.accelerator.scaler is None and not torch.as_tensor(whole(norm)).isfinite():
            self._skip(epoch, window)
        else:
            self.optimizer.step()
            self._skipped_on_end = 0
        self.optimizer.zero_grad()
        self.position.updates += 1
        self.scheduler.step_update(self.position.updates)
        if self.recipe.ema is not None:
            self.task.update_ema(step=self.position.updates)

    def _skip(self, epoch: int, window: list[WindowBatch]) -> None:
        """Leave this update out, and keep the first batch of such."""
        # a gradient alone may overflow, or another process's loss: then the last
        index, _, images, labels = next((one for one in window if not one[1].isfinite()), window[-1])
        self.sums.skipped += 1
        self._skipped_on_end += 1
        kept = ""
        if self.sums.skipped == 1:
            kept = ": " + keep_batch(images, labels, self.out, epoch=epoch, step=index + 1, process=self._rank)
        what = f"a gradient is not finite in epoch {epoch}, step {index + 1}"
        if self._skipped_on_end == SKIPPED_ON_END:
            raise diverged(f"{what}, the {SKIPPED_ON_END}th update skipped on end", kept=self.kept())
        self.console.print(f"note: {what}: update skipped{kept}", highlight=False, soft_wrap=True)

    def _look(self, epoch: int, step: int, losses: list[Tensor]) -> None:
        """Wait for the device: are the losses sound, is a checkpoint due, has anybody asked to stop?"""
        bad = first_unsound(losses) if self.recipe.nonfinite == "stop" else None
        milliseconds = int(1000 * (time.perf_counter() - self._looked)) // len(losses)
        self._stop_by, self._is_due, any_bad, slowest = self.requests.agreed(
            self.accelerator, self._minutes_passed(), bad is not None, milliseconds
        )
        self._look_every = max(1, min(CHECK_EVERY, int(1000 * CHECK_SECONDS) // max(1, slowest)))
        self._looked = time.perf_counter()
        if any_bad:
            number = step - len(losses) + (bad or 0)
            # all processes ask for their batch, since loaders agree on their random states
            set_epoch(self.train_loader, epoch - 1)
            _, (images, labels), _ = next(epoch_batches(self.train_loader, self.batches, first=number))
            if bad is None:
                raise diverged(f"the loss of another process is not finite in epoch {epoch}", kept=self.kept())
            what = f"the loss is {losses[bad].item()} in epoch {epoch}, step {number + 1}"
            told = keep_batch(images, labels, self.out, epoch=epoch, step=number + 1, process=self._rank)
            raise diverged(f"{what} ({told})", kept=self.kept())
        sums = self.sums
        self.bar(epoch, len(losses), loss=losses[-1], accuracy=sums.accuracy, speed=sums.speed)

    def _obey(self) -> None:
        """After an update: stop where all processes agreed to, or write the checkpoint that is due."""
        if self._is_alone:
            self._stop_by = self.requests.received
        if self._stop_by:
            self._stop(self._stop_by)
        elif self._is_due:
            self._is_due = 0
            self._save(self.sums)

    # ------------------------------------------------------------ between epochs

    def end_epoch(self, epoch: int) -> None:
        """Evaluate, write the epoch's numbers and the checkpoint."""
        recipe, position = self.recipe, self.position
        position.updates = epoch * self.updates_per_epoch  # also after a stream that ended before its time
        self.scheduler.step_update(position.updates)
        self._check_weights(f"after epoch {epoch}")
        entry: dict[str, float] = {"epoch": epoch, **self.sums.entry()}
        if math.isnan(entry["train_loss"]):
            raise diverged(f"not one loss of epoch {epoch} is finite", kept=self.kept())
        is_last = epoch == recipe.epochs
        if epoch % recipe.eval_every == 0 or is_last:
            entry.update(self._evaluate(epoch))
        entry.update(seconds=self.sums.seconds, images_per_second=self.sums.speed)
        position.history.append(entry)
        position.epoch, position.batch = epoch, 0
        self.track(entry)
        if self.is_main:
            write_lines(self.out / "metrics.jsonl", position.history)
        self.console.print(epoch_line(entry, recipe.epochs), highlight=False, soft_wrap=True)
        (stop,) = self.requests.agreed(self.accelerator)
        if epoch % recipe.checkpoint_every == 0 or is_last:
            self._save()
        if stop and not is_last:
            self._stop(stop)

    def _evaluate(self, epoch: int) -> dict[str, float]:
        found = {}
        for prefix in ("eval", "ema") if self.recipe.ema is not None else ("eval",):
            model = evaluated(self.task, ema=prefix == "ema")
            share_buffers(model)
            self.measured = evaluate_accuracy(model, self._watched(), self.num_classes, self.accelerator)
            if not math.isfinite(self.measured["loss"]):
                what = f"the evaluated loss is {self.measured['loss']} after epoch {epoch}"
                raise diverged(what, kept=self.kept())
            for name in ("loss", "top1", "top5"):
                if self.measured[name] is not None:
                    found[f"{prefix}_{name}"] = self.measured[name]
        return found

    def _watched(self) -> Iterator[Any]:
        """Evaluation batches; a long evaluation need not be waited for: resuming does it again."""
        for index, batch in enumerate(self.eval_loader):
            if self._is_alone or index % CHECK_EVERY == CHECK_EVERY - 1:
                (stop,) = self.requests.agreed(self.accelerator)
                if stop:
                    self._stop(stop)
            yield batch

    def conclude(self) -> TrainingResult:
        """Export the model, and write what it came to."""
        recipe, history = self.recipe, self.position.history
        if self.measured is None:  # a finished run, resumed
            model = evaluated(self.task, ema=recipe.ema is not None)
            share_buffers(model)
            self.measured = evaluate_accuracy(model, self.eval_loader, self.num_classes, self.accelerator)
        model = self._whole_model()
        total = sum(entry["seconds"] for entry in history)
        images = sum(entry["seconds"] * entry["images_per_second"] for entry in history)
        result = TrainingResult(
            **self.measured,
            class_names=self.class_names,
            history=history,
            seconds=total,
            images_per_second=images / total,
            model=str(self.out / "model"),
            checkpoint=str(self.checkpoint),
        )
        if self.is_main:
            export_model(
                model,
                self.out / "model",
                class_names=result.class_names,
                card=model_card(
                    recipe,
                    name=self.out.resolve().name,
                    class_names=result.class_names,
                    top1=result.top1,
                    top5=result.top5,
                    loss=result.loss,
                    images=sum(map(sum, result.confusion)),
                    processes=self.accelerator.num_processes,
                ),
                **evaluation_settings(
                    recipe.data, model_inputs(recipe)["input_size"], dataclasses.asdict(recipe.augment)
                ),
            )
            text = json.dumps(dataclasses.asdict(result), indent=1, allow_nan=False)
            write_text(self.out / "result.json", text)
        self._leave()
        return result

    def _whole_model(self) -> nn.Module:
        """The trained model as one process has it."""
        model: Any = self.task.get_eval_model(ema=self.recipe.ema is not None)
        if not is_sharded(self.task):
            return cast(nn.Module, model)
        weights = whole(model.state_dict(), keep=self.is_main)
        plain = create_model(dataclasses.replace(self.recipe, init=None), num_classes=self.num_classes)
        if self.is_main:
            plain.load_state_dict(weights)
        return plain

    # ------------------------------------------------------------ checkpoints

    @property
    def _is_alone(self) -> bool:
        return self.accelerator.num_processes == 1

    @property
    def _rank(self) -> int:
        return self.accelerator.process_index

    def _minutes_passed(self) -> bool:
        minutes = self.recipe.checkpoint_minutes
        return self.is_main and minutes is not None and time.monotonic() - self._saved_at > 60 * minutes

    def _check_weights(self, when: str) -> None:
        unsound = unsound_weight(self.task.get_trainable_module())
        if unsound is not None:
            raise diverged(f"{unsound} is not finite {when}", kept=self.kept())

    def _save(self, sums: EpochSums | None = None) -> None:
        if sums is not None:  # after an epoch they are checked before its evaluation
            self._check_weights(f"in epoch {self.position.epoch + 1}, step {self.position.batch}")
        options = {"accelerator": self.accelerator, "recipe": self.recipe}
        save_run(self.checkpoint, self.task, self.optimizer, self.position, sums=sums, **options)
        self._saved_at = time.monotonic()

    def _stop(self, number: int) -> None:
        self._save(self.sums if self.position.batch else None)
        self._leave()
        raise Stopped(number)

    def _leave(self) -> None:
        """End the processes' group once all are here, and DistributedDataParallel before it.

        Were one to end while the first still writes, torchrun would kill the first. Were DistributedDataParallel
        freed later, its reducer would take the group with it while holding the interpreter's lock, and wait for
        threads of gloo's that may wait for that lock (pytorch/pytorch#56297; so it is in torch 2.13).
        """
        self.accelerator.wait_for_everyone()
        del self.step
        self.accelerator.free_memory()
        self.accelerator.end_training()

    def kept(self) -> str:
        """What of the run is there still."""
        if not has_checkpoint(self.out):
            return "no checkpoint yet"
        return f"the checkpoint in {self.out} is of an earlier moment"


def _scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
