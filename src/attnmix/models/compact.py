"""CCT and ViT-Lite for 32-pixel images (Hassani et al. 2021, arXiv 2104.05704), on timm's VisionTransformer.

Both use the authors' encoder block, with positions learned, as TokenMixup trains CCT (its supplement, B.1).
The authors train with `attn_drop_rate=0.1` and `drop_path_rate=0.1`; here, as everywhere in timm, the default is
none.
"""

from typing import Any, cast

from timm.layers import PatchEmbed, get_device_dtype, to_2tuple, trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block, VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from attnmix.models.image_size import require_multiple

MODELS = ("cct_7_3x1_32", "vit_lite_7_4_32")

__all__ = ["MODELS", "CompactBlock", "CompactConvolutionalTransformer", "ConvTokenizer"]

# CIFAR-10's own statistics, as the authors' configuration has them (CIFAR-100's are within 0.03 of them)
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class CompactBlock(Block):
    """The authors' encoder block: its second norm is on the residual stream, not on the MLP's branch alone.

    The paper says only that norms come first, as in ViT: `block_fn=timm.models.vision_transformer.Block` is
    that, with the same parameters. The published accuracies come from this one.
    """

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens `[B, M, D]` -> `[B, M, D]`."""
        attended = self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)
        x = self.norm2(x + self.drop_path1(self.ls1(attended)))
        return x + self.drop_path2(self.ls2(self.mlp(x)))


class ConvTokenizer(PatchEmbed):
    """3x3 convolution, ReLU, 3x3 max pooling of stride 2: overlapping "patches" of 2x2 pixels.

    Raises:
        ValueError: odd sides of an image, unless `dynamic_img_pad` pads them; a `patch_size` that is not 2.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int],
        *,
        in_chans: int,
        embed_dim: int,
        patch_size: int = 2,
        bias: bool = False,
        **options: Any,
    ) -> None:
        _require_stride(patch_size)
        # timm's ViT asks for a bias; the authors' convolution has none
        super().__init__(img_size, 2, in_chans, embed_dim, bias=False, **options)
        convolution = nn.Conv2d(in_chans, embed_dim, 3, padding=1, bias=False, **get_device_dtype(self))
        self.proj = nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        self.init_weights()

    def init_weights(self) -> None:
        """He's normal weights, the authors' choice before a ReLU; timm's ViT calls this."""
        nn.init.kaiming_normal_(cast(nn.Conv2d, self.proj[0]).weight)

    def _init_img_size(self, img_size: Any) -> Any:
        if img_size is not None:
            require_multiple(to_2tuple(img_size), self.patch_size)
        return super()._init_img_size(img_size)

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """Another image size; the stride stays."""
        if patch_size is not None:
            _require_stride(patch_size)
        super().set_input_size(img_size)

    def forward(self, x: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> tokens `[B, H/2 * W/2, D]`."""
        if not self.dynamic_img_pad:
            require_multiple((x.shape[-2], x.shape[-1]), self.patch_size)
        return super().forward(x)


def _require_stride(patch_size: int | tuple[int, int]) -> None:
    if to_2tuple(patch_size) != (2, 2):
        raise ValueError(f"patch_size {patch_size}: the tokenizer's stride is 2, and no other would do")


class CompactConvolutionalTransformer(VisionTransformer):
    """timm's ViT with a convolutional tokenizer, no class token, and sequence pooling.

    Takes timm's own options (`img_size`, `embed_dim`, `depth`, `num_heads`, `dynamic_img_size`, the rates).
    `global_pool` is "seq", or "" for the whole sequence; other values raise ValueError.
    """

    def __init__(self, *, global_pool: str = "seq", patch_size: int = 2, **options: Any) -> None:
        super().__init__(
            patch_size=patch_size, class_token=False, global_pool="", embed_layer=ConvTokenizer, **options
        )
        self.global_pool = _checked_pool(global_pool)
        self.seq_pool = nn.Linear(self.embed_dim, 1, **get_device_dtype(self))
        init_weights_vit_timm(self.seq_pool)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """timm's weights, and the authors' wider positions: the tokenizer's output is about as large."""
        super().init_weights(mode, needs_reset)
        if self.pos_embed is not None:
            trunc_normal_(self.pos_embed, std=0.2)

    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        """Tokens `[B, M, D]` -> their mean weighted by a learned softmax `[B, D]`."""
        pool_type = self.global_pool if pool_type is None else pool_type
        if pool_type != "seq":
            return super().pool(x, pool_type)
        weights = self.seq_pool(x).softmax(dim=1)  # [B, M, 1]
        return (weights.transpose(1, 2) @ x).squeeze(1)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; none for 0 classes."""
        if global_pool is not None:
            self.global_pool = _checked_pool(global_pool)
        super().reset_classifier(num_classes)


def _checked_pool(global_pool: str) -> str:
    if global_pool not in ("seq", ""):
        raise ValueError(f"global_pool {global_pool!r}: CCT pools its sequence; 'seq' or '' would do")
    return global_pool


def _config(first_conv: str) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": CIFAR10_MEAN,
        "std": CIFAR10_STD,
        "first_conv": first_conv,
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs(
    {
        "cct_7_3x1_32.untrained": _config("patch_embed.proj.0"),
        "vit_lite_7_4_32.untrained": _config("patch_embed.proj"),
    }
)

_ENCODER = {
    "embed_dim": 256,
    "depth": 7,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "qkv_bias": False,
    "norm_layer": nn.LayerNorm,
    "block_fn": CompactBlock,
}


def _create(
    kind: type[VisionTransformer], name: str, pretrained: bool, options: dict[str, Any]
) -> VisionTransformer:
    features = {"out_indices": options.pop("out_indices", 3), "feature_cls": "getter"}
    return build_model_with_cfg(kind, name, pretrained, feature_cfg=features, **{**_ENCODER, **options})


@register_model
def cct_7_3x1_32(pretrained: bool = False, **options: Any) -> CompactConvolutionalTransformer:
    """CCT-7/3x1: 3.760 M parameters, 1.18 G multiply-adds at 32 pixels; no class token.

    The authors' 0.947 G leaves out attention's two products.
    """
    return _create(CompactConvolutionalTransformer, "cct_7_3x1_32", pretrained, options)


@register_model
def vit_lite_7_4_32(pretrained: bool = False, **options: Any) -> VisionTransformer:
    """ViT-Lite-7/4: 3.717 M parameters, 0.254 G multiply-adds at 32 pixels; timm's ViT, with a class token.

    The authors' 0.239 G leaves out attention's two products. Weights start as timm's do.
    """
    options = {"img_size": 32, "patch_size": 4, **options}
    require_multiple(to_2tuple(options["img_size"]), to_2tuple(options["patch_size"]))
    return _create(VisionTransformer, "vit_lite_7_4_32", pretrained, options)
