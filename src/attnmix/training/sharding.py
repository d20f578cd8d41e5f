"""FSDP2: weights, gradients and optimizer state in parts, one part to each process, by torch's `fully_shard`.

Accelerate's own FSDP takes processes on GPUs alone. What else a run has of Accelerate (loaders, precision,
metrics) does not ask how the weights are kept. torch.distributed.checkpoint would name an optimizer's state by
parameters; here a checkpoint is the same whether weights were in parts or not.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from attnmix.backbone import BackboneView
from attnmix.task import MixTask

__all__ = [
    "evaluated",
    "in_parts",
    "is_sharded",
    "optimizer_in_parts",
    "shard",
    "share_buffers",
    "sync_gradients",
    "whole",
]


def shard(task: MixTask, *, keep_gathered: bool) -> None:
    """Part the task's weights, and those of its moving average; an optimizer made afterwards parts its state.

    Every block of the model is a group that is gathered when it runs, all that remains another.

    Args:
        task: on its device; its moving average, if any, is set up.
        keep_gathered: keep a block's weights from its forward to its backward pass (FSDP's SHARD_GRAD_OP) instead
            of gathering them twice (FULL_SHARD).
    """
    device = next(task.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    root = task.get_trainable_module()
    _shard(root, task.view, mesh, keep_gathered=keep_gathered)
    _hold_during_forward(cast(Any, root))
    register_fsdp_forward_method(root, "logits")
    if task.has_ema():
        average = cast(nn.Module, task.get_eval_model(ema=True))
        _shard(average, BackboneView(average), mesh, keep_gathered=False)


def _shard(root: nn.Module, view: BackboneView, mesh: DeviceMesh, *, keep_gathered: bool) -> None:
    for block in view.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=not keep_gathered)
    fully_shard(root, mesh=mesh)


def _hold_during_forward(root: Any) -> None:
    """Puzzle Mix and Co-Mixup take a gradient to the pixels first, after which FSDP2 takes the step for over."""
    root.register_forward_pre_hook(lambda *_: root.set_reshard_after_backward(False, recurse=False))
    root.register_forward_hook(lambda *_: root.set_reshard_after_backward(True, recurse=False), always_call=True)


def is_sharded(task: MixTask) -> bool:
    """Whether `shard` was called on it."""
    return isinstance(task.get_trainable_module(), FSDPModule)


def sync_gradients(task: MixTask, wanted: bool) -> None:
    """Whether the next backward pass adds up the processes' gradients, or each gathers its own."""
    cast(FSDPModule, task.get_trainable_module()).set_requires_gradient_sync(wanted)


def share_buffers(module: nn.Module) -> None:
    """Give every process the first one's buffers: BatchNorm's statistics are of each one's own images."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if not buffers or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    together = torch.cat([buffer.flatten() for buffer in buffers])
    dist.broadcast(together, src=0)
    for buffer, first in zip(buffers, together.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(first.view_as(buffer))


def evaluated(task: MixTask, *, ema: bool = False) -> nn.Module:
    """The task's model as an evaluation calls it; in parts, it has to be called through what gathers them."""
    model = cast(nn.Module, task.get_eval_model(ema=ema))
    return _ThroughRoot(task.get_trainable_module()) if is_sharded(task) and not ema else model


class _ThroughRoot(nn.Module):
    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root: Any = root

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.root.logits(images)
        return logits


# ------------------------------------------------------------ to and from a checkpoint


def whole(state: Any, *, keep: bool = True) -> Any:
    """`state` with the tensors in parts gathered, on the CPU: as a single process would have it.

    All processes have to ask for the same; who does not `keep` what it gathered gets None in its place.
    """
    if isinstance(state, DTensor):
        gathered = state.full_tensor()
        return gathered.cpu() if keep else None
    if isinstance(state, dict):
        return {name: whole(value, keep=keep) for name, value in state.items()}
    if isinstance(state, list):
        return [whole(value, keep=keep) for value in state]
    return state


def in_parts(state: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """A module's whole state, with the tensors that `like` has in parts parted as there."""
    return {name: _parted(value, like.get(name)) for name, value in state.items()}


def optimizer_in_parts(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's whole state, parted as its weights are; numbers that it keeps once of a weight stay."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parted = {
        number: {name: _parted(value, weight) for name, value in state["state"][number].items()}
        for number, weight in zip(numbers, weights, strict=True)
        if number in state["state"]
    }
    return {**state, "state": parted}


def _parted(value: Any, like: Any) -> Any:
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    here = value.to(like.device)
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)
