"""What a model family has to say of its tokens: one small subclass of `Layout` per family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from attnmix.attention.flow import ChannelAttention, Flow, Grid, attention_steps

Size = tuple[int, int]

GRID_IS_GONE = "its keys are laid out on a grid"
BIAS_IS_FIXED = "its relative position bias is made for a fixed number of keys"
NO_FUSED_ATTENTION = "its attention is not fused (scaled_dot_product_attention)"


class Layout(ABC):
    """One model as a member of its family; holds no parameters and changes nothing on the model.

    The defaults are those of timm's models: `forward_features`, then `forward_head`.

    Attributes:
        model: the model.
        num_prefix_tokens: prefix tokens in front of the final image tokens.
        has_class_row: whether one attention row says what the classifier looks at.
        num_classes: outputs of the classifier.
        embed_dim: width of a final token.
        blocks: the modules that hold attention calls 0, 1, ... and take the tokens as their first argument.
    """

    has_class_row = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = type(model).__name__
        self.num_prefix_tokens: int = getattr(model, "num_prefix_tokens", 0)
        self.num_classes: int = getattr(model, "num_classes", 0)
        self.embed_dim: int = getattr(model, "num_features", 0)
        if getattr(model, "global_pool", None) == "":
            raise ValueError(f"{self.name} has global_pool='', so that it classifies no image; choose a pooling")

    # ---- running it ----

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Any]:
        """What the family calls features, and the model's output, in one forward."""
        features = self.model.forward_features(images)
        return features, self.model.forward_head(features)

    def logits(self, output: Any) -> Tensor:
        """The model's output as one tensor `[B, C]`.

        A distilled DeiT in distillation training returns two logits; its prediction is their mean.
        """
        return output if isinstance(output, Tensor) else (output[0] + output[1]) / 2

    def image_tokens(self, features: Tensor, grid: Grid) -> Tensor:
        """The final image tokens `[B, N, D]` among the features; ValueError if these are none on `grid`."""
        rows, columns = grid
        expected = self.num_prefix_tokens + rows * columns
        if features.ndim != 3 or features.shape[1] != expected:
            raise ValueError(
                f"{self.name} gives features of shape {tuple(features.shape)} where {expected} tokens were "
                f"expected ({self.num_prefix_tokens} prefix + {rows}x{columns})"
            )
        return features[:, self.num_prefix_tokens :]

    def classify(self, tokens: Tensor) -> Tensor:
        """The classifier's output for a whole sequence of the same token, `[B, D]`."""
        return self.model.forward_head(tokens[:, None].expand(-1, self.num_prefix_tokens + 1, -1))

    # ---- where its tokens are ----

    @property
    @abstractmethod
    def patch_size(self) -> Size:
        """Height and width in pixels of a final token."""

    @property
    def token_patch_size(self) -> Size:
        """Height and width in pixels of one of the first tokens."""
        return self.patch_size

    @property
    def example_size(self) -> Size:
        """An image size that the model takes."""
        height, width = self.patch_size
        return 8 * height, 8 * width

    def check_size(self, image_size: Sequence[int]) -> None:
        """ValueError for an image size that the model does not take; most take any."""
        return None

    def grid_size(self, image_size: Sequence[int]) -> Grid:
        """Rows and columns of final tokens; ValueError for sides that hold no whole number of them."""
        self.check_size(image_size)
        return cells(image_size, self.patch_size)

    def token_grid_size(self, image_size: Sequence[int]) -> Grid:
        """Rows and columns of first tokens; ValueError for sides that hold no whole number of them."""
        self.check_size(image_size)
        return cells(image_size, self.token_patch_size)

    # ---- how they travel ----

    @abstractmethod
    def flow(self, image_size: Sequence[int]) -> Flow:
        """The steps from the first image tokens to the last values, for an image of height, width."""

    def readout(self, values: Tensor) -> Tensor:
        """What the classifier reads of one value per final token, `[B, M]` -> `[B]`."""
        return values[:, 0] if self.has_class_row else values[:, self.num_prefix_tokens :].mean(dim=1)

    @cached_property
    def calls(self) -> list[Any]:
        """The attention steps; all but their grids holds for any image size."""
        return list(attention_steps(self.flow(self.example_size)))

    # ---- its blocks ----

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """See the class."""

    def block_width(self, number: int) -> int:
        """Channels of the tokens that come into a block."""
        return self.embed_dim

    def obstacle(self, number: int) -> str | None:
        """Why memory tokens may not be appended to a block's keys and values; None where they may."""
        if isinstance(self.calls[number], ChannelAttention):
            return "its channels attend, not its tokens"
        return "only its class token attends" if self.calls[number].one_query else GRID_IS_GONE

    @property
    def grad_checkpointing(self) -> bool:
        """Whether the model computes activations again in the backward pass."""
        flags = ("grad_checkpointing", "gradient_checkpointing")  # timm's, transformers'
        # asked in every step: a module says no only after a search, its dictionary at once
        return any(vars(module).get(flag) for module in self.model.modules() for flag in flags)


def cells(image_size: Sequence[int], length: Size) -> Grid:
    """How many patches of `length` lie in an image; ValueError for a side that they do not divide."""
    check_multiple(image_size, length)
    return image_size[0] // length[0], image_size[1] // length[1]


def check_multiple(image_size: Sequence[int], length: Size, what: str = "the patch, ") -> None:
    """ValueError for a side of the image that is no multiple of `length` pixels."""
    for name, side, step in zip(("height", "width"), image_size, length, strict=True):
        if side % step or side == 0:
            raise ValueError(
                f"image {name} {side} is not a multiple of {what}{step} pixels; "
                f"{max(1, round(side / step)) * step} would be"
            )


def check_same(image_size: Sequence[int], taken: Sequence[int], name: str, way_out: str) -> None:
    """ValueError for a side other than the one that a model takes."""
    for side_name, side, own in zip(("height", "width"), image_size, taken, strict=True):
        if side != own:
            raise ValueError(f"image {side_name} {side}: {name} takes {own} pixels only; {way_out}")


def pair(size: int | Sequence[int]) -> Size:
    """A side, or height and width, as the latter."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def scaled(size: Size, factor: int | Sequence[int]) -> Size:
    """Sides times a factor each."""
    height, width = pair(factor)
    return size[0] * height, size[1] * width
