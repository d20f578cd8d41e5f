"""Slow references, written from the equations in plain loops. Nothing here shares code with the package."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def unfused_attention(model: nn.Module, images: Tensor) -> list[Tensor]:
    """softmax(QK^T) `[B, H, M, M]` of each block of a copy with fusion off, read by ordinary hooks."""
    caught: list[Tensor] = []
    fused = [(module, module.fused_attn) for module in model.modules() if hasattr(module, "fused_attn")]
    hooks = [
        block.attn.attn_drop.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].detach()))
        for block in model.blocks
    ]
    try:
        for module, _ in fused:
            module.fused_attn = False
        with torch.no_grad():
            model(images)
    finally:
        for module, flag in fused:
            module.fused_attn = flag
        for hook in hooks:
            hook.remove()
    return caught


def class_attention(model: nn.Module, images: Tensor, *, block: int = -1) -> Tensor:
    """Head mean of the class row over the image columns, scaled to sum 1."""
    row = unfused_attention(model, images)[block].mean(dim=1)[:, 0, model.num_prefix_tokens :]
    return row / row.sum(dim=1, keepdim=True)


def image_attention(model: nn.Module, images: Tensor, *, block: int = -1) -> Tensor:
    """SMMix eq. 6: mean over heads and image-token queries, image columns."""
    prefix = model.num_prefix_tokens
    return unfused_attention(model, images)[block].mean(dim=1)[:, prefix:, prefix:].mean(dim=1)


def smooth(label: int, num_classes: int, smoothing: float) -> Tensor:
    row = torch.full((num_classes,), smoothing / num_classes)
    row[label] += 1 - smoothing
    return row


def assert_same_gradients(loss: Tensor, wanted: Tensor, model: nn.Module) -> None:
    """Both losses have the same gradient in every parameter of the model, within 1e-4."""
    parameters = list(model.parameters())
    ours = torch.autograd.grad(loss, parameters, retain_graph=True)
    for one, two in zip(ours, torch.autograd.grad(wanted, parameters), strict=True):
        assert torch.allclose(one, two, atol=1e-4)


def transmix_target(
    model: nn.Module,
    mixed_images: Tensor,
    mask: Tensor,
    labels: Sequence[int],
    partners: Sequence[int],
    *,
    num_classes: int,
    smoothing: float,
    attention_share: float,
    grid: tuple[int, int],
    of_images: bool,
) -> Tensor:
    """TransMix's labels, sample by sample and token by token; by image attention where `of_images`."""
    attention = image_attention(model, mixed_images) if of_images else class_attention(model, mixed_images)
    attention = attention / attention.sum(dim=1, keepdim=True)
    height, width = mask.shape[1:]
    rows = []
    for i, label in enumerate(labels):
        on_source, area = 0.0, 0.0
        for row in range(grid[0]):
            for column in range(grid[1]):
                inside = bool(mask[i, row * height // grid[0], column * width // grid[1]])
                on_source += float(attention[i, row * grid[1] + column]) * inside
        for row in range(height):
            for column in range(width):
                area += bool(mask[i, row, column]) / (height * width)
        weight = attention_share * on_source + (1 - attention_share) * area
        source = smooth(labels[partners[i]], num_classes, smoothing)
        rows.append(weight * source + (1 - weight) * smooth(label, num_classes, smoothing))
    return torch.stack(rows)


def best_window(score: Tensor, size: tuple[int, int], *, largest: bool) -> tuple[int, int]:
    """Top left token of the window with the largest (smallest) sum; the first on ties."""
    best, place = None, (0, 0)
    for top in range(score.shape[0] - size[0] + 1):
        for left in range(score.shape[1] - size[1] + 1):
            total = float(score[top : top + size[0], left : left + size[1]].double().sum())
            if best is None or (total > best + 1e-7 if largest else total < best - 1e-7):
                best, place = total, (top, left)
    return place


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * (logits - logits.logsumexp(dim=0))).sum()


def tl_align_target(
    model: nn.Module,
    mixed_images: Tensor,
    mask: Tensor,
    labels: Sequence[int],
    partners: Sequence[int],
    *,
    num_classes: int,
    smoothing: float,
    residual: bool,
    patch: int,
) -> Tensor:
    """TL-Align's labels: a whole distribution per token, carried through every block, sample by sample."""
    attentions = unfused_attention(model, mixed_images)
    prefix = model.num_prefix_tokens
    rows = []
    for i, label in enumerate(labels):
        source, target = smooth(labels[partners[i]], num_classes, smoothing), smooth(label, num_classes, smoothing)
        area = float(mask[i].double().mean())
        tokens = [area * source + (1 - area) * target] * prefix
        for top in range(0, mask.shape[1], patch):
            for left in range(0, mask.shape[2], patch):
                share = float(mask[i, top : top + patch, left : left + patch].double().mean())
                tokens.append(share * source + (1 - share) * target)
        matrix = torch.stack(tokens)  # [M, C]
        for attention in attentions:
            mixed = torch.stack([head[:, :] @ matrix for head in attention[i]]).mean(dim=0)
            matrix = (matrix + mixed) / 2 if residual else mixed
        averaged = model.global_pool == "avg"
        rows.append(matrix[prefix:].mean(dim=0) if averaged else matrix[0])
    return torch.stack(rows)
