"""What a run trains, and with what: all of it built from the recipe, on this process's device."""

import math

from accelerate import Accelerator
from accelerate.utils import set_seed

import attnmix
from attnmix.methods.label_source import check_label_maps
from attnmix.training.loader import create_loaders
from attnmix.training.recipe import Recipe
from attnmix.training.setup import create_data, create_model, create_optimizer, create_scheduler
from attnmix.training.sharding import shard
from attnmix.training.shares import expected_samples

__all__ = ["Assembly"]


class Assembly:
    """Data, task, optimizer and schedule of a run.

    Attributes:
        class_names: of the data.
        num_classes: their number.
        task: the `MixTask`.
        step: the task as processes and precision want it called: step(images, labels).
        optimizer: of its parameters.
        scheduler: stepped by updates.
        train_loader: of this process's share.
        eval_loader: likewise.
        batches: of an epoch and process.
        updates_per_epoch: of the weights.
        expected_samples: keywords of `told_shares`.
    """

    def __init__(self, recipe: Recipe, accelerator: Accelerator) -> None:
        train_data, eval_data = create_data(recipe)
        self.class_names = [str(name) for name in train_data.class_names]
        self.num_classes = train_data.num_classes
        model = create_model(recipe, num_classes=self.num_classes)
        method = attnmix.create_method(
            recipe.method, num_classes=self.num_classes, **{"seed": recipe.seed, **recipe.method_options}
        )
        check_label_maps(method, given=recipe.label_maps is not None)
        set_seed(recipe.seed, device_specific=True)  # dropout and stochastic depth, other on every process
        self.task = attnmix.MixTask(model, method).to(accelerator.device)
        in_parts = recipe.fsdp != "no" and accelerator.num_processes > 1
        if in_parts:
            # It can be copied only while it is whole. Buffers stay so, and cannot be moved in one call with parts.
            self._keep_average(recipe, foreach=False)
            shard(self.task, keep_gathered=recipe.fsdp == "shard_grad_op")
        optimizer = create_optimizer(self.task.get_trainable_module(), recipe)
        if recipe.compile:
            self.task.compile()
        self.train_loader, self.eval_loader = create_loaders(train_data, eval_data, recipe, accelerator)
        self.expected_samples = expected_samples(
            train_data,
            batch_size=recipe.batch_size,
            processes=accelerator.num_processes,
            workers=recipe.loader.workers,
        )
        # step(images, labels): the task, DDP unless it is in parts, autocast
        self.step = accelerator.prepare_model(self.task, evaluation_mode=in_parts)
        self.optimizer = accelerator.prepare(optimizer)
        if not in_parts:
            self._keep_average(recipe)  # nothing that DistributedDataParallel would wait for gradients of
        self.batches = len(self.train_loader)
        self.updates_per_epoch = math.ceil(self.batches / recipe.accumulation_steps)
        self.scheduler = create_scheduler(self.optimizer, recipe, updates_per_epoch=self.updates_per_epoch)

    def _keep_average(self, recipe: Recipe, **options: bool) -> None:
        if recipe.ema is not None:
            # without warm-up a short run's is still its first weights
            self.task.setup_ema(decay=recipe.ema, use_warmup=True, **options)
