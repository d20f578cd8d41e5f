"""Small models that every test can afford."""

import os
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of what tests start, too: workers share the cores already

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tests.nursery import Nursery

NUM_CLASSES = 5


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts processes at once: nursery.run(function, ...), nursery.ranks(processes, function, ...)."""
    with Nursery() as found:
        yield found


@pytest.fixture
def make_vit() -> Callable[..., nn.Module]:
    """See `tiny_vit`."""
    return tiny_vit


def tiny_vit(**options: object) -> nn.Module:
    """A tiny ViT, 4x6 tokens by default, with weights large enough for attention to differ between tokens."""
    torch.manual_seed(1)
    settings = {
        "img_size": (16, 24),
        "patch_size": 4,
        "num_classes": NUM_CLASSES,
        "embed_dim": 24,
        "depth": 3,
        "num_heads": 2,
        **options,
    }
    model = VisionTransformer(**settings)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=1.0 if "head" not in name else 0.5)
            if name.endswith("weight"):
                parameter.data /= parameter.shape[-1] ** 0.5
    return model
