import copy
import dataclasses

import pytest

from attnmix.training.recipe import load_recipe

TINY = {
    "model_options": {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "data_options": {"train_count": 40, "test_count": 20},
    "batch_size": 8,
    "epochs": 2,
    "device": "cpu",
    "threads": 1,
    "schedule": {"warmup_epochs": 1},
}


@pytest.fixture
def tiny():
    """The quickstart on a toy: tiny(epochs=3, ...) -> Recipe of a run of a tenth of a second."""

    def make(**overrides):
        recipe = load_recipe("quickstart", **copy.deepcopy(TINY))
        return _replace(recipe, overrides)

    return make


def _replace(recipe, overrides):
    for name, value in overrides.items():
        if isinstance(value, dict):
            old = getattr(recipe, name)
            is_group = dataclasses.is_dataclass(old)
            value = dataclasses.replace(old, **value) if is_group else {**old, **value}
        recipe = dataclasses.replace(recipe, **{name: value})
    return recipe
