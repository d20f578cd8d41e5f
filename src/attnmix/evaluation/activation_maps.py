"""Class activation maps (Grad-CAM) on a model's own token grid."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.evaluation.subject import Subject

# of timm's and attnmix's models, of transformers' ViT, DeiT and Swin, of its PVT
FIRST_NORMS = ("norm1", "layernorm_before", "layer_norm_1")


def activation_maps(subject: Subject, images: Tensor, classes: Tensor) -> Tensor:
    """Where the tokens speak for a class: Grad-CAM (Selvaraju et al., ICCV 2017), by the library grad-cam.

    A channel weighs as much as the mean gradient of the class's logit over the tokens (eq. 1); the map is what is
    positive in the weighted sum of the channels (eq. 2), then stretched from 0 to 1 image by image. Tokens are
    those that the last block's attention takes, since behind it the class token alone may reach the classifier.
    The model is given back as it was.

    Args:
        subject: the model.
        images: `[B, C, H, W]`, normalised.
        classes: `[B]` int64, numbers of the model's outputs.

    Returns:
        `[B, gh, gw]` float32 in [0, 1], on the images' device; 0 everywhere where nothing speaks for the class.

    Raises:
        ValueError: a model whose tokens are unknown, or are normalised only after the attention; a class that is
            no output.
    """
    view = subject.view
    if view is None:
        raise ValueError(f"{subject.label}: {subject.no_view}")
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < view.num_classes:
        raise ValueError(
            f"classes {sorted(set(classes.tolist()))}: {view.name} has outputs 0 to {view.num_classes - 1}"
        )
    layer, prefix = _attention_input(view), view.block_prefix(len(view.blocks) - 1)
    grid = view.grid_size(images.shape[-2:])

    # grad-cam takes seconds to import
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    class OnTokenGrid(GradCAM):
        """Not blown up to the image's size."""

        def get_target_width_height(self, input_tensor: Tensor) -> tuple[int, int]:
            return grid[1], grid[0]

    def channels_first(tokens: Tensor) -> Tensor:
        """`[B, M, D]` or `[B, gh, gw, D]` -> `[B, D, gh, gw]`."""
        tokens = tokens[:, prefix:] if tokens.ndim == 3 else tokens.flatten(1, 2)
        if tokens.shape[1] != grid[0] * grid[1]:
            raise ValueError(f"the last block of {view.name} takes {tokens.shape[1]} tokens, not those of {grid}")
        return tokens.float().transpose(1, 2).unflatten(2, grid)

    targets = [ClassifierOutputTarget(number) for number in classes.tolist()]
    with torch.enable_grad(), view.evaluating(), _parameters_aside(view.model):
        maps: Any = OnTokenGrid(_Logits(view), [layer], reshape_transform=channels_first)
        try:
            # gradients flow to the images, as no parameter takes any
            found = maps(images.detach().clone().requires_grad_(), targets)
        finally:  # its own context manager swallows errors
            maps.activations_and_grads.release()
    return torch.from_numpy(found).to(images.device)


def _attention_input(view: BackboneView) -> nn.Module:
    """The norm whose output the last block's attention takes."""
    block = view.blocks[-1]
    parts = [name for name, _ in block.named_children()]
    name = next((name for name in FIRST_NORMS if name in parts), None)
    # timm's blocks list their parts in the order in which they run
    if name is None or (name == "norm1" and "attn" in parts[: parts.index(name)]):
        raise ValueError(
            f"the last block of {view.name} ({type(block).__name__}) has no norm before its attention, where "
            "activation maps are read"
        )
    return getattr(block, name)


class _Logits(nn.Module):
    """The model, not compiled, as a module that gives logits alone."""

    def __init__(self, view: BackboneView) -> None:
        super().__init__()
        self.model = view.model
        self.logits = view.layout.logits

    def forward(self, images: Tensor) -> Tensor:
        """`[B, C, H, W]` -> `[B, K]`."""
        return self.logits(self.model(images)).float()


@contextmanager
def _parameters_aside(model: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient for a while; each has its own back afterwards."""
    kept = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _, _ in kept:
            parameter.grad = None
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, wanted, grad in kept:
            parameter.requires_grad_(wanted)
            parameter.grad = grad
