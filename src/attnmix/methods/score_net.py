"""TokenMixup's ScoreNet: how difficult a sample is, told at an intermediate block."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.methods.heads import added_linear


class ScoreNet(nn.Module):
    """Guesses the label from the tokens of a block: its error is the sample's difficulty (supplement A.1).

    Args:
        width: of a token.
        num_classes: classes of the labels.
        pool: `class`, the first token; `attention`, a weighted sum of the image tokens, by one number per token
            under a softmax; `mean`, their mean.
        prefix: tokens before the image tokens.
        generator: of the initial weights, on the CPU.
    """

    def __init__(
        self,
        width: int,
        num_classes: int,
        *,
        pool: str,
        prefix: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.prefix = prefix
        linear = partial(added_linear, width, generator=generator)
        self.attend = linear(1) if pool == "attention" else None
        self.classify = linear(num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[B, C]` of tokens `[B, prefix + N, D]` or `[B, gh, gw, D]`."""
        if self.pool == "class":
            return self.classify(tokens[:, 0])
        images = tokens.flatten(1, -2)[:, self.prefix :]
        if self.attend is None:
            return self.classify(images.mean(dim=1))
        weights = self.attend(images)[..., 0].softmax(dim=1)
        return self.classify((weights[..., None].to(images.dtype) * images).sum(dim=1))


def easy_samples(difficulty: Tensor, *, tau: float, scale: float = 1.0) -> Tensor:
    """Which samples are easy enough to be mixed (eq. 3): `[B]` -> `[B]` bool; one without a number is not."""
    return difficulty * scale <= tau


def difficulty(logits: Tensor, label: Tensor) -> Tensor:
    """Each sample's cross-entropy against its soft label (eq. 1): `[B, C]`, `[B, C]` -> `[B]` float32."""
    return F.cross_entropy(logits.float(), label, reduction="none")
