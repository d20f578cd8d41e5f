"""Change what a block is given, or what its attention attends to, for one forward of a model nobody edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnmix.attention.call import AttentionCall, SoftmaxCall
from attnmix.attention.recorder import fused_call, is_fused, is_softmax


class Caught(NamedTuple):
    """One attention call, with what was attended to."""

    call: AttentionCall  # detached
    key: Tensor | None = None  # [B, H, M_key, D] with its gradient; None where attention is not fused
    value: Tensor | None = None  # likewise


class _Found(Exception):
    """Ends a forward at its first attention call."""

    def __init__(self, caught: Caught) -> None:
        self.caught = caught


class _Stop(TorchFunctionMode):
    """Runs until the first attention call, unseen by modes that were entered before."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_fused(func, args, kwargs):
            raise _Found(_caught(*args, **kwargs))
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
        if is_softmax(func, args, kwargs, result):
            raise _Found(Caught(SoftmaxCall(result.detach())))
        return result


def peek(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Caught:
    """What a block's first attention call would be, given these arguments.

    Runs the block's forward just so far (its norm and projections), without its hooks, its attention, or
    anything behind it: nothing random has been drawn by then. An open `AttentionTap` sees nothing of it.
    Under `torch.no_grad` it costs no memory; without, key and value carry their gradient.

    Raises:
        RuntimeError: the block ends without an attention call.
    """
    try:
        with _Stop():
            block.forward(*args, **(kwargs or {}))
    except _Found as found:
        return found.caught
    raise RuntimeError(f"{type(block).__name__} has no attention of a kind that can be read")


@contextmanager
def changed_tokens(
    block: nn.Module, change: Callable[[tuple[Any, ...], dict[str, Any]], Tensor]
) -> Iterator[None]:
    """Inside, a block runs on the tokens that `change` makes of its arguments, whose first are its tokens."""

    def hook(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (change(args, kwargs), *args[1:]), kwargs

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def shared_memory(
    blocks: Sequence[nn.Module],
    select: Callable[[int, Tensor, AttentionCall | None], Tensor],
    *,
    listen: bool = True,
) -> Iterator[None]:
    """Inside, the last of `blocks` also attends to tokens that the blocks before it were given.

    They go through that block's own norm and projections and join its keys and values, with their gradient;
    queries are as many as ever. An `AttentionTap` opened inside sees each call as the model made it.

    Args:
        blocks: consecutive blocks from the first on; each one's first argument is its tokens.
        select: (number of an earlier block, its input, its attention call) -> tokens `[B, m, D]` to remember.
        listen: whether `select` wants the attention call; otherwise it gets None.

    Raises:
        ValueError: the last block's attention is not fused, or has a mask, so that no key can be added to it.
        RuntimeError: a block makes no attention call at all.
    """
    mode = _Interception()
    inputs: dict[int, Tensor] = {}
    memory: list[Tensor] = []

    def before_earlier(number: int, args: tuple[Any, ...]) -> None:
        inputs[number] = args[0]
        mode.listening = listen

    def after_earlier(number: int) -> None:
        memory.append(select(number, inputs.pop(number), mode.heard() if listen else None))

    def before_last(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught = peek(block, (torch.cat(memory, dim=1), *args[1:]), kwargs)
        memory.clear()
        if caught.key is None or caught.value is None:
            raise ValueError(
                f"{type(block).__name__} spells its attention out, where no keys can be added: create the "
                "model with fused attention"
            )
        mode.extra = (caught.key, caught.value)

    def after_last(block: nn.Module) -> None:
        if mode.extra is not None:
            raise RuntimeError(f"{type(block).__name__} made no fused attention call to add keys to")

    with ExitStack() as stack, mode:
        for number, block in enumerate(blocks[:-1]):
            hooks = (
                block.register_forward_pre_hook(lambda _, args, number=number: before_earlier(number, args)),
                block.register_forward_hook(lambda *_, number=number: after_earlier(number)),
            )
            for hook in hooks:
                stack.callback(hook.remove)
        stack.callback(blocks[-1].register_forward_pre_hook(before_last, with_kwargs=True).remove)
        stack.callback(blocks[-1].register_forward_hook(lambda block, *_: after_last(block)).remove)
        yield


class _Interception(TorchFunctionMode):
    """Function mode around a whole forward: keeps, or extends, the next attention call when told to.

    Outside of any tap that is opened inside, so that the tap sees the call as the model made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listening = False
        self.extra: tuple[Tensor, Tensor] | None = None  # keys and values to add, [B, H, m, D]
        self._caught: AttentionCall | None = None

    def heard(self) -> AttentionCall:
        """The call that came since it was listening, detached."""
        caught, self._caught, self.listening = self._caught, None, False
        if caught is None:
            raise RuntimeError("a block has no attention of a kind that can be read")
        return caught

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.listening and self.extra is None:
            return func(*args, **kwargs)
        fused = is_fused(func, args, kwargs)
        if fused and self.extra is not None:
            extra, self.extra = self.extra, None
            return _extended(func, extra, *args, **kwargs)
        result = func(*args, **kwargs)
        if fused and self.listening:
            self._caught, self.listening = fused_call(*args, **kwargs), False
        elif self.listening and is_softmax(func, args, kwargs, result):
            self._caught, self.listening = SoftmaxCall(result.detach()), False
        return result


def _caught(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Caught:
    return Caught(fused_call(query, key, value, *args, **kwargs), key, value)


def _extended(
    func: Any,
    extra: tuple[Tensor, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Tensor:
    if attn_mask is not None or is_causal:
        raise ValueError(
            "attention with a mask or a bias cannot attend to memory tokens, for which it has no entry"
        )
    key, value = torch.cat([key, extra[0]], dim=2), torch.cat([value, extra[1]], dim=2)
    return func(query, key, value, dropout_p=dropout_p, **kwargs)
