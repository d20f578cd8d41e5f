"""One value per token, carried along a model's flow: beside its forward, or afterwards from a tap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnmix.attention import quantities
from attnmix.attention.call import AttentionCall, SoftmaxCall
from attnmix.attention.carry import carrying_attention
from attnmix.attention.flow import Attend, AttentionStep, Step, attention_steps
from attnmix.attention.recorder import fused_call, is_fused, is_softmax


class Journey:
    """Where the values have come to (TL-Align section 3.3).

    Args:
        flow: from `BackboneView.flow`.
        values: `[B, N]` of the first grid's image tokens.
        joining: `[B]`, value of prefix tokens when they join.
        residual: average each token's value with what it attends to; without, the latter alone.
        class_blocks_only: leave out attention that has more than one query.
    """

    def __init__(
        self,
        flow: Sequence[Step],
        values: Tensor,
        joining: Tensor,
        *,
        residual: bool = True,
        class_blocks_only: bool = False,
    ) -> None:
        self.flow = flow
        self.values = values
        self.joining = joining
        self.residual = residual
        self.class_blocks_only = class_blocks_only
        self._next = 0

    def to_attention(self) -> AttentionStep | None:
        """Take the steps before the next attention call, and return that step; None: there is no further one."""
        while self._next < len(self.flow):
            step = self.flow[self._next]
            self._next += 1
            if isinstance(step, AttentionStep):
                return step
            self.values = step.apply(self.values, self.joining)
        return None

    def counts(self, step: AttentionStep) -> bool:
        """Whether this attention moves values."""
        return step.one_query or not self.class_blocks_only

    def through(self, step: AttentionStep, attend: Attend) -> None:
        """Take an attention step; `attend` is the call's head-mean attention times values of its keys.

        Raises:
            ValueError: attention that mixes channels instead of tokens.
        """
        self.values = step.carry(self.values, attend, self.residual)

    def follow(self, attend: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Make the whole journey at once, after the forward.

        Args:
            attend: values and the number of the attention call -> values, e.g. `tap.attend`.

        Returns:
            The values at its end, `[B, M]`, prefix tokens first; `[B, 1]` where attention pools.
        """
        number = 0
        while (step := self.to_attention()) is not None:
            if self.counts(step):
                self.through(step, lambda keys, number=number: attend(keys, number))  # type: ignore[misc]
            number += 1
        return self.values


class Companion(TorchFunctionMode):
    """Takes a journey along with the model that runs inside the `with` block; the model is left as it is.

    Each attention call's product is worked out when the call is made, while query and key are at hand: nothing is
    kept of them. On the CPU it rides in the model's own attention (`carry.py`).

        with Companion(Journey(view.flow(size), values, joining)) as journey:
            view(images)
        view.readout(journey.values)

    Raises:
        RuntimeError: at the end of the block, if the model made another number of attention calls than its flow.
        ValueError: attention of another number of tokens than the flow says, or that mixes channels.
    """

    def __init__(self, journey: Journey) -> None:
        super().__init__()
        self.journey = journey
        self.seen = 0

    def __enter__(self) -> Journey:
        super().__enter__()
        return self.journey

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None:
            return
        if self.journey.to_attention() is not None:
            count = len(attention_steps(self.journey.flow))
            raise RuntimeError(
                f"the model made {self.seen} attention calls of a kind that can be read, not {count}"
            )

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_fused(func, args, kwargs):
            return self._fused(func, args, kwargs)
        result = func(*args, **kwargs)
        if is_softmax(func, args, kwargs, result):
            call = SoftmaxCall(result.detach())
            step = self._step(call)
            if step is not None:
                self.journey.through(step, lambda keys: quantities.right_product(call, keys))
        return result

    def _fused(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        call = fused_call(*args, **kwargs)
        output: list[Tensor] = []

        def attend(keys: Tensor) -> Tensor:
            both = None if output else carrying_attention(keys, *args, **kwargs)
            if both is None:
                return quantities.right_product(call, keys)
            output.append(both[0])
            return both[1]

        step = self._step(call)
        if step is not None:
            self.journey.through(step, attend)
        return output[0] if output else func(*args, **kwargs)

    def _step(self, call: AttentionCall) -> AttentionStep | None:
        """The journey's next attention step, if values are to be moved by it."""
        step = self.journey.to_attention()
        self.seen += 1
        if step is None:
            count = len(attention_steps(self.journey.flow))
            raise RuntimeError(f"the model makes more attention calls than the {count} that were expected")
        if call.shape[2:] != step.shape:
            raise ValueError(
                f"attention call {self.seen} went from {call.shape[2]} to {call.shape[3]} tokens, but "
                f"{step.shape[0]} and {step.shape[1]} were expected"
            )
        return step if self.journey.counts(step) else None
