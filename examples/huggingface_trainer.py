"""Hugging Face's Trainer: a small ViT of transformers learns digits in scenes with TransMix.

At the end a plain model of transformers is saved, for `from_pretrained`.
"""

from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import Compose, Normalize, ToTensor
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import attnmix
from attnmix.data import DigitsInScenes

SCENES = {"size": 32, "clutter": 0, "scale": (0.9, 1.0)}
VIT = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class MixTrainer(Trainer):
    """Trains the task; evaluates its plain model, on images as they are."""

    def prediction_step(self, model, inputs, *args: Any, **options: Any):
        plain = self.accelerator.unwrap_model(model).get_eval_model()
        return super().prediction_step(plain, inputs, *args, **options)


class SaveDraws(TrainerCallback):
    """Writes where the method's draws stand into each of the Trainer's checkpoints."""

    def on_save(self, args, state, control, model=None, **others: Any) -> None:
        if state.is_world_process_zero:
            torch.save(model.get_task_state(), f"{args.output_dir}/checkpoint-{state.global_step}/task.pt")


def main(
    epochs: int = 30,
    train_count: int = 1000,
    test_count: int = 500,
    folder: str = "runs/trainer",
    resume: str | None = None,
) -> attnmix.MixTask:
    torch.manual_seed(0)
    transform = Compose([ToTensor(), Normalize(0.5, 0.5)])
    train_data = DigitsInScenes("train", train_count=train_count, transform=transform, **SCENES)
    test_data = DigitsInScenes("test", test_count=test_count, transform=transform, **SCENES)
    labels = {"num_labels": 10, "id2label": dict(enumerate(train_data.class_names))}
    model = ViTForImageClassification(ViTConfig(**VIT, **labels, intermediate_size=256, initializer_range=0.1))

    # changed, 1 of 2: the Trainer gets a task
    task = attnmix.MixTask(model, attnmix.create_method("transmix", num_classes=10))
    if resume is not None:
        task.load_task_state(torch.load(Path(resume) / "task.pt"))

    # changed, 2 of 2: MixTrainer for Trainer
    trainer = MixTrainer(
        model=task,
        args=TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=25,
            per_device_eval_batch_size=100,
            learning_rate=2e-3,
            weight_decay=0.05,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            report_to="none",  # and leave label_smoothing_factor at 0: the method smooths
        ),
        train_dataset=train_data,
        eval_dataset=test_data,
        data_collator=collate,
        compute_metrics=lambda seen: {"accuracy": 100.0 * (seen.predictions.argmax(1) == seen.label_ids).mean()},
        callbacks=[SaveDraws()],
    )
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        logs = trainer.state.log_history  # of each epoch two: training and evaluation
        for epoch, (trained, evaluated) in enumerate(zip(logs[0::2], logs[1::2], strict=False), start=1):
            print(f"epoch {epoch} loss {trained['loss']:.3f} accuracy {evaluated['eval_accuracy']:.1f} %")
        task.get_eval_model().save_pretrained(f"{folder}/model")
    return task


def collate(items: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    images, labels = zip(*items, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


if __name__ == "__main__":
    main()
