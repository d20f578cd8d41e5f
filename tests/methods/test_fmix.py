import pytest
import torch

import attnmix
from attnmix.mixing import MixSampler
from tests.conftest import NUM_CLASSES


def make_method(name="fmix", **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def make_batch(batch=4):
    return torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES


def edges(mask):
    """How many neighbouring pixels differ."""
    return int((mask[:, 1:] ^ mask[:, :-1]).sum() + (mask[:, :, 1:] ^ mask[:, :, :-1]).sum())


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_masks_have_the_drawn_share_to_the_pixel_and_so_has_the_label(make_vit, mode):
    task = attnmix.MixTask(make_vit(), make_method(mode=mode, cutmix_alpha=2.0, seed=3))
    images, labels = make_batch(8)
    sampler, generator = MixSampler(cutmix_alpha=2.0, mode=mode), torch.Generator().manual_seed(3)
    sampler.kind(generator)
    wished = sampler.spread(sampler.pasted_share(8, generator), 8)
    mixed = task.mix(images, labels)
    share = mixed.source_mask.float().mean(dim=(1, 2))
    assert mixed.source_weight.equal(share)
    assert (share - wished).abs().max() <= 0.5 / (16 * 24) + 1e-6
    different = {tuple(mask.flatten().tolist()) for mask in mixed.source_mask}
    assert len(different) == {"batch": 1, "pair": 4, "elem": 8}[mode]


def test_a_faster_decay_gives_larger_blobs(make_vit):
    images, labels = make_batch()
    counts = []
    for decay in (0.0, 1.0, 3.0):
        task = attnmix.MixTask(make_vit(), make_method(decay_power=decay, mode="elem"))
        counts.append(sum(edges(task.mix(images, labels).source_mask) for _ in range(10)))
    assert counts[0] > 1.5 * counts[1] > 1.5 * 1.5 * counts[2]


@pytest.mark.parametrize("decay", [200.0, 1e6])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_however_fast_the_decay_images_are_mixed(make_vit, decay, spectrum):
    images, labels = make_batch(8)
    method = make_method(decay_power=decay, spectrum=spectrum, mode="elem", cutmix_alpha=50.0)  # about a half each
    mixed = attnmix.MixTask(make_vit(), method).mix(images, labels)
    assert ((mixed.source_weight > 0.2) & (mixed.source_weight < 0.8)).all()


def test_a_soft_border_blends_and_the_label_is_the_masks_mean(make_vit):
    hard = attnmix.MixTask(make_vit(), make_method())
    soft = attnmix.MixTask(make_vit(), make_method(max_soft=0.2))
    images, labels = make_batch()
    one, two = hard.mix(images, labels), soft.mix(images, labels)
    assert one.source_mask is not None
    assert two.source_mask is None
    share = two.source_share
    assert ((share > 0) & (share < 1)).float().mean() > 0.1
    assert torch.allclose(two.source_weight, share.mean(dim=(1, 2)))
    assert torch.allclose(two.source_weight, one.source_weight, atol=1e-5)  # the same draw, softer
    assert torch.allclose(two.images, torch.lerp(images, images.flip(0), share[:, None]))
    assert soft(images, labels)["loss"].isfinite()


def test_the_authors_spectrum_gives_other_masks(make_vit):
    images, labels = make_batch()
    paper, authors = (
        attnmix.MixTask(make_vit(), make_method(spectrum=law)).mix(images, labels).source_mask[0]
        for law in ("complex", "real")
    )
    reflected = authors.flip(0, 1).roll((1, 1), (0, 1))
    assert (authors ^ reflected).float().mean() < 0.02  # rounding may part two equal pixels at the threshold
    assert (paper ^ paper.flip(0, 1).roll((1, 1), (0, 1))).float().mean() > 0.1


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_other_labels_on_its_pixels(make_vit, label):
    images, labels = make_batch()
    for options in ({}, {"max_soft": 0.2}):
        out = attnmix.MixTask(make_vit(), make_method(label=label, **options))(images, labels)
        plain = attnmix.MixTask(make_vit(), make_method(**options))(images, labels)
        assert out["mixed"].images.equal(plain["mixed"].images)
        assert not torch.allclose(out["mixed"].source_weight, plain["mixed"].source_weight, atol=1e-4)


def test_in_turns_with_cutmix_and_under_tokenmixup(make_vit):
    images, labels = make_batch()
    task = attnmix.MixTask(make_vit(), make_method("cutmix+fmix"))
    draws = {type(task(images, labels)["mixed"].draw).__name__ for _ in range(20)}
    assert draws == {"Paste", "PasteMask"}
    task = attnmix.MixTask(make_vit(), make_method("tokenmixup", base="fmix", horizontal=1, vertical=2))
    out = task(images, labels)
    assert type(out["mixed"].draw).__name__ == "PasteMask"
    assert out["loss"].isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay_power": -1.0}, "decay_power is -1.0, but must be finite and at least 0"),
        ({"decay_power": float("inf")}, "decay_power is inf"),
        ({"max_soft": 0.6}, r"max_soft is 0.6, but .* \[0, 0.5\]"),
        ({"spectrum": "white"}, 'spectrum is "white", but must be one of complex, real'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_method(**options)
