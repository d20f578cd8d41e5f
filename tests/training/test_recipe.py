import dataclasses
import inspect

import pytest

from attnmix.training import recipe as recipe_module
from attnmix.training.reading import load_recipe
from attnmix.training.recipe import Recipe


def test_every_key_has_a_help_text():
    lines = inspect.getsource(recipe_module).splitlines()
    for kind in (
        Recipe,
        *(type(getattr(Recipe(), g)) for g in ("optimizer", "schedule", "augment", "loader")),
    ):
        for field in dataclasses.fields(kind):
            at = [i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: ")]
            assert any(lines[i + 1].startswith('    """') for i in at), field.name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"epochs": 0}, "epochs is 0, but must be 1 or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"accumulation_steps": 0}, "accumulation_steps is 0"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"lr": 0.0}, "lr is 0.0, but must be above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"seed": -1}, r"seed is -1, but must be 0 to 2\*\*32 - 1"),
        (
            {"fsdp": "full_shard", "compile": True},
            "fsdp is 'full_shard', but must be no with precision fp16 or comp",
        ),
        ({"fsdp": "shard_grad_op", "precision": "fp16"}, "fsdp is 'shard_grad_op', but must be no with"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"device": "gpu"}, "device is 'gpu', but must be auto, cpu, cuda"),
        ({"device": "cpu:1"}, "device is 'cpu:1'"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0"),
        ({"ema": 1.0}, r"ema is 1.0, but must be in \(0, 1\)"),
        ({"threads": 0}, "threads is 0"),
        ({"optimizer": {"weight_decay": -1.0}}, "optimizer.weight_decay is -1.0"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum is 1.0"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas is "),
        ({"optimizer": {"eps": 0.0}}, "optimizer.eps is 0.0"),
        ({"optimizer": {"layer_decay": 2.0}}, "optimizer.layer_decay is 2.0"),
        ({"schedule": {"warmup_epochs": -1}}, "schedule.warmup_epochs is -1"),
        ({"schedule": {"warmup_lr": -1.0}}, "schedule.warmup_lr is -1.0"),
        ({"schedule": {"min_lr": -1.0}}, "schedule.min_lr is -1.0"),
        ({"augment": {"scale": [0.5, 0.1]}}, "augment.scale is "),
        ({"augment": {"ratio": [0.0, 1.0]}}, "augment.ratio is "),
        ({"augment": {"hflip": 1.5}}, "augment.hflip is 1.5, but must be a probability"),
        ({"augment": {"vflip": -0.5}}, "augment.vflip is -0.5"),
        ({"augment": {"re_prob": 2.0}}, "augment.re_prob is 2.0"),
        ({"augment": {"color_jitter": -1.0}}, "augment.color_jitter is -1.0"),
        ({"augment": {"crop_pct": 0.0}}, r"augment.crop_pct is 0.0, but must be in \(0, 1\], or null"),
        ({"loader": {"workers": -1}}, "loader.workers is -1"),
        ({"aug_repeats": 0}, "aug_repeats is 0, but must be 1 or more"),
        ({"aug_repeats": 3}, "aug_repeats is 3, but must be 1 with augment.no_aug: the views would be equal"),
        ({"schedule": {"cooldown_epochs": -1}}, "schedule.cooldown_epochs is -1"),
        (
            {"epochs": 10, "schedule": {"cooldown_epochs": 10}},
            "schedule.cooldown_epochs is 10, but must be below epochs, which is 10 and counts them",
        ),
        (
            {"schedule": {"cooldown_epochs": 1, "sched": "constant"}},
            "schedule.cooldown_epochs is 1, but must be 0 with the schedule constant",
        ),
    ],
)
def test_wrong_values(overrides, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("quickstart", **overrides)
