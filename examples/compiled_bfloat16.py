"""A step of several methods with torch.compile and bfloat16 autocast, on a GPU where there is one."""

import timm
import torch

import attnmix

NAMES = ("none", "cutmix", "transmix", "smmix", "tl-align", "tokenmixup", "puzzlemix")


def main(backend: str = "inductor") -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 224 if device == "cuda" else 64  # bfloat16 is slow on most CPUs
    images, labels = torch.randn(8, 3, size, size, device=device), torch.randint(10, (8,), device=device)
    plain = timm.create_model("deit_tiny_patch16_224", num_classes=10, img_size=size).to(device)
    model = torch.compile(plain, backend=backend)
    for name in NAMES:
        task = attnmix.MixTask(model, attnmix.create_method(name, num_classes=10))
        optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = task(images, labels)["loss"]
        loss.backward()
        optimizer.step()
        print(f"{name:9} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
