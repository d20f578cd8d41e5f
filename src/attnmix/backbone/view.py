"""One view of every supported model: its tokens, its grid, its attention calls, its classifier."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from attnmix.attention import AttentionTap, quantities
from attnmix.attention.call import AttentionCall
from attnmix.attention.flow import (
    MIXES_CHANNELS,
    AttentionStep,
    ChannelAttention,
    Flow,
    Grid,
    Merge,
    SequenceAttention,
    attention_steps,
    share_out,
)
from attnmix.backbone.families import layout_of
from attnmix.backbone.modes import evaluating


class BackboneView:
    """What the methods need to know of a model; holds no parameters and changes nothing on it.

    Works with the families in `families.py`, unmodified. A model wrapped by `torch.compile` stays compiled, also
    where its final tokens are read. A block is one attention call, counted as `AttentionTap` counts them;
    a negative number counts from the last.

    Attributes:
        model: the model, without the wrapper of `torch.compile`.
        num_prefix_tokens: class, distillation and register tokens before the final image tokens.
        has_class_row: whether one attention row says what the classifier looks at: the attention pool's, or the
            class token's where the classifier reads it (BEiT has one, but averages the image tokens).
        num_classes: outputs of the classifier.
        embed_dim: width of a final token.

    Raises:
        ValueError: a model of another layout, or already wrapped for distributed training.
    """

    def __init__(self, model: nn.Module) -> None:
        self.compiled: Any = cast(Any, model) if hasattr(model, "_orig_mod") else None
        self.model: Any = cast(Any, model) if self.compiled is None else self.compiled._orig_mod
        self.name = type(self.model).__name__
        if isinstance(self.model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(f"the model is wrapped in {self.name}: give the model itself, and wrap the task")
        self.layout = layout_of(self.model)
        self.num_prefix_tokens = self.layout.num_prefix_tokens
        self.has_class_row = self.layout.has_class_row
        self.num_classes = self.layout.num_classes
        self.embed_dim = self.layout.embed_dim
        # the wrapper's own context: same backend, mode and options for the second entry into the model
        enter = self.compiled.dynamo_ctx if self.compiled is not None else lambda function: function
        self._features_and_logits: Callable[[Tensor], tuple[Tensor, Any]] = enter(self._run)

    def __deepcopy__(self, memo: dict[int, Any]) -> BackboneView:
        model = copy.deepcopy(self.model, memo)
        return BackboneView(
            model if self.compiled is None else type(self.compiled)(model, self.compiled.dynamo_ctx)
        )

    @property
    def is_compiled(self) -> bool:
        """Whether the model, or a part of it, is compiled."""
        if self.compiled is not None:
            return True
        return any(vars(module).get("_compiled_call_impl") is not None for module in self.model.modules())

    # ---- running the model ----

    def __call__(self, images: Tensor) -> Tensor:
        """Logits `[B, C]` of images `[B, 3, H, W]`, through the model's own (compiled) forward."""
        return self.layout.logits(self.model(images) if self.compiled is None else self.compiled(images))

    def forward_tokens(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[B, C]` and final image tokens `[B, N, D]` (row-major over the grid) in one forward.

        Tokens are taken after the model's last norm where that comes before pooling.

        Raises:
            ValueError: features that are no sequence over this image's grid.
        """
        grid = self.grid_size(images.shape[-2:])
        features, output = self._features_and_logits(images)
        return self.layout.logits(output), self.layout.image_tokens(features, grid)

    def classify(self, tokens: Tensor) -> Tensor:
        """The model's own classifier on pooled tokens: `[B, D]` -> `[B, C]` (SMMix's F, eq. 12).

        The token is given to the head as a whole sequence of itself, so that whatever the model does when it
        pools (class token, average and norm, two distillation heads) comes out as that token's.
        """
        return self.layout.logits(self.layout.classify(tokens))

    def evaluating(self) -> AbstractContextManager[None]:
        """Evaluation mode for a while; each module gets its own flag back, also after an exception."""
        return evaluating(self.model)

    def _run(self, images: Tensor) -> tuple[Tensor, Any]:
        return self.layout.features_and_logits(images)

    # ---- where its tokens are ----

    def grid_size(self, image_size: Sequence[int]) -> Grid:
        """Rows and columns of final image tokens for an image of height, width in pixels.

        Raises:
            ValueError: a side that holds no whole number of final tokens, or that the model does not take.
        """
        return self.layout.grid_size(image_size)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width in pixels of a final token."""
        return self.layout.patch_size

    def token_grid_size(self, image_size: Sequence[int]) -> Grid:
        """Rows and columns of the first image tokens, before any stage merges them.

        Raises:
            ValueError: a side that holds no whole number of them, or that the model does not take.
        """
        return self.layout.token_grid_size(image_size)

    @property
    def token_patch_size(self) -> tuple[int, int]:
        """Height and width in pixels of one of the first tokens."""
        return self.layout.token_patch_size

    def require_all_tokens(self) -> None:
        """Raise ValueError for a model that drops patches in training: the grid would have holes."""
        drop = getattr(self.model, "patch_drop", None)
        if drop is not None and getattr(drop, "prob", 0) > 0:
            raise ValueError(
                f"{self.name} drops {drop.prob:.0%} of its patches in training, so that tokens no longer form "
                "the image's grid; create it with patch_drop_rate=0"
            )

    # ---- how they travel ----

    def flow(self, image_size: Sequence[int]) -> Flow:
        """Every step that image tokens take, from `token_grid_size` to what `readout` takes.

        Raises:
            ValueError: as `token_grid_size`.
        """
        return self.layout.flow(image_size)

    def readout(self, values: Tensor) -> Tensor:
        """What the classifier reads of one value per final token: `[B, M]` -> `[B]`.

        The class token's (the mean of two where there are two heads), the mean over the image tokens where the
        model pools them, the attention pool's; DINOv2 in transformers reads class token and mean, half each.
        """
        return self.layout.readout(values)

    # ---- its attention ----

    @property
    def num_attention_calls(self) -> int:
        """How many attention calls a forward makes, the attention pool's included."""
        return len(self.layout.calls)

    def open_tap(self, blocks: Sequence[int] | None = (-1,)) -> AttentionTap:
        """An `AttentionTap` on this model."""
        return AttentionTap(self.model, blocks, num_prefix_tokens=self.num_prefix_tokens)

    def open_stopping_tap(self, blocks: Sequence[int] | None) -> AttentionTap:
        """An `AttentionTap` that ends the forward where it has seen the blocks, if the model can be left there.

        Not where it is compiled, where every block is wanted, or where hooks may wait for its end.
        """
        everybodys = _global_forward_hooks or _global_forward_pre_hooks
        own = any(module._forward_hooks or module._forward_pre_hooks for module in self.model.modules())
        if blocks is None or self.is_compiled or everybodys or own:
            return self.open_tap(blocks)
        numbers = [self.check_block(block) for block in blocks]
        return AttentionTap(self.model, numbers, num_prefix_tokens=self.num_prefix_tokens, stop=True)

    def class_attention(self, tap: AttentionTap, block: int, image_size: Sequence[int]) -> Tensor:
        """The class token's (or pool's) attention on the final grid, rows sum to 1, `[B, N]` (TransMix eq. 5).

        Raises:
            ValueError: a block without such a row, out of range or not kept.
        """
        self._check_class_row(block)
        step, call = self._call(tap, block, image_size)
        return self._on_final_grid(step, step.class_attention(call), image_size)

    def image_attention(self, tap: AttentionTap, block: int, image_size: Sequence[int]) -> Tensor:
        """Mean attention to each image token on the final grid, not renormalised, `[B, N]` (SMMix eq. 6).

        The mean is over all image tokens, also where these attend in windows. Where keys lie on another grid,
        what a key is given is shared out by area; the sum stays.

        Raises:
            ValueError: a block that mixes channels, out of range or not kept.
        """
        self._check_tokens(block)
        step, call = self._call(tap, block, image_size)
        return self._on_final_grid(step, step.image_attention(call), image_size)

    @property
    def image_blocks(self) -> list[int]:
        """The blocks in which image tokens attend: not class attention, pools of one query, or XCiT's channels."""
        steps = enumerate(self.layout.calls)
        return [number for number, step in steps if not (step.one_query or isinstance(step, ChannelAttention))]

    def image_attend(self, tap: AttentionTap, block: int, values: Tensor, image_size: Sequence[int]) -> Tensor:
        """Each image token's head-mean attention times one value per image token, `[B, N]` -> `[B, N]`.

        On the block's own grid. Prefix tokens are left out without scaling the rest up. Tokens of different
        windows do not see each other; a key that is a cell of tokens gives each an equal part of its attention.

        Raises:
            ValueError: a block in which image tokens do not attend, out of range or not kept.
        """
        self._check_image_block(block)
        step, call = self._call(tap, block, image_size)
        keys = F.pad(values.float(), (step.prefix, 0))
        attended = step.carry(keys, lambda keys: quantities.right_product(call, keys), residual=False)
        return attended[:, step.prefix :]

    def image_presence(self, tap: AttentionTap, block: int, image_size: Sequence[int]) -> Tensor:
        """How present each image token is after the block's mixing, `[B, N]`, sum N (TL-Align eq. 2).

        On the block's own grid; keys on a coarser one are shared out by area.

        Raises:
            ValueError: as `image_attend`.
        """
        self._check_image_block(block)
        step, call = self._call(tap, block, image_size)
        if step.prefix:
            return quantities.presence(call, step.query_prefix, step.prefix)
        scores = step.image_attention(call) * math.prod(step.grid)  # rows sum to 1 as they are
        return self._on_grid(step, scores, step.grid)

    def check_block(self, block: int) -> int:
        """The block's number counted from 0; ValueError out of range."""
        count = self.num_attention_calls
        number = block + count if block < 0 else block
        if not 0 <= number < count:
            raise ValueError(f"block {block} is none of the {count} of {self.name}: {-count} to {count - 1}")
        return number

    def check_guide(self, blocks: Sequence[int] | None, attention: str) -> None:
        """Raise ValueError where `attention` cannot be read from these blocks; runs nothing.

        Args:
            blocks: None for all of them.
            attention: "class", "image", "class-rollout" or "image-rollout".
        """
        numbers = range(self.num_attention_calls) if blocks is None else blocks
        if attention == "class-rollout":
            self._check_class_row(-1)
            self._check_one_sequence()
            return
        for block in numbers:
            (self._check_class_row if attention == "class" else self._check_tokens)(block)

    def check_traceable(self, class_blocks_only: bool = False) -> None:
        """Raise ValueError where values of tokens cannot be traced through the model's attention."""
        if class_blocks_only:
            if not any(step.one_query for step in self.layout.calls):
                raise ValueError(f"{self.name} has no class-attention blocks: leave class_blocks_only out")
        elif any(isinstance(step, ChannelAttention) for step in self.layout.calls):
            raise ValueError(f"{self.name} {MIXES_CHANNELS}; class_blocks_only=True traces through these alone")

    def _check_tokens(self, block: int) -> AttentionStep:
        step = self.layout.calls[self.check_block(block)]
        if isinstance(step, ChannelAttention):
            raise ValueError(f"block {block} of {self.name} {MIXES_CHANNELS}")
        return step

    def _check_image_block(self, block: int) -> None:
        if self._check_tokens(block).one_query:
            raise ValueError(f"in block {block} of {self.name} one query attends, no image token does")

    def _check_class_row(self, block: int) -> None:
        if not self._check_tokens(block).has_class_row:
            raise ValueError(f"block {block} of {self.name} has no class row: use image attention")

    def _check_one_sequence(self) -> None:
        steps = self.layout.flow(self.layout.example_size)
        whole = all(isinstance(step, SequenceAttention) or step.one_query for step in attention_steps(steps))
        if not whole or any(isinstance(step, Merge) for step in steps):
            raise ValueError(
                f"{self.name} does not have the same tokens in all blocks, which a rollout of the class row "
                "needs; use the attention of one block"
            )

    def _call(
        self, tap: AttentionTap, block: int, image_size: Sequence[int]
    ) -> tuple[AttentionStep, AttentionCall]:
        number = self.check_block(block)
        step, call = attention_steps(self.flow(image_size))[number], tap.call(number)
        if call.shape[2:] != step.shape:
            raise ValueError(
                f"block {block} of {self.name} attended from {call.shape[2]} to {call.shape[3]} tokens, but for "
                f"images of {tuple(image_size)} pixels {step.shape[0]} and {step.shape[1]} were expected"
            )
        return step, call

    def _on_final_grid(self, step: AttentionStep, scores: Tensor, image_size: Sequence[int]) -> Tensor:
        return self._on_grid(step, scores, self.grid_size(image_size))

    def _on_grid(self, step: AttentionStep, scores: Tensor, grid: Grid) -> Tensor:
        maps = step.fold(scores)
        return (maps if maps.shape[1:] == grid else share_out(maps, grid)).flatten(1)

    # ---- its blocks ----

    @property
    def blocks(self) -> list[nn.Module]:
        """Block modules; number k holds attention call k and takes the tokens `[B, M, D]` as first argument.

        Swin's take `[B, rows, columns, D]`. May be fewer than the calls: an attention pool is no block, nor are
        class-attention blocks that take the class token apart from the others (CaiT, CA-Swin).
        """
        return self.layout.blocks

    def block_width(self, block: int) -> int:
        """Channels of the tokens that come into a block."""
        return self.layout.block_width(self._check_module(block))

    def block_prefix(self, block: int) -> int:
        """Prefix tokens among those that come into a block."""
        return self.layout.calls[self._check_module(block)].prefix

    def appendable(self, block: int) -> str | None:
        """None where tokens of earlier blocks may be appended to the block's keys and values; else why not."""
        number = self.check_block(block)
        if number == 0:
            return "no block comes before it"
        return self.layout.obstacle(number)

    @property
    def grad_checkpointing(self) -> bool:
        """Whether the model computes activations again in the backward pass."""
        return self.layout.grad_checkpointing

    def _check_module(self, block: int) -> int:
        number, count = self.check_block(block), len(self.blocks)
        if number >= count:
            raise ValueError(f"block {block} of {self.name} takes no sequence of tokens; 0 to {count - 1} do")
        return number
