"""What `attnmix bench data` measures: the recipe's own loader, and its own training step."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.utils.data import DataLoader

import attnmix
from attnmix.benchmark.data import Rate, loader_rate, step_rate
from attnmix.training.loader import create_loaders, set_epoch
from attnmix.training.recipe import Recipe
from attnmix.training.setup import create_accelerator, create_data, create_model, create_optimizer


def measure_rates(
    recipe: Recipe, workers_list: list[int], *, batches: int, seconds: float, steps: int
) -> tuple[dict[int, Rate], Rate, torch.device]:
    """The loader's rate for each number of workers, the model's rate, and the device.

    Raises:
        ValueError: what the recipe has wrong; a batch that does not fit into the device's memory.
    """
    accelerator = create_accelerator(recipe, Path("."))
    train_data, eval_data = create_data(recipe)

    def loader_with(workers: int) -> DataLoader:
        with_workers = replace(recipe, loader=replace(recipe.loader, workers=workers))
        loader, _ = create_loaders(train_data, eval_data, with_workers, accelerator)
        set_epoch(loader, 0)
        return loader

    with Progress(transient=True, disable=not Console().is_terminal) as bar:

        def shown(name: str) -> Callable[[int, int], None]:
            row = bar.add_task(name, total=None)
            return lambda done, total: bar.update(row, completed=done, total=total)

        # the model first: workers that still read ahead would take cores from it
        images, labels = next(iter(loader_with(0)))[:2]
        step = training_step(recipe, images, labels, accelerator, num_classes=train_data.num_classes)
        try:
            model = step_rate(
                step,
                images=len(images),
                steps=steps,
                device=accelerator.device,
                progress=shown("model"),
            )
        except torch.OutOfMemoryError as error:
            raise ValueError(f"batch_size {len(images)} does not fit on {accelerator.device}: lower it") from error
        loaders = {}
        for workers in workers_list:
            loaders[workers] = loader_rate(
                loader_with(workers),  # whose workers end with the call
                batches=batches,
                seconds=seconds,
                warmup=2 + 2 * workers,  # each prepares two batches ahead
                progress=shown(f"loader, {workers} workers"),
            )
    return loaders, model, accelerator.device


def training_step(
    recipe: Recipe, images: Tensor, labels: Tensor, accelerator: Accelerator, *, num_classes: int
) -> Callable[[], None]:
    """A step as the training loop makes it, on one batch again and again; weights hardly move."""
    images, labels = images.to(accelerator.device), labels.to(accelerator.device)
    options = {"seed": recipe.seed, **recipe.method_options}
    method = attnmix.create_method(recipe.method, num_classes=num_classes, **options)
    task = attnmix.MixTask(create_model(recipe, num_classes=num_classes), method).to(accelerator.device)
    # one batch for many steps at the recipe's rate could end in NaN, which some methods refuse
    optimizer: Any = create_optimizer(task.get_trainable_module(), replace(recipe, lr=1e-8))
    if recipe.compile:
        task.compile()
    forward, optimizer = accelerator.prepare(task, optimizer)
    if recipe.ema is not None:
        task.setup_ema(decay=recipe.ema, use_warmup=True)
    task.get_trainable_module().train()
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        is_update = count % recipe.accumulation_steps == 0
        with nullcontext() if is_update else accelerator.no_sync(forward):
            accelerator.backward(forward(images, labels)["loss"] / recipe.accumulation_steps)
        if not is_update:
            return
        if recipe.clip_grad is not None:
            accelerator.clip_grad_norm_(task.get_clip_parameters(), recipe.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        if recipe.ema is not None:
            task.update_ema(step=count // recipe.accumulation_steps)

    return step
