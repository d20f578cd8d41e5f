"""The gradient of a loss with respect to the images, and nothing left behind on the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def input_gradient(logits_of: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each image's cross-entropy with respect to the image, `[B, C, H, W]`; also inside `no_grad`.

    Args:
        logits_of: differentiable, each image on its own: `[B, C, H, W]` -> `[B, K]`.
        images: `[B, C, H, W]`.
        labels: `[B]` int64, which logit is the true class's.
    """
    if len(images) == 1:
        # torch 2.13 on a CPU: the backward pass of a batch norm in evaluation mode goes wrong for a single image
        # whose gradient is not contiguous (XCiT's first tokens)
        return input_gradient(logits_of, images.repeat(2, 1, 1, 1), labels.repeat(2))[:1]
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        # the sum: in a mean small gradients would vanish with the size of the batch
        loss = F.cross_entropy(logits_of(images), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
    return gradient


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient for a while; each gets its own flag back, also after an exception."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
