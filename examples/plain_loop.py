"""A plain PyTorch loop: a small ViT learns digits in scenes with TransMix and is saved as a plain timm model."""

import timm
import torch
from safetensors.torch import save_file
from timm.utils import AverageMeter
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, ToTensor

import attnmix
from attnmix.data import DigitsInScenes

SCENES = {"size": 32, "clutter": 0, "scale": (0.9, 1.0)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "weight_init": "moco"}


def main(
    epochs: int = 30, train_count: int = 1000, test_count: int = 500, weights: str = "model.safetensors"
) -> attnmix.MixTask:
    torch.manual_seed(0)
    transform = Compose([ToTensor(), Normalize(0.5, 0.5)])
    train_data = DigitsInScenes("train", train_count=train_count, transform=transform, **SCENES)
    test_data = DigitsInScenes("test", test_count=test_count, transform=transform, **SCENES)
    train_loader = DataLoader(train_data, batch_size=25, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, batch_size=100)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **VIT)

    # changed, 1 of 2: in the place of a mixup function and a loss
    task = attnmix.MixTask(model, attnmix.create_method("transmix", num_classes=10))

    optimizer = torch.optim.AdamW(task.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.2)
    for epoch in range(1, epochs + 1):
        task.train()
        losses = AverageMeter()
        for images, labels in train_loader:
            # changed, 2 of 2: in the place of mixing, model(images) and the loss
            loss = task(images, labels)["loss"]

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.update(loss.item(), len(images))
        accuracy = evaluate(task.get_eval_model(), test_loader)
        print(f"epoch {epoch} loss {losses.avg:.3f} accuracy {accuracy:.1f} %")
    save_file(task.get_eval_model().state_dict(), weights)  # a plain timm model's
    return task


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """Percent of the loader's images that the plain model gets right."""
    model.eval()
    right = [model(images).argmax(dim=1) == labels for images, labels in loader]
    return 100 * torch.cat(right).float().mean().item()


if __name__ == "__main__":
    main()
