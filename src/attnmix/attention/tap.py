"""Read the attention of a model from outside."""

from collections.abc import Sequence
from types import TracebackType

from timm.utils import unwrap_model
from torch import Tensor, nn

from attnmix.attention import quantities
from attnmix.attention.call import AttentionCall
from attnmix.attention.layout import default_prefix_tokens, has_class_token, prefix_tokens
from attnmix.attention.quantities import renormalise
from attnmix.attention.recorder import AttentionRecorder, SeenEnough
from attnmix.attention.rollout import first_row_rollout, mean_over_blocks


class AttentionTap:
    """Catches the attention of a model that runs inside the `with` block; the model is left as it is.

        with AttentionTap(model) as tap:
            model(images)
        scores = tap.class_attention()  # [B, N]

    A block is one attention call, in the order of the calls; a negative number counts from the last one.
    `blocks` says which are kept (None: every one). `num_prefix_tokens` tokens in front of the image tokens
    (class, distillation, register tokens) default to the model's own attribute of that name, else 0.

    With `stop`, the forward ends once the last of `blocks` was seen, and the program goes on behind the `with`
    block: what is not needed for the attention is not run. Blocks are then counted from 0, and read by `call`,
    `probabilities` and `attend` alone, since it takes the blocks behind to tell which tokens are prefix tokens.
    The model is not compiled and has no hooks that wait for its end.

    Fused and unfused attention, autocast, gradient checkpointing and compiled models all work. Compile the
    whole model and enter the tap outside it; compiled block by block, every block is compiled anew. Query and
    key are kept detached; everything is computed from them when asked for, in float32, without gradient.

    Raises:
        RuntimeError: at the end of the `with` block, if no attention was caught.
        ValueError: for a block that was not kept, a quantity this model does not have, a model with a class
            token that does not say `num_prefix_tokens` (pass it then), or after `stop` for a block counted from
            the end, or a quantity that needs to know the blocks behind.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[int] | None = (-1,),
        *,
        num_prefix_tokens: int | None = None,
        stop: bool = False,
    ) -> None:
        if blocks is not None and len(blocks) == 0:
            raise ValueError("blocks is empty: name at least one, or None for every block")
        if stop and (blocks is None or min(blocks) < 0):
            raise ValueError(f"stop needs blocks counted from 0, got {blocks}")
        model = unwrap_model(model)
        if num_prefix_tokens is None:
            num_prefix_tokens = default_prefix_tokens(model)
        self._num_prefix_tokens = num_prefix_tokens
        self._model = model
        self._name = type(model).__name__
        self._blocks = None if blocks is None else tuple(blocks)
        self._last = max(blocks) if stop and blocks is not None else None
        self._recorder = AttentionRecorder(self._blocks)

    def __enter__(self) -> "AttentionTap":
        self._recorder = AttentionRecorder(self._blocks, self._last)
        self._recorder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._recorder.__exit__(kind, error, trace)
        self._recorder.drop_unwanted()
        if kind is None and not self._recorder.shapes:
            raise RuntimeError(
                f"AttentionTap caught no attention in {self._name}: either it has none of a kind the tap "
                "knows (a convnet has none at all), or it did not run inside the tap, or the tap was entered "
                "inside a compiled function (enter it outside)"
            )
        return isinstance(error, SeenEnough) and error.recorder is self._recorder

    def probabilities(self, block: int = -1) -> Tensor:
        """Softmax attention after bias, before dropout, [B, H, M_query, M_key]: quadratic in tokens."""
        return quantities.probabilities(self.call(block))

    def class_attention(self, block: int = -1) -> Tensor:
        """Head mean of the class token's row (or a pool's only query's), image tokens, rows sum to 1, [B, N].

        TransMix eq. 5. No class token in the model or in this block: ValueError.
        """
        call = self.call(block)
        _, key_prefix = self._prefix(block)
        self._check_class_row(block)
        return quantities.class_attention(call, key_prefix)

    def image_attention(self, block: int = -1) -> Tensor:
        """Mean over heads and image-token queries, image tokens, not renormalised, [B, N]. SMMix eq. 6.

        Needs no class token. Where one query attends to all tokens (pooling, class attention): its row.
        """
        call = self.call(block)
        query_prefix, key_prefix = self._prefix(block)
        return quantities.image_attention(call, query_prefix, key_prefix)

    def attend(self, values: Tensor, block: int = -1) -> Tensor:
        """Head-mean attention times one value per token: [B, M_key] -> [B, M_query] (TL-Align's step).

        `values` cover prefix tokens too.
        """
        return quantities.right_product(self.call(block), values)

    def class_rollout(self) -> Tensor:
        """Class row of the product of all blocks' head-mean attention, image tokens, rows sum to 1, [B, N].

        TransMix's ablation. Needs `blocks=None`, a class token (or a pool's query), and the same tokens in
        every block: else ValueError.
        """
        calls = self._all_calls("class_rollout")
        self._check_class_row(-1)
        row = first_row_rollout(calls, self._num_prefix_tokens)
        _, key_prefix = self._prefix(0)
        return renormalise(row[:, key_prefix:])

    def image_rollout(self) -> Tensor:
        """Mean over all blocks of `image_attention`, [B, N]. SMMix's ablation (Table A5).

        Needs `blocks=None` and the same tokens in every block: else ValueError.
        """
        count = len(self._all_calls("image_rollout"))
        return mean_over_blocks([self.image_attention(block) for block in range(count)])

    def call(self, block: int = -1) -> AttentionCall:
        """The attention call as it was seen, for `attnmix.attention.quantities`."""
        count = len(self._recorder.shapes)
        if block < 0 and self._last is not None:
            raise ValueError(f"block is {block}, but a tap that stops counts blocks from 0")
        number = block + count if block < 0 else block
        if not 0 <= number < count:
            raise ValueError(f"block {block} is none of the {count} of {self._name}: {-count} to {count - 1}")
        if number not in self._recorder.calls:
            kept = sorted(self._recorder.calls)
            raise ValueError(f"block {block} of {self._name} was not kept: of {count} blocks, {kept} were")
        return self._recorder.calls[number]

    def _all_calls(self, quantity: str) -> list[AttentionCall]:
        if self._blocks is not None:
            raise ValueError(f"{quantity} needs every block: AttentionTap(model, blocks=None), got {self._blocks}")
        return list(self._recorder.calls.values())

    def _prefix(self, block: int) -> tuple[int, int]:
        self._check_went_on()
        shapes = self._recorder.shapes
        return prefix_tokens(shapes, block % len(shapes), self._num_prefix_tokens)

    def _check_went_on(self) -> None:
        if self._last is not None:
            raise ValueError(
                "a tap that stops does not see the blocks behind, which tell image tokens from others: use "
                "probabilities, or do not stop"
            )

    def _check_class_row(self, block: int) -> None:
        self._check_went_on()
        queries, _ = self._recorder.shapes[block]
        if queries == 1:
            return
        if not has_class_token(self._model, self._num_prefix_tokens):
            raise ValueError(f"{self._name} has no class token: use image_attention")
        if self._prefix(block)[0] == 0:
            raise ValueError(f"block {block} of {self._name} has no class token: use image_attention")
