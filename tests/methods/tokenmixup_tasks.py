"""Tasks and models that the tests of TokenMixup share."""

import timm
import torch
from torch import nn

import attnmix
from attnmix.methods import tokenmixup as module
from attnmix.methods.tokenmixup import TokenMixup
from tests.conftest import NUM_CLASSES

MODELS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers alone": {"class_token": False, "reg_tokens": 2, "global_pool": "avg"},
}
EVERY_SAMPLE = {"tau": float("inf"), "rho": 0.01}


def make_task(model, **options):
    """A task whose ScoreNet tells samples apart from the start."""
    options = {"horizontal": 1, "vertical": 2, "base": "none", **EVERY_SAMPLE, **options}
    task = attnmix.MixTask(model, TokenMixup(num_classes=NUM_CLASSES, **options))
    generator = torch.Generator().manual_seed(7)
    if task.method.score_net is not None:
        for parameter in task.method.score_net.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return task


def make_batch(batch, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def spy_on_swaps(monkeypatch):
    """The `TokenSwap` of every step, as it is made."""
    swaps = []
    for name in ("swap_salient", "swap_random"):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, function=function, **k: swaps.append(function(*a, **k)) or swaps[-1]
        )
    return swaps


def make_swin():
    options = {"img_size": (32, 64), "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2)}
    return timm.models.SwinTransformer(num_heads=(1, 2), num_classes=NUM_CLASSES, **options)


def make_pvt():
    options = {"embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    return timm.create_model("pvt_v2_b0", num_classes=NUM_CLASSES, **options)


def make_cait():
    options = {"img_size": (32, 64), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return timm.models.Cait(num_classes=NUM_CLASSES, **options)
