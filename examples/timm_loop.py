"""timm's training loop, its train.py's calls in their order: a small ViT learns digits in scenes with SMMix.

python examples/timm_loop.py
torchrun --nproc-per-node 2 examples/timm_loop.py
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import create_loader, resolve_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import TrainingTask, evaluation_sample_limit, load_task_ema_checkpoint, resume_task_checkpoint
from timm.utils import AverageMeter, CheckpointSaver, dispatch_clip_grad, init_distributed_device, random_seed

import attnmix
from attnmix.data import DigitsInScenes

SCENES = {"size": 32, "clutter": 0, "scale": (0.9, 1.0)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "weight_init": "moco"}


def main(
    epochs: int = 30, train_count: int = 1000, test_count: int = 500, folder: str = "runs/timm", resume: str = ""
) -> attnmix.MixTask:
    args = Namespace(device="cuda" if torch.cuda.is_available() else "cpu")
    device = init_distributed_device(args)
    random_seed(0, args.rank)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **VIT).to(device)
    config = resolve_data_config({"img_size": VIT["img_size"]}, model=model)
    inputs = {key: config[key] for key in ("input_size", "mean", "std")}
    shared = {**inputs, "num_workers": 0, "device": device, "distributed": args.distributed, "crop_pct": 1.0}
    train_data = DigitsInScenes("train", train_count=train_count, **SCENES)
    test_data = DigitsInScenes("test", test_count=test_count, **SCENES)
    batch_size = 25 // args.world_size
    train_loader = create_loader(train_data, batch_size=batch_size, is_training=True, no_aug=True, **shared)
    test_loader = create_loader(test_data, batch_size=100, **shared)

    # changed, 1 of 2: in the place of timm.task.ClassificationTask
    task = attnmix.MixTask(model, attnmix.create_method("smmix", num_classes=10))

    optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=2e-3, weight_decay=0.05)
    first_epoch = resume_task_checkpoint(task, resume, optimizer) if resume else 0
    task.setup_ema(decay=0.99, use_warmup=True)
    if resume:
        load_task_ema_checkpoint(task, resume)
    if args.distributed:
        task.prepare_distributed(device_ids=[device] if device.type == "cuda" else None)
    evaluator = task.create_evaluator(max_samples=evaluation_sample_limit(test_loader))
    Path(folder).mkdir(parents=True, exist_ok=True)
    saver = CheckpointSaver(task.get_trainable_module(), optimizer, checkpoint_dir=folder, task=task)
    options = {"warmup_epochs": 2, "step_on_epochs": False, "updates_per_epoch": len(train_loader)}
    schedule, epochs = create_scheduler_v2(optimizer, num_epochs=epochs, **options)
    schedule.step_update(first_epoch * len(train_loader))
    for epoch in range(first_epoch, epochs):
        if args.distributed:
            train_loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(epoch, task, train_loader, optimizer, schedule)
        top1 = validate(task.get_eval_model(), test_loader, evaluator, args)
        ema_top1 = validate(task.get_eval_model(ema=True), test_loader, evaluator, args)
        if args.rank == 0:
            print(f"epoch {epoch + 1} loss {loss:.3f} accuracy {top1:.1f} % EMA {ema_top1:.1f} %")
            saver.save_checkpoint(epoch, metric=ema_top1)
    return task


def train_one_epoch(epoch: int, task: TrainingTask, loader: Any, optimizer: Any, schedule: Any) -> float:
    task.get_trainable_module().train()
    losses = AverageMeter()
    for update, (images, labels) in enumerate(loader, start=epoch * len(loader) + 1):
        # changed, 2 of 2: no Mixup before it, in the loader or here; timm's loop calls any task like this
        loss = task(images, labels)["loss"]

        loss.backward()
        dispatch_clip_grad(task.get_clip_parameters(), value=5.0)
        optimizer.step()
        optimizer.zero_grad()
        task.update_ema(step=update)
        schedule.step_update(update)
        losses.update(loss.item(), len(images))
    return losses.avg


@torch.inference_mode()
def validate(model: torch.nn.Module, loader: Any, evaluator: Any, args: Namespace) -> float:
    model.eval()
    evaluator.reset()
    for images, labels in loader:
        evaluator.update(model(images), labels)
    return evaluator.compute(args.distributed)["top1"]


if __name__ == "__main__":
    main()
