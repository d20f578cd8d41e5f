"""Lightning: a small ViT learns digits in scenes with TransMix and is saved as a plain timm model."""

from typing import Any

import lightning
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from torchvision.transforms import Compose, Normalize, ToTensor

import attnmix
from attnmix.data import DigitsInScenes

SCENES = {"size": 32, "clutter": 0, "scale": (0.9, 1.0)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "weight_init": "moco"}


class Classifier(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        # changed, 1 of 2: in the place of a mixup function and a loss
        self.task = attnmix.MixTask(model, attnmix.create_method("transmix", num_classes=10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        # changed, 2 of 2: in the place of mixing, model(images) and the loss
        loss = self.task(images, labels)["loss"]

        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.accuracy.update(self.task.get_eval_model()(images), labels)  # the plain model, images as they are
        self.log("accuracy", self.accuracy)

    def on_train_epoch_end(self) -> None:
        seen = self.trainer.callback_metrics
        self.print(
            f"epoch {self.current_epoch + 1} loss {seen['loss']:.3f} accuracy {100 * seen['accuracy']:.1f} %"
        )

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.task.parameters(), lr=2e-3, weight_decay=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["task"] = self.task.get_task_state()  # where the method's draws stand

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.task.load_task_state(checkpoint["task"])


def main(
    epochs: int = 30,
    train_count: int = 1000,
    test_count: int = 500,
    folder: str = "runs/lightning",
    resume: str | None = None,
) -> attnmix.MixTask:
    lightning.seed_everything(0)
    transform = Compose([ToTensor(), Normalize(0.5, 0.5)])
    train_data = DigitsInScenes("train", train_count=train_count, transform=transform, **SCENES)
    test_data = DigitsInScenes("test", test_count=test_count, transform=transform, **SCENES)
    train_loader = DataLoader(train_data, batch_size=25, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, batch_size=100)
    classifier = Classifier(timm.create_model("vit_tiny_patch16_224", num_classes=10, **VIT))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        enable_progress_bar=False,
    )
    trainer.fit(classifier, train_loader, test_loader, ckpt_path=resume)
    if trainer.is_global_zero:
        save_file(classifier.task.get_eval_model().state_dict(), f"{folder}/model.safetensors")
    return classifier.task


if __name__ == "__main__":
    main()
