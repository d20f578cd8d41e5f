"""Tiny models, and their attention read without the tap: forward hooks on an unfused copy."""

from collections.abc import Callable

import torch
from timm.layers import AttentionPoolLatent, set_fused_attn
from timm.models.beit import Beit
from timm.models.cait import Cait, TalkingHeadAttn
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 3}

# name -> (constructor, number of prefix tokens, whether there is a class token); all have N = 16
FAMILIES: dict[str, tuple[Callable[..., nn.Module], int, bool]] = {
    "vit": (lambda **o: VisionTransformer(**SIZES, **o), 1, True),
    "vit_avg": (lambda **o: VisionTransformer(**SIZES, class_token=False, global_pool="avg", **o), 0, False),
    "deit_distilled": (lambda **o: VisionTransformerDistilled(**SIZES, **o), 2, True),
    "dinov2_reg": (
        lambda **o: VisionTransformer(**SIZES, reg_tokens=4, init_values=1.0, no_embed_class=True, **o),
        5,
        True,
    ),
    "registers_only": (
        lambda **o: VisionTransformer(**SIZES, class_token=False, reg_tokens=4, global_pool="avg", **o),
        4,
        False,
    ),
    "beit": (
        lambda **o: Beit(**SIZES, use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.1, **o),
        1,
        True,
    ),
    "beit_shared": (lambda **o: Beit(**SIZES, use_shared_rel_pos_bias=True, init_values=0.1, **o), 1, True),
    "eva02": (lambda **o: Eva(**SIZES, use_rot_pos_emb=True, swiglu_mlp=True, scale_mlp=True, **o), 1, True),
    "cait": (lambda **o: Cait(**SIZES, **o), 1, True),
    "siglip": (lambda **o: VisionTransformer(**SIZES, class_token=False, global_pool="map", **o), 0, False),
    "map_prefix": (lambda **o: VisionTransformer(**SIZES, reg_tokens=2, global_pool="map", **o), 3, True),
}
POOLED = ("cait", "siglip", "map_prefix")  # the last call has one query


def build(family: str, *, fused: bool = True, **options: float) -> nn.Module:
    """A model of `family` in eval mode whose attention is far from uniform; the same weights every time."""
    set_fused_attn(fused)
    try:
        torch.manual_seed(0)
        model = FAMILIES[family][0](**options).eval()
    finally:
        set_fused_attn(True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def hooked_attention(model: nn.Module, batch: Tensor) -> list[Tensor]:
    """P [B, H, M_query, M_key] of every attention call of an unfused model, by hooks."""
    found: list[Tensor] = []
    pooled: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, TalkingHeadAttn):  # softmax, then proj_w over the heads, then attn_drop
            hook = module.proj_w.register_forward_pre_hook
            hooks.append(hook(lambda _, args: found.append(args[0].permute(0, 3, 1, 2))))
        elif isinstance(module, AttentionPoolLatent):  # has no attn_drop

            def pool(module: AttentionPoolLatent, *_: object) -> None:
                found.append((pooled["q"] @ pooled["k"].transpose(-2, -1) * module.scale).softmax(-1))

            hooks.append(module.q_norm.register_forward_hook(lambda *a: pooled.update(q=a[-1])))
            hooks.append(module.k_norm.register_forward_hook(lambda *a: pooled.update(k=a[-1])))
            hooks.append(module.register_forward_hook(pool))
        elif name.endswith("attn_drop") and not isinstance(model.get_submodule(name[:-10]), TalkingHeadAttn):
            hooks.append(module.register_forward_pre_hook(lambda _, args: found.append(args[0])))
    with torch.no_grad():
        model(batch)
    for hook in hooks:
        hook.remove()
    return found
