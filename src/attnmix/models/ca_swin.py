"""CA-Swin (TransMix, section 4.5): a Swin Transformer whose last block is class attention.

The class token asks the image tokens once, at the end, as in CaiT; its attention says what the classifier looks
at, which Swin's average pooling does not. Everything else is timm's Swin, the block is timm's CaiT block.
"""

from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import get_device_dtype, to_2tuple, trunc_normal_
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models.cait import LayerScaleBlockClassAttn
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from attnmix.models.image_size import require_multiple

MODELS = ("ca_swin_tiny_patch4_window7_224", "ca_swin_small_patch4_window7_224")

__all__ = ["MODELS", "ClassAttentionSwin"]


class ClassAttentionSwin(SwinTransformer):
    """timm's Swin; the class block takes the place, the heads, the width and the rates of its last block.

    Takes timm's own options, and:
        init_values: what the class block's two LayerScale vectors start at. CaiT starts them small for the sake
            of its depth; Swin has none, so the default, 1, is a block that counts from the first step.
        global_pool: "token", or "" for the whole sequence.

    Raises:
        ValueError: image sides that are no multiples of the last stage's token (padding would add tokens that
            are no part of the image), another `global_pool`.
    """

    num_prefix_tokens = 1

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 4,
        depths: tuple[int, ...] = (2, 2, 6, 2),
        global_pool: str = "token",
        norm_layer: type[nn.Module] = nn.LayerNorm,
        init_values: float = 1.0,
        **options: Any,
    ) -> None:
        self._size_multiple = _size_multiple(patch_size, len(depths))
        require_multiple(to_2tuple(img_size), self._size_multiple)
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            depths=tuple(depths),
            global_pool="",  # the head that comes with it only classifies
            norm_layer=norm_layer,
            **options,
        )
        self.global_pool = _checked_pool(global_pool)
        self.output_fmt = "NLC"
        self.grad_checkpointing = False

        stage = self.layers[-1]
        replaced = stage.blocks[-1]
        stage.blocks = stage.blocks[:-1]
        stage.depth -= 1
        factory = get_device_dtype(self)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.num_features, **factory))
        trunc_normal_(self.cls_token, std=0.02)
        self.class_block = LayerScaleBlockClassAttn(
            self.num_features,
            num_heads=replaced.attn.num_heads,
            mlp_ratio=replaced.mlp_ratio,
            qkv_bias=replaced.attn.qkv.bias is not None,
            proj_drop=replaced.attn.proj_drop.p,
            attn_drop=replaced.attn.attn_drop.p,
            drop_path=getattr(replaced.drop_path1, "drop_prob", 0.0),
            norm_layer=norm_layer,
            init_values=init_values,
            **factory,
        )
        self.class_block.apply(init_weights_vit_timm)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> `[B, 1 + N, D]`, normed.

        First the class token as class attention leaves it, then the image tokens as they entered it.
        """
        require_multiple((x.shape[-2], x.shape[-1]), self._size_multiple)
        x = self.layers(self.patch_embed(x)).flatten(1, 2)  # [B, rows, columns, D] -> [B, N, D]
        token = self.cls_token.expand(x.shape[0], -1, -1)
        token = checkpoint(self.class_block, x, token) if self.grad_checkpointing else self.class_block(x, token)
        return self.norm(torch.cat((token, x), dim=1))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Final tokens `[B, M, D]` -> logits `[B, num_classes]`; reads the first token alone."""
        if self.global_pool == "token":
            x = x[:, 0]
        return self.head(x, pre_logits=pre_logits)

    def forward_intermediates(self, *_: Any, **__: Any) -> Any:
        """Not offered: what timm's Swin returns here would lack the class block."""
        raise ValueError("CA-Swin has no forward_intermediates: read forward_features, or timm's Swin")

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; none for 0 classes."""
        if global_pool is not None:
            self.global_pool = _checked_pool(global_pool)
        super().reset_classifier(num_classes)

    def set_input_size(self, img_size: Any = None, patch_size: Any = None, **options: Any) -> None:
        """timm's, for an image size whose last stage has whole tokens."""
        multiple = _size_multiple(patch_size or self.patch_embed.patch_size, len(self.layers))
        require_multiple(to_2tuple(img_size or self.patch_embed.img_size), multiple)
        super().set_input_size(img_size, patch_size, **options)
        self._size_multiple = multiple

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block again in the backward pass instead of keeping what it made."""
        super().set_grad_checkpointing(enable)
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without decay: Swin's, and the class token."""
        return {*super().no_weight_decay(), "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Depth of each parameter for layer-wise decay; the class block is the last stage's last block."""
        matcher = super().group_matcher(coarse)
        last = len(self.layers) - 1
        own = (r"^(?:cls_token|class_block)", (last,) if coarse else (last, len(self.layers[-1].blocks)))
        blocks = [(matcher["blocks"], None)] if coarse else matcher["blocks"]
        return {**matcher, "blocks": [own, *blocks]}


def _size_multiple(patch_size: int | tuple[int, int], stages: int) -> tuple[int, int]:
    """Height and width in pixels of a token of the last stage."""
    height, width = to_2tuple(patch_size)
    return height * 2 ** (stages - 1), width * 2 ** (stages - 1)


def _checked_pool(global_pool: str) -> str:
    if global_pool not in ("token", ""):
        raise ValueError(
            f"global_pool {global_pool!r}: CA-Swin's head reads the class token; 'token' or '' would do"
        )
    return global_pool


def _config() -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head.fc",
    }


default_cfgs = generate_default_cfgs({f"{name}.untrained": _config() for name in MODELS})


def _create(name: str, pretrained: bool, options: dict[str, Any]) -> ClassAttentionSwin:
    if options.get("features_only"):
        raise ValueError(f"{name} has no features_only: read forward_features, or timm's Swin")
    settings = {"embed_dim": 96, "num_heads": (3, 6, 12, 24), "window_size": 7, **options}
    return build_model_with_cfg(ClassAttentionSwin, name, pretrained, **settings)


@register_model
def ca_swin_tiny_patch4_window7_224(pretrained: bool = False, **options: Any) -> ClassAttentionSwin:
    """CA-Swin-T: 28.3 M parameters, 4.2 G multiply-adds at 224 pixels."""
    return _create("ca_swin_tiny_patch4_window7_224", pretrained, {"depths": (2, 2, 6, 2), **options})


@register_model
def ca_swin_small_patch4_window7_224(pretrained: bool = False, **options: Any) -> ClassAttentionSwin:
    """CA-Swin-S: 49.6 M parameters, 8.5 G multiply-adds at 224 pixels."""
    return _create("ca_swin_small_patch4_window7_224", pretrained, {"depths": (2, 2, 18, 2), **options})
