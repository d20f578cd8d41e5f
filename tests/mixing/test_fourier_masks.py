import math

import numpy as np
import pytest
import torch

from attnmix.mixing.fourier_masks import low_frequency_noise, soft_share_masks, top_share_masks

SIZES = [(6, 8), (7, 9), (9, 6), (1, 5)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def paper_amplitude(size, decay):
    """1 / |frequency|^decay of every Fourier coefficient, one by one; the lowest is one period per longer side."""
    height, width = size
    amplitude = np.empty(size)
    for row in range(height):
        for column in range(width):
            down = min(row, height - row) / height
            across = min(column, width - column) / width
            amplitude[row, column] = max(math.hypot(down, across), 1 / max(size)) ** -decay
    return amplitude


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("decay", [0.0, 1.5, 3.0])
def test_the_spectrum_has_the_papers_power_at_every_frequency(size, decay):
    # Re F^-1(Z / f^decay) with Z complex standard normal: its own transform has power 1 / f^(2 decay) everywhere
    noise = low_frequency_noise(6000, size, generator(), decay_power=decay).double().numpy()
    power = (abs(np.fft.fft2(noise)) ** 2).mean(axis=0) / paper_amplitude(size, decay) ** 2
    assert power == pytest.approx(np.full(size, power.mean()), rel=0.12)


@pytest.mark.parametrize("size", SIZES)
def test_the_authors_noise_is_its_own_point_reflection(size):
    noise = low_frequency_noise(3, size, generator(), spectrum="real")
    assert torch.allclose(noise, noise.flip(1, 2).roll((1, 1), (1, 2)), atol=1e-5 * noise.abs().max().item())
    other = low_frequency_noise(3, size, generator())
    assert not torch.allclose(other, other.flip(1, 2).roll((1, 1), (1, 2)), atol=1e-2 * other.abs().max().item())


def test_the_authors_noise_decays_half_as_fast_from_left_to_right():
    noise = low_frequency_noise(6000, (12, 12), generator(), decay_power=2.0, spectrum="real").double().numpy()
    power = (abs(np.fft.fft2(noise)) ** 2).mean(axis=0)[3]  # the row of frequency 3/12
    wanted = [math.hypot(3 / 12, (column // 2) / 12) ** -4 for column in range(1, 6)]
    assert power[1:6] / power[1] == pytest.approx(np.array(wanted) / wanted[0], rel=0.15)


def test_a_power_that_no_number_holds_leaves_the_lowest_frequency():
    noise = low_frequency_noise(3, (16, 24), generator(), decay_power=1e5)
    assert noise.isfinite().all()
    power = torch.fft.fft2(noise).abs()
    assert (power[:, 0, 1] > 1e-3).all()  # one period per longer side
    power[:, 0, [0, 1, 23]] = 0
    assert power.max() < 1e-4


def test_noise_follows_its_generator_alone():
    torch.manual_seed(0)
    one = low_frequency_noise(2, (5, 6), generator(1))
    torch.manual_seed(1)
    assert one.equal(low_frequency_noise(2, (5, 6), generator(1)))
    assert not one.equal(low_frequency_noise(2, (5, 6), generator(2)))
    assert not one[0].equal(one[1])


def test_a_mask_is_true_on_the_highest_pixels():
    noise = torch.randn(5, 6, 7, generator=generator())
    share = torch.tensor([0.0, 0.21, 0.5, 0.999, 1.0])
    masks = top_share_masks(noise, share)
    for mask, grey, wished in zip(masks, noise, share.tolist(), strict=True):
        best = sorted(((float(grey[r, c]), r, c) for r in range(6) for c in range(7)), reverse=True)
        wanted = torch.zeros(6, 7, dtype=torch.bool)
        for _, row, column in best[: round(wished * 42)]:
            wanted[row, column] = True
        assert mask.equal(wanted)


@pytest.mark.parametrize("max_soft", [0.05, 0.2, 0.5])
def test_a_soft_mask_falls_pixel_by_pixel_and_keeps_the_share(max_soft):
    noise = torch.randn(5, 6, 7, generator=generator())
    share = torch.tensor([0.0, 0.1, 0.5, 0.8, 1.0])
    masks = soft_share_masks(noise, share, max_soft=max_soft)
    for mask, grey, wished in zip(masks, noise, share.tolist(), strict=True):
        count = round(wished * 42)
        soft = min(int(max_soft * 42), count, 42 - count)
        values = [1.0] * (count - soft) + list(np.linspace(1, 0, 2 * soft)) + [0.0] * (42 - count - soft)
        order = grey.flatten().argsort(descending=True)
        assert mask.flatten()[order].numpy() == pytest.approx(np.array(values), abs=1e-6)
        assert mask.mean().item() == pytest.approx(count / 42, abs=1e-6)


def test_no_border_is_the_hard_mask():
    noise, share = torch.randn(3, 8, 8, generator=generator()), torch.tensor([0.2, 0.5, 1.0])
    assert soft_share_masks(noise, share, max_soft=0.0).equal(top_share_masks(noise, share).float())
