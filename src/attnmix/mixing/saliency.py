"""Saliency of pixels, by no network, and the boxes that are centred on its extremes."""

import importlib
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # of red, green, blue: OpenCV's grey too
SCALE = 64  # pixels of the longer side at which Hou & Zhang take spectral residuals


def grey(pixels: Tensor) -> Tensor:
    """`[B, C, H, W]` -> `[B, H, W]`: the luma of RGB, the mean of any other number of channels."""
    if pixels.shape[1] != 3:
        return pixels.mean(dim=1)
    red, green, blue = pixels.unbind(1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def spectral_residual(images: Tensor) -> Tensor:
    """Energy of what is left of an image when the smooth part of its log spectrum is taken away.

    Hou & Zhang, CVPR 2007, before smoothing: the residual R = L - h * L, with L the log amplitude and h the mean
    over 3 x 3 frequencies (borders repeated, as in the authors' code), then |inverse FFT of exp(R + i phase)|^2.

    Args:
        images: `[B, h, w]` float, grey.

    Returns:
        `[B, h, w]`.
    """
    spectrum = torch.fft.fft2(images)
    amplitude = spectrum.abs()
    # an empty frequency has no logarithm, and its phase is rounding, which differs between devices: it stays empty
    floor = amplitude.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12) * 1e-6
    log = torch.maximum(amplitude, floor).log()
    smooth = F.avg_pool2d(F.pad(log[:, None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[:, 0]
    residual = torch.where(amplitude > floor, (log - smooth).exp(), 0)
    return torch.fft.ifft2(torch.polar(residual, spectrum.angle())).abs().square()


def spectral_residual_saliency(pixels: Tensor) -> Tensor:
    """Spectral residual saliency (Hou & Zhang, CVPR 2007), on the images' device.

    Grey images are shrunk to 64 pixels on their longer side, never enlarged; the Gaussian that smooths the
    energy has a standard deviation of 8 pixels of those 64 (the authors' script: 2.5), and beyond the border
    there is no energy, as in that script: else peaks gather at the border.

    Args:
        pixels: `[B, C, H, W]` float32, RGB.

    Returns:
        `[B, H, W]`, brought back to the images' size.
    """
    size = pixels.shape[-2:]
    shrink = max(1.0, max(size) / SCALE)
    small = tuple(max(1, round(side / shrink)) for side in size)
    image = grey(pixels)[:, None]
    if small != tuple(size):
        image = F.interpolate(image, size=small, mode="bilinear", antialias=True)
    energy = spectral_residual(image[:, 0])
    deviation = 8 * max(small) / SCALE
    rows, columns = (_gaussian(side, deviation, pixels.device) for side in small)
    saliency = rows @ energy @ columns.T
    return F.interpolate(saliency[:, None], size=size, mode="bilinear")[:, 0]


def _gaussian(side: int, deviation: float, device: torch.device) -> Tensor:
    """Weights of each place's neighbours, `[side, side]`; all that a sum of 1 lacks lies beyond the border."""
    place = torch.arange(side, device=device)
    weights = (-((place[:, None] - place) / deviation).square() / 2).exp()
    return weights / (deviation * math.sqrt(2 * math.pi))


def opencv_saliency() -> Any:
    """`cv2.saliency`, of OpenCV's contributed modules.

    Raises:
        ImportError: no OpenCV, or one without them.
    """
    module = importlib.import_module("cv2")
    if not hasattr(module, "saliency"):
        raise ImportError("this OpenCV has no cv2.saliency, a contributed module")
    return module.saliency


def cores_of_ours() -> int:
    """CPU cores for this process: those it may use, shared out among the processes that torchrun started here.

    PyTorch's own number of threads says nothing of it: torchrun sets that to 1.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def fine_grained_saliency(pixels: Tensor) -> Tensor:
    """OpenCV's StaticSaliencyFineGrained (Montabone & Soto, 2010), image by image, on every core of ours.

    Args:
        pixels: `[B, C, H, W]` uint8 on the CPU, RGB, or of another number of channels, whose mean is taken.

    Returns:
        `[B, H, W]` float32 in [0, 1].

    Raises:
        ImportError: as `opencv_saliency`.
    """
    saliency = opencv_saliency()
    if pixels.shape[1] == 3:
        pictures = pixels.flip(1).permute(0, 2, 3, 1).contiguous().numpy()  # OpenCV reads blue, green, red
    else:
        pictures = pixels.float().mean(dim=1).to(torch.uint8).numpy()

    def one(picture: Any) -> Tensor:
        return torch.from_numpy(saliency.StaticSaliencyFineGrained_create().computeSaliency(picture)[1])

    with ThreadPoolExecutor(cores_of_ours()) as pool:  # OpenCV lets go of the interpreter's lock
        return torch.stack(list(pool.map(one, pictures)))


def peak_boxes(
    source_share: Tensor, source_peak: Tensor, target_peak: Tensor, *, image_size: tuple[int, int]
) -> Tensor:
    """Boxes of side ratio sqrt(source_share), centred on a pixel, clipped at the border.

    Where a box is taken from one pixel's surroundings and pasted onto another's, it is clipped at both borders,
    so that it has a source everywhere.

    Args:
        source_share: `[B]`, wished share of the pasted image, in [0, 1], on the CPU; clipping can only lessen it.
        source_peak: `[B, 2]` int64, row and column of the centre in the source.
        target_peak: `[B, 2]` int64, the same in the target, where the box lands.
        image_size: height and width in pixels.

    Returns:
        Boxes `[B, 4]` in the target; height or width is 0 where the wished share is too small for one pixel.
    """
    ratio = source_share.double().sqrt()
    starts, extents = [], []
    for axis, length in enumerate(image_size):
        side = (length * ratio).long().clamp(max=length).to(target_peak.device, non_blocking=True)
        here, there = target_peak[:, axis], source_peak[:, axis]
        before = torch.minimum(side // 2, torch.minimum(here, there))
        after = torch.minimum(side - side // 2, length - torch.maximum(here, there))
        starts.append(here - before)
        extents.append(before + after)
    return torch.stack([*starts, *extents], dim=1)
