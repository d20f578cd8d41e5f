"""Masks from noise whose low frequencies are strong: FMix's blobs, of any shape and a wished share."""

import math

import torch
from torch import Tensor


def low_frequency_noise(
    count: int,
    size: tuple[int, int],
    generator: torch.Generator,
    *,
    decay_power: float = 3.0,
    spectrum: str = "complex",
) -> Tensor:
    """Grey images whose spectrum is complex Gaussian noise over frequency to a power, FMix's low-pass filter.

    Frequencies below one period per longer side count as that, so that the mean does not drown all else.

    Args:
        count: how many.
        size: height and width.
        generator: of the noise, on the CPU.
        decay_power: that power; 0 gives white noise.
        spectrum: `complex` (paper); or `real`, the law of the authors' code, which transforms real numbers: images
            that are their own point reflection, and whose frequency decays half as fast from left to right.

    Returns:
        `[count, H, W]` float32 on the CPU; only their order within an image means anything.
    """
    height, width = size
    columns = width // 2 + 1
    across = torch.arange(columns, dtype=torch.float64) / width
    if spectrum == "real":
        across = across[torch.arange(columns) // 2]
    frequency = torch.hypot(torch.fft.fftfreq(height, dtype=torch.float64)[:, None], across)
    frequency = frequency.clamp(min=1 / max(size))
    amplitude = ((frequency / frequency.min()) ** -decay_power).float()  # at most 1, whatever the power
    if spectrum == "real":
        noise = torch.randn(count, height, columns, generator=generator).to(torch.complex64)
    else:
        noise = torch.randn(count, height, columns, generator=generator, dtype=torch.complex64)
        # half a spectrum stands for the whole; columns that are their own mirror image count once in it, not twice
        own = [0, columns - 1] if width % 2 == 0 else [0]
        amplitude[:, own] *= math.sqrt(2)
    return torch.fft.irfft2(noise * amplitude, s=size)


def top_share_masks(noise: Tensor, share: Tensor) -> Tensor:
    """True on the highest pixels of each image, as many as make up the wished share: FMix's mask.

    Pixels that tie with the last of them are in too.

    Args:
        noise: `[n, H, W]` on the CPU.
        share: `[n]` in [0, 1]; rounded to whole pixels.

    Returns:
        `[n, H, W]` bool.
    """
    pixels = noise[0].numel()
    lowest = []
    for row, count in zip(noise.flatten(1), _pixel_counts(share, pixels), strict=True):
        lowest.append(row.kthvalue(pixels - count + 1).values if count else row.new_tensor(math.inf))
    return noise >= torch.stack(lowest)[:, None, None]


def soft_share_masks(noise: Tensor, share: Tensor, *, max_soft: float) -> Tensor:
    """As `top_share_masks`, with a border in which the mask falls from 1 to 0, pixel by pixel in their order.

    The border takes `max_soft` of all pixels on either side of the hard edge, less where a side has no more.
    The mean stays the share, in whole pixels.

    Returns:
        `[n, H, W]` float32 in [0, 1].
    """
    pixels = noise[0].numel()
    count = torch.tensor(_pixel_counts(share, pixels))[:, None]
    soft = torch.minimum(count, pixels - count).clamp(max=int(max_soft * pixels))
    order = noise.flatten(1).argsort(dim=1, descending=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(pixels).expand_as(order))
    place = (rank - (count - soft)).float() / (2 * soft - 1).clamp(min=1)  # 0..1 over the border
    border = torch.where(rank < count + soft, 1 - place.clamp(0, 1), 0.0)
    return torch.where(rank < count - soft, 1.0, border).view_as(noise)


def _pixel_counts(share: Tensor, pixels: int) -> list[int]:
    counts: list[int] = (share.double() * pixels).round().long().tolist()
    return counts
