"""Every family of `attnmix.models`, small, and with weights large enough for tokens to differ."""

import timm
import torch
from torch import nn

import attnmix.models  # noqa: F401  registers the names

NUM_CLASSES = 5

# name: (options of a tiny one, image size, (rows, columns) of the final tokens)
TINY: dict[str, tuple[dict[str, object], tuple[int, int], tuple[int, int]]] = {
    "pvt_tiny": (
        {"img_size": (64, 96), "embed_dims": (8, 16, 24, 32), "depths": (1, 2, 1, 2), "num_heads": (1, 1, 2, 2)},
        (64, 96),
        (2, 3),
    ),
    "cct_7_3x1_32": ({"img_size": (8, 12), "embed_dim": 16, "depth": 2, "num_heads": 2}, (8, 12), (4, 6)),
    "vit_lite_7_4_32": ({"img_size": (16, 24), "embed_dim": 16, "depth": 2, "num_heads": 2}, (16, 24), (4, 6)),
    "ca_swin_tiny_patch4_window7_224": (
        {"img_size": (24, 32), "embed_dim": 16, "depths": (1, 2), "num_heads": (1, 2), "window_size": 3},
        (24, 32),
        (3, 4),
    ),
}


def tiny(name: str, **options: object) -> nn.Module:
    torch.manual_seed(1)
    settings = {"num_classes": NUM_CLASSES, **TINY[name][0], **options}
    if name.startswith("ca_swin"):
        settings.setdefault("drop_path_rate", 0.0)  # timm's default for Swin is 0.1
    model = timm.create_model(name, **settings)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=1.0 / parameter[0].numel() ** 0.5)
    return model


def unfuse(model: nn.Module) -> int:
    """Turn fused attention off; how many modules had it on."""
    fused = [module for module in model.modules() if getattr(module, "fused_attn", False)]
    for module in fused:
        module.fused_attn = False
    return len(fused)
