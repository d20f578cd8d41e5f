"""A tiny model of every family, with attention far from uniform, and what is known of each."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from timm.layers import set_fused_attn
from timm.models.beit import Beit
from timm.models.cait import Cait
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from timm.models.xcit import Xcit
from torch import Tensor, nn

from attnmix.models.ca_swin import ClassAttentionSwin
from attnmix.models.compact import CompactConvolutionalTransformer
from attnmix.models.pvt import PyramidVisionTransformer

CLASSES = 3


class Family(NamedTuple):
    """How to make a model, an image size for it, and what is known of it."""

    make: Callable[..., nn.Module]
    size: tuple[int, int]
    prefix: int = 0
    class_row: bool = False
    patch: int = 8
    token_patch: int = 8


VIT = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
STAGES = {
    "depths": (1, 1, 2),
    "embed_dims": (8, 16, 16),
    "num_heads": (1, 2, 2),
    "sr_ratios": (4, 2, 1),
    "mlp_ratios": (2, 2, 2),
    "num_classes": CLASSES,
}
SWIN = {"patch_size": 2, "depths": (2, 2), "embed_dim": 8, "num_heads": (1, 2), "num_classes": CLASSES}
HF_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": CLASSES,
}
HF_SWIN = {
    "image_size": 24,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "num_labels": CLASSES,
}
HF_PVT = {
    "image_size": 64,
    "num_encoder_blocks": 3,
    "hidden_sizes": [8, 16, 16],
    "depths": [1, 1, 2],
    "num_attention_heads": [1, 2, 2],
    "patch_sizes": [4, 2, 2],
    "strides": [4, 2, 2],
    "sequence_reduction_ratios": [4, 2, 1],
    "mlp_ratios": [2, 2, 2],
    "num_labels": CLASSES,
}


def _hf(kind: str, config: dict[str, Any], *, head: str = "", **options: Any) -> nn.Module:
    settings = getattr(transformers, f"{kind}Config")(**config)
    settings._attn_implementation = options.pop("attention", None)
    return getattr(transformers, f"{kind}ForImageClassification{head}")(settings)


FAMILIES: dict[str, Family] = {
    "vit": Family(partial(VisionTransformer, **VIT), (32, 48), 1, True),
    "vit_square": Family(partial(VisionTransformer, **{**VIT, "img_size": 32}), (32, 32), 1, True),
    "vit_registers": Family(partial(VisionTransformer, **VIT, reg_tokens=3), (32, 48), 4, True),
    "vit_averaged": Family(partial(VisionTransformer, **VIT, global_pool="avg"), (32, 48), 1),
    "vit_all_averaged": Family(
        partial(VisionTransformer, **VIT, global_pool="avg", pool_include_prefix=True), (32, 48), 1
    ),
    "vit_no_class": Family(partial(VisionTransformer, **VIT, class_token=False, global_pool="avg"), (32, 48)),
    "siglip": Family(partial(VisionTransformer, **VIT, class_token=False, global_pool="map"), (32, 48), 0, True),
    "vit_pool": Family(partial(VisionTransformer, **VIT, reg_tokens=2, global_pool="map"), (32, 48), 3, True),
    "vit_prr": Family(partial(VisionTransformer, **VIT, global_pool="prr"), (32, 48), 1, True),
    "deit_distilled": Family(partial(VisionTransformerDistilled, **VIT), (32, 48), 2, True),
    "vit_relative": Family(partial(VisionTransformerRelPos, **VIT), (32, 48)),
    "eva02": Family(partial(Eva, **VIT, use_rot_pos_emb=True, global_pool="avg"), (32, 48), 1),
    "eva_pool": Family(partial(Eva, **VIT, global_pool="map"), (32, 48), 1, True),
    "beit": Family(partial(Beit, **VIT, use_rel_pos_bias=True), (32, 48), 1),
    "cait": Family(partial(Cait, **VIT), (32, 48), 1, True),
    "xcit": Family(partial(Xcit, **VIT), (32, 48), 1, True),
    "pvt_v2": Family(partial(PyramidVisionTransformerV2, **STAGES), (32, 64), patch=16, token_patch=4),
    "pvt_v2_linear": Family(
        partial(PyramidVisionTransformerV2, **STAGES, linear=True), (64, 32), patch=16, token_patch=4
    ),
    "pvt": Family(
        partial(PyramidVisionTransformer, **STAGES, img_size=(32, 64)), (32, 64), 1, True, patch=16, token_patch=4
    ),
    "swin": Family(
        partial(SwinTransformer, **SWIN, img_size=(24, 16), window_size=4), (24, 16), patch=4, token_patch=2
    ),
    "swin_padded": Family(
        partial(SwinTransformer, **SWIN, img_size=(24, 16), window_size=5), (24, 16), patch=4, token_patch=2
    ),
    "swin_dynamic": Family(
        partial(SwinTransformer, **SWIN, img_size=16, window_size=4, strict_img_size=False),
        (24, 20),
        patch=4,
        token_patch=2,
    ),
    "ca_swin": Family(
        partial(ClassAttentionSwin, **SWIN, img_size=(24, 16), window_size=4),
        (24, 16),
        1,
        True,
        patch=4,
        token_patch=2,
    ),
    "cct": Family(
        partial(
            CompactConvolutionalTransformer,
            img_size=(8, 12),
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=CLASSES,
        ),
        (8, 12),
        patch=2,
        token_patch=2,
    ),
    "hf_vit": Family(partial(_hf, "ViT", HF_VIT), (32, 32), 1, True),
    "hf_deit": Family(partial(_hf, "DeiT", HF_VIT), (32, 32), 2, True),
    "hf_deit_teacher": Family(partial(_hf, "DeiT", HF_VIT, head="WithTeacher"), (32, 32), 2, True),
    "hf_dinov2": Family(partial(_hf, "Dinov2", {**HF_VIT, "mlp_ratio": 2}), (32, 48), 1, True),
    "hf_swin": Family(partial(_hf, "Swin", {**HF_SWIN, "window_size": 4}), (24, 24), patch=4, token_patch=2),
    "hf_swin_padded": Family(
        partial(_hf, "Swin", {**HF_SWIN, "window_size": 5}), (24, 32), patch=4, token_patch=2
    ),
    "hf_pvt": Family(partial(_hf, "Pvt", HF_PVT), (64, 64), 1, True, patch=16, token_patch=4),
}


def build(name: str, *, fused: bool = True, **options: Any) -> nn.Module:
    """The family's model in evaluation mode; the same weights every time, whether or not fused."""
    if name.startswith("hf_"):
        options["attention"] = "sdpa" if fused and name != "hf_pvt" else "eager"
    set_fused_attn(fused, experimental=fused)
    try:
        model = FAMILIES[name].make(**options).eval()
    finally:
        set_fused_attn(True, experimental=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1))
    return model


def images(name: str, size: tuple[int, int] | None = None) -> Tensor:
    """Two images of noise, by default of the family's size."""
    return torch.randn(2, 3, *(size or FAMILIES[name].size), generator=torch.Generator().manual_seed(2))
