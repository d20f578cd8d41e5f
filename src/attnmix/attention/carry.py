"""Fused attention that carries one more number per token, at the price of one more column of values.

The product of attention with one number per key could be worked out beside the model, but costs a second Q K^T and
its softmax there. As one more column of the values it rides in the attention that runs anyway, whose own output
stays the same but for rounding; the backward pass is that of the plain call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

# torch's own fused attention on the CPU, by the names under which autograd calls it; a torch that names them, or
# what is asked below, otherwise carries nothing
_forward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
_choice: Any = getattr(torch, "_fused_sdp_choice", None)
_saving_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def carrying_attention(
    carried: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """`F.scaled_dot_product_attention`, and with it the head-mean attention times one number per key.

    Possible on the CPU in float32, where torch would run its fused kernel; not under dropout, which the product is
    not subject to, nor where somebody else watches the call, traces it to compile it, or handles what is saved for
    the backward pass: gradient checkpointing runs the plain call later, and puts back what it saves by place.

    Args:
        carried: `[B, M_key]` float32, the numbers; gets no gradient.
        query: `[B, H, M_query, D]`; this and all that follows as the model gives it.
        key: `[B, H, M_key, D]`.
        value: `[B, H, M_key, D]`.
        attn_mask: see torch, as for the others.
        dropout_p: likewise.
        is_causal: likewise.
        scale: of the logits; None: 1 / sqrt(D).
        enable_gqa: likewise.

    Returns:
        The attention's output with its gradient, and the product `[B, M_query]` without one; None where it is not
        possible.
    """
    if query.device.type != "cpu" or not query.dtype == key.dtype == value.dtype == torch.float32:
        return None
    if attn_mask is not None or is_causal or dropout_p > 0 or enable_gqa or torch.is_autocast_enabled("cpu"):
        return None
    if None in (_forward, _backward, _choice, _saving_hooks) or torch.compiler.is_compiling():
        return None
    # torch.set_default_device leaves a mode on the stack for good, which looks at no attention
    if not all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()):
        return None
    if _saving_hooks(True) is not None:
        return None
    if _choice(query, key, value, scale=scale) != SDPBackend.FLASH_ATTENTION.value:
        return None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _CarryingAttention.apply(query, key, value, carried, scale)


class _CarryingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, carried: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        batch, heads, _, width = query.shape
        column = carried[:, None, :, None].expand(batch, heads, -1, 1)
        # the kernel wants three alike: a column of zeros in query and key changes no logit
        wide, logsumexp = _forward(
            F.pad(query, (0, 1)), F.pad(key, (0, 1)), torch.cat((value, column), dim=-1), scale=scale
        )
        # laid out as the query, which is what the plain kernel does: the model flattens it as it would that
        output = torch.empty_like(query).copy_(wide[..., :width])
        ctx.save_for_backward(query, key, value, logsumexp, output)
        ctx.scale = scale
        attended = wide[..., width].mean(dim=1)
        ctx.mark_non_differentiable(attended)
        return output, attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, logsumexp, output = ctx.saved_tensors
        found = _backward(gradient, query, key, value, output, logsumexp, 0.0, False, scale=ctx.scale)
        return *found, None, None
