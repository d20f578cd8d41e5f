"""What a run is made of, built from its recipe: device, model, optimizer, schedule."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs
from safetensors.torch import load_file
from timm.data.model_config import resolve_input_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn

from attnmix._nearest import nearest
from attnmix.data import LabelledImages, create_datasets
from attnmix.data.label_maps import LabelMapStore
from attnmix.data.mapped import MappedImages
from attnmix.mixing import LabelMaps
from attnmix.training.loader import order_seed
from attnmix.training.recipe import Recipe
from attnmix.training.trackers import check_trackers

__all__ = [
    "create_accelerator",
    "create_data",
    "create_model",
    "create_optimizer",
    "create_scheduler",
    "model_inputs",
]


def create_model(recipe: Recipe, *, num_classes: int) -> nn.Module:
    """Build the recipe's timm model: its weights depend on the seed (and `init`) alone.

    Raises:
        ValueError: unknown model or option, weights that do not fit; names the nearest model.
    """
    torch.manual_seed(recipe.seed)
    model: Any = _build_model(recipe, num_classes=num_classes)
    if recipe.init is not None:
        if not Path(recipe.init).is_file():
            raise ValueError(f"init: there is no file {recipe.init!r}")
        try:
            model.load_state_dict(load_file(recipe.init))
        except Exception as error:  # safetensors has its own error type, torch says RuntimeError
            raise ValueError(f"init: {recipe.init!r} does not fit {recipe.model}: {error}") from error
    if recipe.grad_checkpointing:
        try:
            model.set_grad_checkpointing(True)
        except (AssertionError, AttributeError, NotImplementedError, TypeError) as error:
            raise ValueError(
                f"grad_checkpointing is on, but {recipe.model} offers none: set it to false"
            ) from error
    return model


def create_data(recipe: Recipe) -> tuple[LabelledImages, LabelledImages]:
    """Return the recipe's training and evaluation sets, transformed for its model.

    With `label_maps` an item of the training set is (image, `LabelMaps` of one image), which a loader's own
    collation makes `LabelMaps` of a batch.

    Raises:
        ValueError: what `attnmix.data.create_datasets` finds wrong; label maps that are damaged or of other data.
    """
    inputs = model_inputs(recipe)
    train_data, eval_data = create_datasets(
        recipe.data,
        input_size=inputs["input_size"],
        mean=inputs["mean"],
        std=inputs["std"],
        train_split=recipe.train_split,
        eval_split=recipe.eval_split,
        augment=dataclasses.asdict(recipe.augment),
        data_options=recipe.data_options,
        batch_size=recipe.batch_size,
    )
    if recipe.label_maps is None:
        return train_data, eval_data
    where = f"{recipe.data} {recipe.train_split}"
    return MappedImages(train_data, LabelMapStore(recipe.label_maps), where=where, wrap=LabelMaps), eval_data


def model_inputs(recipe: Recipe) -> dict[str, Any]:
    """Return what the recipe's model takes: `input_size` (C, H, W), `mean`, `std`. Builds no weights."""
    with torch.device("meta"):
        return resolve_input_data_config(_build_model(recipe, pretrained=False))


def _build_model(recipe: Recipe, **options: Any) -> nn.Module:
    if "num_classes" in recipe.model_options:
        raise ValueError("model_options.num_classes cannot be set: the data set decides the number of classes")
    try:
        return timm.create_model(recipe.model, **{**recipe.model_options, **options})
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, RuntimeError, TypeError) as error:
        if "Unknown model" in str(error):
            hint = nearest(recipe.model, timm.list_models())
            raise ValueError(f"unknown model {recipe.model!r}{hint}; see `attnmix list models`") from error
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"model {recipe.model!r} cannot be made with model_options {recipe.model_options}: {reason}. A "
            "recipe's are for its own model: --model_options '{img_size: 48}' replaces all of them"
        ) from error


def create_accelerator(recipe: Recipe, out: Path) -> Accelerator:
    """Return the run's own Accelerator.

    Raises:
        ValueError: this machine lacks the recipe's device or a tracker, or the device its precision.
    """
    check_trackers(recipe.trackers)
    kind, _, index = recipe.device.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device is {recipe.device!r}, but torch sees {count} CUDA devices here; use auto or cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device is 'mps', but torch sees no such device here; use auto or cpu")
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # by torchrun, which chooses each process's device
    # Accelerate remembers device and precision for the whole process; another run may want others.
    AcceleratorState._reset_state(reset_partial_state=not launched)
    GradientState._reset_state()
    # without a GPU Accelerate joins processes only if told that the CPU is meant; else each trains alone
    on_cpu = kind == "cpu" or (kind == "auto" and launched and not torch.cuda.is_available())
    with _environment("ACCELERATE_TORCH_DEVICE", recipe.device if index and not launched else None):
        accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision=recipe.precision,
            project_dir=str(out),
            dataloader_config=DataLoaderConfiguration(
                use_seedable_sampler=True, data_seed=order_seed(recipe), non_blocking=True
            ),
            kwargs_handlers=[DistributedDataParallelKwargs()],
        )
    if launched and accelerator.num_processes == 1:
        raise ValueError(
            f"{os.environ['WORLD_SIZE']} processes were started, but on device {recipe.device} each would train "
            "alone, into one folder: set device to cpu or cuda, or start one process"
        )
    if recipe.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision is 'fp16', which needs a GPU; on the CPU use bf16 or no")
    return accelerator


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for a while; None changes nothing."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def create_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return timm's optimizer for all of the module's parameters, `module.no_weight_decay()` honoured.

    Raises:
        ValueError: unknown name, or an option that this optimizer does not take.
    """
    options = {name: v for name, v in dataclasses.asdict(recipe.optimizer).items() if v is not None}
    try:
        return create_optimizer_v2(module, lr=recipe.lr, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"optimizer {options} does not work: {error}") from error


def create_scheduler(optimizer: Any, recipe: Recipe, *, updates_per_epoch: int) -> Scheduler:
    """Return timm's schedule, to be stepped with `step_update(updates)` after each update.

    The recipe's epochs count the cool-down, timm's do not.
    """
    scheduler, _ = create_scheduler_v2(
        optimizer,
        **dataclasses.asdict(recipe.schedule),
        num_epochs=recipe.epochs - recipe.schedule.cooldown_epochs,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    if recipe.optimizer.layer_decay is not None:
        scheduler.step_update(0)  # without warm-up timm would leave the layers' rates alone until the first update
    return scheduler
