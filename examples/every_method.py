"""A step of each method in a plain PyTorch loop: an unmodified timm model, fused attention on."""

import timm
import torch

import attnmix


def main() -> None:
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))  # small, for any machine
    for name, kind in attnmix.METHODS.items():
        model = timm.create_model("deit_tiny_patch16_224", num_classes=10, img_size=64)
        # a teacher, where one is needed: any timm model of these classes; here the model itself
        teacher = {} if kind.teacher_option is None else {kind.teacher_option: "self"}
        task = attnmix.MixTask(model, attnmix.create_method(name, num_classes=10, **teacher))
        optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
        out = task(images, labels)
        out["loss"].backward()
        optimizer.step()
        losses = ", ".join(f"{key} {value.item():.3f}" for key, value in out["losses"].items())
        print(f"{name:14} loss {out['loss'].item():.3f} ({losses})")


if __name__ == "__main__":
    main()
