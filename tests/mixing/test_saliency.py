"""Saliency of pixels against OpenCV and slow references, and the boxes around its extremes."""

import os
import sys

import cv2
import numpy as np
import pytest
import torch

from attnmix.mixing import saliency as saliency_module
from attnmix.mixing.saliency import (
    cores_of_ours,
    fine_grained_saliency,
    grey,
    opencv_saliency,
    peak_boxes,
    spectral_residual,
    spectral_residual_saliency,
)


def scene(height, width, *, at, size=6, seed=0):
    """A noisy RGB picture `[3, H, W]` of smooth ground with one bright block at a place."""
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))
    picture = 0.3 + 0.05 * noise
    picture[:, at[0] : at[0] + size, at[1] : at[1] + size] = 0.9
    return picture


def residual_energy(image):
    """|F^-1 exp(R + iP)|^2, frequency by frequency."""
    spectrum = np.fft.fft2(image.astype(np.float64))
    log, phase = np.log(np.abs(spectrum)), np.angle(spectrum)
    rows, columns = image.shape
    residual = np.empty_like(log)
    for row in range(rows):
        for column in range(columns):
            near = [
                log[min(max(row + r, 0), rows - 1), min(max(column + c, 0), columns - 1)]
                for r in (-1, 0, 1)
                for c in (-1, 0, 1)
            ]
            residual[row, column] = log[row, column] - sum(near) / 9
    return np.abs(np.fft.ifft2(np.exp(residual) * np.exp(1j * phase))) ** 2


def test_grey_is_luma_of_three_channels_and_the_mean_of_any_other_number():
    pixels = torch.rand(2, 3, 5, 4)
    bytes_ = (pixels[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    wanted = cv2.cvtColor(bytes_, cv2.COLOR_RGB2GRAY)
    assert np.abs(grey(pixels)[0].numpy() * 255 - wanted).max() < 1.5
    for channels in (1, 2, 4):
        pixels = torch.rand(2, channels, 5, 4)
        assert torch.allclose(grey(pixels), pixels.mean(dim=1))


def test_spectral_residual_equals_the_equations():
    images = torch.rand(3, 12, 9)
    energy = spectral_residual(images)
    for image, found in zip(images, energy, strict=True):
        wanted = residual_energy(image.numpy())
        assert np.allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-5 * wanted.max())


def test_the_residuals_energy_is_smoothed_by_a_gaussian():
    pixels = torch.rand(1, 1, 12, 9)
    saliency = spectral_residual_saliency(pixels)[0].numpy()
    energy = residual_energy(pixels[0, 0].numpy())
    deviation = 8 * 12 / 64
    for row, column in ((0, 0), (5, 4), (11, 2)):
        total = 0.0
        for r in range(12):
            for c in range(9):
                weight = np.exp(-((r - row) ** 2 + (c - column) ** 2) / (2 * deviation**2))
                total += weight / (2 * np.pi * deviation**2) * energy[r, c]
        assert saliency[row, column] == pytest.approx(total, rel=1e-3)


def test_spectral_residual_agrees_with_opencvs_on_where_things_stand_out():
    for seed, at in enumerate([(10, 40), (45, 8), (30, 30)]):
        picture = scene(64, 64, at=at, seed=seed)
        image = grey(picture[None])
        wanted = cv2.saliency.StaticSaliencySpectralResidual_create().computeSaliency(
            (image[0].numpy() * 255).astype(np.uint8)
        )[1]
        # theirs smooths less, by 5 x 5 pixels, and the amplitude
        amplitude = spectral_residual(image)[0].sqrt().numpy().astype(np.float64)
        same = cv2.GaussianBlur(amplitude, (5, 5), 8) ** 2
        assert np.corrcoef(same.ravel(), wanted.ravel())[0, 1] > 0.95
        # and the block is where both look
        ours = spectral_residual_saliency(picture[None])[0]
        for saliency in (ours.numpy(), wanted):
            row, column = np.unravel_index(saliency.argmax(), saliency.shape)
            assert abs(row - at[0] - 3) < 8
            assert abs(column - at[1] - 3) < 8


@pytest.mark.parametrize("size", [(256, 128), (100, 300), (16, 24)])
def test_large_images_are_looked_at_small_and_answered_at_their_size(size):
    at = (size[0] // 4, size[1] // 2)
    block = max(size) // 10
    picture = scene(*size, at=at, size=block)
    saliency = spectral_residual_saliency(picture[None])
    assert saliency.shape == (1, *size)
    row, column = divmod(int(saliency.argmax()), size[1])
    assert abs(row - at[0] - block / 2) < max(size) / 8
    assert abs(column - at[1] - block / 2) < max(size) / 8


def test_an_image_of_one_colour_has_a_finite_saliency():
    for value in (0.0, 0.4):
        assert spectral_residual_saliency(torch.full((1, 3, 20, 30), value)).isfinite().all()


@pytest.mark.parametrize("size", [(32, 32), (40, 28)])
def test_fine_grained_is_opencvs_image_by_image(size):
    pictures = torch.stack([scene(*size, at=(4 * i + 2, 20 - 4 * i), seed=i) for i in range(5)])
    bytes_ = (pictures * 255).round().to(torch.uint8)
    found = fine_grained_saliency(bytes_)
    assert found.shape == (5, *size)
    for i, picture in enumerate(bytes_):
        image = cv2.cvtColor(picture.permute(1, 2, 0).contiguous().numpy(), cv2.COLOR_RGB2BGR)
        wanted = cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(image)[1]
        assert np.array_equal(found[i].numpy(), wanted)
    assert len({int(each.argmax()) for each in found}) == 5


@pytest.mark.parametrize(
    ("cores", "processes", "wanted"), [(8, None, 8), (8, "4", 2), (6, "4", 1), (2, "8", 1), (3, "1", 3)]
)
@pytest.mark.parametrize("affinity", [True, False])
def test_every_process_of_torchrun_has_its_share_of_the_cores(monkeypatch, cores, processes, wanted, affinity):
    if affinity:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
    else:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert torch.get_num_threads() == 1  # as under torchrun
    assert cores_of_ours() == wanted


def test_fine_grained_is_the_same_in_any_number_of_threads(monkeypatch):
    pictures = torch.randint(0, 256, (9, 3, 20, 28), dtype=torch.uint8)
    asked, pool, found = [], saliency_module.ThreadPoolExecutor, []
    monkeypatch.setattr(
        saliency_module, "ThreadPoolExecutor", lambda threads: asked.append(threads) or pool(threads)
    )
    for cores in (1, 2, 16):
        monkeypatch.setattr(saliency_module, "cores_of_ours", lambda cores=cores: cores)
        found.append(fine_grained_saliency(pictures))
    assert asked == [1, 2, 16]
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


def test_fine_grained_reads_the_mean_of_other_numbers_of_channels():
    bytes_ = torch.randint(0, 256, (2, 4, 24, 24), dtype=torch.uint8)
    image = bytes_[1].float().mean(dim=0).to(torch.uint8).numpy()
    wanted = cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(image)[1]
    assert np.array_equal(fine_grained_saliency(bytes_)[1].numpy(), wanted)


def test_a_missing_opencv_is_an_import_error(monkeypatch):
    monkeypatch.delattr(cv2, "saliency")
    with pytest.raises(ImportError, match=r"no cv2\.saliency"):
        opencv_saliency()
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError):
        opencv_saliency()


def test_boxes_are_centred_on_the_peak_and_clipped_where_source_or_target_end():
    size = (11, 18)
    generator = torch.Generator().manual_seed(3)
    share = torch.rand(300, generator=generator)
    share[:2] = torch.tensor([0.0, 1.0])
    source, target = ((torch.rand(300, 2, generator=generator) * torch.tensor(size)).long() for _ in range(2))
    boxes = peak_boxes(share, source, target, image_size=size)
    for i in range(300):
        wanted = []
        for axis in (0, 1):
            side = int(size[axis] * float(share[i]) ** 0.5)
            there, here = int(source[i, axis]), int(target[i, axis])
            steps = [
                step
                for step in range(-(side // 2), side - side // 2)
                if 0 <= there + step < size[axis] and 0 <= here + step < size[axis]
            ]
            wanted.append((here + steps[0] if steps else here, len(steps)))
        assert boxes[i].tolist() == [wanted[0][0], wanted[1][0], wanted[0][1], wanted[1][1]]


def test_a_box_in_the_middle_has_the_wished_share():
    centre = torch.tensor([[16, 16]])
    for side in (1, 8, 17, 32):
        box = peak_boxes(torch.tensor([(side / 32) ** 2 + 1e-6]), centre, centre, image_size=(32, 32))
        assert box[0, 2:].tolist() == [side, side]


def test_frequencies_that_an_image_lacks_are_not_made_up_from_rounding():
    flat = torch.full((1, 32, 32), 0.4)
    assert torch.allclose(spectral_residual(flat), spectral_residual(flat)[0, 0, 0].expand(1, 32, 32))
    waves = (0.5 + 0.3 * torch.sin(torch.arange(32) * 2 * torch.pi * 3 / 32)).expand(1, 32, 32)
    energy = spectral_residual(waves)
    assert torch.allclose(
        energy, energy[:, :1].expand_as(energy), rtol=1e-3
    )  # all rows are alike, as in the image
