"""Pyramid Vision Transformer, the first version (Wang et al., ICCV 2021, arXiv 2102.12122).

timm has the second. Attention with reduced keys is the same in both and is taken from there; what differs is
here: patches that do not overlap, learned positions in each stage, no convolution in the MLP, a class token.
"""

import math
from functools import partial
from typing import Any, cast

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import (
    DropPath,
    Mlp,
    PatchEmbed,
    calculate_drop_path_rates,
    get_device_dtype,
    resample_abs_pos_embed,
    to_2tuple,
    trunc_normal_,
)
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models.pvt_v2 import Attention
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from attnmix.models.image_size import require_multiple

MODELS = ("pvt_tiny", "pvt_small", "pvt_medium", "pvt_large")

__all__ = ["MODELS", "PyramidVisionTransformer"]

# as in the authors' code and timm's PVT v2; the norms of patches and of reduced keys keep torch's 1e-5
_LayerNorm = partial(nn.LayerNorm, eps=1e-6)


class SpatialReductionAttention(Attention):
    """Attention to keys that stand for cells of `sr_ratio` x `sr_ratio` tokens.

    Called with tokens `[B, M, D]` and their grid (rows, columns); prefix tokens only where `sr_ratio` is 1.
    """

    def __init__(self, dim: int, *, num_heads: int, sr_ratio: int, attn_drop: float, proj_drop: float) -> None:
        super().__init__(dim, num_heads, sr_ratio, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop)
        self.sr_ratio = sr_ratio


class PyramidBlock(nn.Module):
    """Pre-norm transformer block with spatial reduction: tokens `[B, M, D]`, grid -> `[B, M, D]`."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float,
        sr_ratio: int,
        proj_drop: float,
        attn_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = _LayerNorm(dim)
        self.attn = SpatialReductionAttention(
            dim, num_heads=num_heads, sr_ratio=sr_ratio, attn_drop=attn_drop, proj_drop=proj_drop
        )
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = _LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """One block; `feat_size` is (rows, columns) of the image tokens."""
        x = x + self.drop_path1(self.attn(self.norm1(x), feat_size))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class PyramidStage(nn.Module):
    """Patches of the map below, learned positions, blocks; `num_prefix_tokens` tokens may join.

    `img_size` is the size of the map below at which positions are learned; they are interpolated for others.
    """

    def __init__(
        self,
        in_chans: int,
        dim: int,
        *,
        img_size: tuple[int, int],
        patch_size: int,
        num_prefix_tokens: int,
        drop_path: list[float],
        pos_drop: float,
        **block_options: Any,
    ) -> None:
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.grad_checkpointing = False
        self.patch_embed = PatchEmbed(
            img_size, patch_size, in_chans, dim, norm_layer=nn.LayerNorm, strict_img_size=False
        )
        self.pos_embed = nn.Parameter(torch.empty(1, num_prefix_tokens + self.patch_embed.num_patches, dim))
        trunc_normal_(self.pos_embed, std=0.02)
        self.pos_drop = nn.Dropout(pos_drop)
        self.blocks = nn.ModuleList(PyramidBlock(dim, drop_path=rate, **block_options) for rate in drop_path)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        """Map `[B, C, H, W]`, prefix `[1, P, D]` -> tokens `[B, P + rows * columns, D]`, (rows, columns)."""
        feat_size = self.patch_embed.dynamic_feat_size(x.shape[-2:])
        x = self.patch_embed(x)
        if prefix is not None:
            x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.pos_drop(x + self._positions(feat_size))
        for block in self.blocks:
            x = checkpoint(block, x, feat_size) if self.grad_checkpointing else block(x, feat_size)
        return x, feat_size

    def _positions(self, feat_size: tuple[int, int]) -> Tensor:
        return resample_abs_pos_embed(
            self.pos_embed,
            new_size=list(feat_size),
            old_size=list(self.patch_embed.grid_size),
            num_prefix_tokens=self.num_prefix_tokens,
            interpolation="bilinear",
            antialias=False,
        )


class PyramidVisionTransformer(nn.Module):
    """PVT v1: stages of shrinking maps, a class token in the last one, which the head reads.

    Args:
        img_size: side, or (height, width), at which positions are learned. Any other multiple of
            `size_multiple` works too, with positions interpolated.
        embed_dims, depths, num_heads, mlp_ratios, sr_ratios: one number per stage; the last `sr_ratio` is 1.
        global_pool: "token", or "" for the whole sequence.

    Attributes:
        size_multiple: what both sides of an image must be multiples of, so that no stage and no reduction
            leaves tokens out.

    Raises:
        ValueError: image sides that are no such multiples, per-stage options of different lengths, a last
            stage with spatial reduction, another `global_pool`.
    """

    num_prefix_tokens = 1

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dims: tuple[int, ...] = (64, 128, 320, 512),
        depths: tuple[int, ...] = (3, 4, 6, 3),
        num_heads: tuple[int, ...] = (1, 2, 5, 8),
        mlp_ratios: tuple[float, ...] = (8, 8, 4, 4),
        sr_ratios: tuple[int, ...] = (8, 4, 2, 1),
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        lengths = [len(option) for option in (embed_dims, depths, num_heads, mlp_ratios, sr_ratios)]
        if len(set(lengths)) > 1:
            raise ValueError(
                "embed_dims, depths, num_heads, mlp_ratios and sr_ratios need one number per stage each, "
                f"got {lengths} numbers"
            )
        if sr_ratios[-1] != 1:
            raise ValueError(
                f"sr_ratios {tuple(sr_ratios)} must end with 1: the class token has no place on a grid"
            )
        patch_sizes = [4] + [2] * (len(depths) - 1)
        reductions = [math.prod(patch_sizes[: i + 1]) for i in range(len(depths))]
        self.size_multiple = math.lcm(*(r * sr for r, sr in zip(reductions, sr_ratios, strict=True)))
        height, width = to_2tuple(img_size)
        require_multiple((height, width), (self.size_multiple, self.size_multiple))

        self.num_classes = num_classes
        self.in_chans = in_chans
        self.embed_dim = self.num_features = self.head_hidden_size = embed_dims[-1]
        self.global_pool = _checked_pool(global_pool)
        drop_paths = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        self.stages = nn.ModuleList()
        self.feature_info = []
        for i, dim in enumerate(embed_dims):
            above = reductions[i - 1] if i else 1
            self.stages.append(
                PyramidStage(
                    embed_dims[i - 1] if i else in_chans,
                    dim,
                    img_size=(height // above, width // above),
                    patch_size=patch_sizes[i],
                    num_prefix_tokens=int(i == len(embed_dims) - 1),
                    drop_path=drop_paths[i],
                    pos_drop=pos_drop_rate,
                    num_heads=num_heads[i],
                    mlp_ratio=mlp_ratios[i],
                    sr_ratio=sr_ratios[i],
                    proj_drop=proj_drop_rate,
                    attn_drop=attn_drop_rate,
                )
            )
            self.feature_info.append({"num_chs": dim, "reduction": reductions[i], "module": f"stages.{i}"})
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed_dim))
        trunc_normal_(self.cls_token, std=0.02)
        self.norm = _LayerNorm(self.embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.apply(init_weights_vit_timm)

    @property
    def patch_embed(self) -> PatchEmbed:
        """The first stage's patches; the tokens of the last stage are 8 times coarser."""
        return cast(PyramidStage, self.stages[0]).patch_embed

    def forward_features(self, x: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> normed class token and last stage's tokens `[B, 1 + N, D]`."""
        require_multiple((x.shape[-2], x.shape[-1]), (self.size_multiple, self.size_multiple))
        for stage in self.stages[:-1]:
            x, feat_size = stage(x)
            x = x.transpose(1, 2).unflatten(2, feat_size)  # [B, D, rows, columns]
        x, _ = self.stages[-1](x, self.cls_token)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Final tokens `[B, M, D]` -> logits `[B, num_classes]`; reads the first token alone."""
        if self.global_pool == "token":
            x = x[:, 0]
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> logits `[B, num_classes]`."""
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; none for 0 classes."""
        if global_pool is not None:
            self.global_pool = _checked_pool(global_pool)
        self.num_classes = num_classes
        options = get_device_dtype(self)
        self.head = nn.Linear(self.embed_dim, num_classes, **options) if num_classes > 0 else nn.Identity()
        self.head.train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block again in the backward pass instead of keeping what it made."""
        for stage in self.stages:
            cast(PyramidStage, stage).grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without decay; the authors' code decays positions, deliberately."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Depth of each parameter for layer-wise decay: by stage (`coarse`) or by block."""
        last = len(self.stages) - 1
        blocks: list[tuple[str, tuple[int, ...] | None]] = (
            [(r"^stages\.(\d+)", None), (r"^cls_token", (last,))]
            if coarse
            else [
                (r"^stages\.(\d+)\.(?:patch_embed|pos_embed)", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^cls_token", (last, 0)),
            ]
        )
        return {"stem": r"^stages\.0\.(?:patch_embed|pos_embed)", "blocks": [*blocks, (r"^norm", (99999,))]}


def _checked_pool(global_pool: str) -> str:
    if global_pool not in ("token", ""):
        raise ValueError(f"global_pool {global_pool!r}: PVT's head reads the class token; 'token' or '' would do")
    return global_pool


def _config() -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "stages.0.patch_embed.proj",
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs({f"{name}.untrained": _config() for name in MODELS})


def _create(name: str, pretrained: bool, options: dict[str, Any]) -> PyramidVisionTransformer:
    if options.get("features_only"):
        raise ValueError(f"{name} has no features_only: read forward_features, or timm's pvt_v2 models")
    return build_model_with_cfg(PyramidVisionTransformer, name, pretrained, **options)


@register_model
def pvt_tiny(pretrained: bool = False, **options: Any) -> PyramidVisionTransformer:
    """PVT-Tiny: 13.2 M parameters, 1.9 G multiply-adds at 224 pixels."""
    return _create("pvt_tiny", pretrained, {"depths": (2, 2, 2, 2), **options})


@register_model
def pvt_small(pretrained: bool = False, **options: Any) -> PyramidVisionTransformer:
    """PVT-Small: 24.5 M parameters, 3.8 G multiply-adds at 224 pixels."""
    return _create("pvt_small", pretrained, {"depths": (3, 4, 6, 3), **options})


@register_model
def pvt_medium(pretrained: bool = False, **options: Any) -> PyramidVisionTransformer:
    """PVT-Medium: 44.2 M parameters, 6.7 G multiply-adds at 224 pixels."""
    return _create("pvt_medium", pretrained, {"depths": (3, 4, 18, 3), **options})


@register_model
def pvt_large(pretrained: bool = False, **options: Any) -> PyramidVisionTransformer:
    """PVT-Large: 61.4 M parameters, 9.8 G multiply-adds at 224 pixels."""
    return _create("pvt_large", pretrained, {"depths": (3, 8, 27, 3), **options})
