import copy
import dataclasses

import pytest

from attnmix.training.reading import load_recipe

TINY = {
    "model_options": {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "data_options": {"train_count": 40, "test_count": 20},
    "batch_size": 8,
    "epochs": 2,
    "device": "cpu",
    "threads": 1,
    "schedule": {"warmup_epochs": 1},
}


def tiny_recipe(**overrides):
    """The quickstart on a toy, a run of a tenth of a second; mappings are laid over its groups."""
    recipe = load_recipe("quickstart", **copy.deepcopy(TINY))
    return _replace(recipe, overrides)


@pytest.fixture
def tiny():
    """The quickstart on a toy: tiny(epochs=3, ...) -> Recipe of a run of a tenth of a second."""
    return tiny_recipe


def _replace(recipe, overrides):
    values = {}
    for name, value in overrides.items():
        old = getattr(recipe, name)
        if isinstance(value, dict):
            value = dataclasses.replace(old, **value) if dataclasses.is_dataclass(old) else {**old, **value}
        values[name] = value
    return dataclasses.replace(recipe, **values)
