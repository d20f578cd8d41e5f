"""Where a loss looks: its gradient with respect to the pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.backbone import BackboneView

# saliency is compared within an image, so that a scale changes nothing but what half precision would round to 0
_SCALE = 256.0


def input_saliency(view: BackboneView, images: Tensor, targets: Tensor) -> Tensor:
    """Norm over the channels of the cross-entropy's gradient at each pixel (Puzzle Mix and Co-Mixup, section 3).

    A forward in evaluation mode and a backward pass to the pixels alone: no parameter's `.grad`, buffer or flag
    changes. Works under `torch.no_grad` and `torch.inference_mode` too.

    Args:
        view: the model under training.
        images: `[B, C, H, W]`, unmixed.
        targets: `[B, C]` label distributions.

    Returns:
        `[B, H, W]` float32, at least 0, to be compared within an image only.
    """
    with torch.inference_mode(False), torch.enable_grad(), view.evaluating():
        # copies, because what was made in inference mode cannot be remembered for a backward pass
        pixels = images.detach().clone().requires_grad_()
        loss = F.cross_entropy(view(pixels).float(), targets.detach().clone(), reduction="sum") * _SCALE
        (gradient,) = torch.autograd.grad(loss, pixels)
    return torch.linalg.vector_norm(gradient.float(), dim=1)


def pixel_scale(view: BackboneView, images: Tensor) -> Tensor:
    """By what differences of normalised pixels become those of pixels in [0, 1], `[C, 1, 1]`.

    The standard deviation that timm's model says its images were divided by; 1 where it says none, or not one for
    each channel of these images.
    """
    config = getattr(view.model, "pretrained_cfg", None) or {}
    std = config.get("std") or ()
    if len(std) != images.shape[1]:
        std = (1.0,) * images.shape[1]
    return torch.tensor(std).to(images.device, non_blocking=True)[:, None, None]
