"""Hugging Face Accelerate: a small ViT learns digits in scenes with TransMix, in one process or several.

python examples/accelerate_loop.py
torchrun --nproc-per-node 2 examples/accelerate_loop.py
"""

from types import SimpleNamespace

import timm
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from torchmetrics.aggregation import MeanMetric
from torchvision.transforms import Compose, Normalize, ToTensor

import attnmix
from attnmix.data import DigitsInScenes

SCENES = {"size": 32, "clutter": 0, "scale": (0.9, 1.0)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "weight_init": "moco"}


def main(
    epochs: int = 30,
    train_count: int = 1000,
    test_count: int = 500,
    folder: str = "runs/accelerate",
    resume: int = 0,
) -> attnmix.MixTask:
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())  # else no processes without a GPU
    set_seed(0)
    transform = Compose([ToTensor(), Normalize(0.5, 0.5)])
    train_data = DigitsInScenes("train", train_count=train_count, transform=transform, **SCENES)
    test_data = DigitsInScenes("test", test_count=test_count, transform=transform, **SCENES)
    batch_size = 25 // accelerator.num_processes
    train_loader = DataLoader(train_data, batch_size=batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, batch_size=100)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **VIT)

    # changed, 1 of 2: in the place of a mixup function and a loss
    task = attnmix.MixTask(model, attnmix.create_method("transmix", num_classes=10))

    optimizer = torch.optim.AdamW(task.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.2)
    step, optimizer, schedule = accelerator.prepare(task, optimizer, schedule)
    train_loader, test_loader = accelerator.prepare(train_loader, test_loader)
    # what save_state does not know of: where the method's draws stand
    draws = SimpleNamespace(state_dict=task.get_task_state, load_state_dict=task.load_task_state)
    accelerator.register_for_checkpointing(draws)
    if resume:
        accelerator.load_state(f"{folder}/epoch-{resume}")
    for epoch in range(resume + 1, epochs + 1):
        step.train()
        losses = MeanMetric().to(accelerator.device)
        for images, labels in train_loader:
            # changed, 2 of 2: in the place of mixing, model(images) and the loss
            loss = step(images, labels)["loss"]

            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            losses.update(loss.detach())
        accuracy = evaluate(accelerator, task.get_eval_model(), test_loader)
        accelerator.print(f"epoch {epoch} loss {losses.compute():.3f} accuracy {accuracy:.1f} %")
        accelerator.save_state(f"{folder}/epoch-{epoch}")
    if accelerator.is_main_process:
        save_file(task.get_eval_model().state_dict(), f"{folder}/model.safetensors")
    return task


@torch.inference_mode()
def evaluate(accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader) -> float:
    """Percent of all processes' images that the plain model gets right."""
    model.eval()
    right = [accelerator.gather_for_metrics(model(images).argmax(dim=1) == labels) for images, labels in loader]
    return 100 * torch.cat(right).float().mean().item()


if __name__ == "__main__":
    main()
