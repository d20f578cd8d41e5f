"""Linear layers that a method adds to a model, for training alone."""

import torch
from torch import nn


def added_linear(width: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """A linear layer drawn from `generator` alone, on the CPU, so that no device or other draw changes it."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, outputs, device="cpu")
    nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def of_the_same_seed(generator: torch.Generator) -> torch.Generator:
    """A generator for initial weights, so that a method goes on to draw what it would without them."""
    return torch.Generator().manual_seed(generator.initial_seed())
