import numpy as np
import pytest
import torch

from attnmix.commands.looking import mixed_pairs, pair_sources
from attnmix.commands.method_specs import parse_methods
from attnmix.methods import METHODS
from attnmix.methods.cutmix import CutMix
from tests.conftest import tiny_vit

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


@pytest.fixture(scope="module")
def pixels():
    return torch.rand(4, 3, 16, 24, generator=torch.Generator().manual_seed(2))


def pairs_by(typed, pixels, model=None):
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    (spec,) = parse_methods(typed)
    return mixed_pairs(
        tiny_vit() if model is None else model,
        spec,
        (pixels - mean) / std,
        torch.arange(4),
        num_classes=5,
        mean=MEAN,
        std=STD,
    )


def shown(image):
    return image.permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    "typed", ["cutmix", "transmix", "cutmix:pairing=shuffle", "cutmix:mode=pair", "mixup+cutmix"]
)
def test_every_method_gets_the_same_pairs(pixels, typed):
    assert pair_sources(4) == [3, 0, 1, 2]
    found = pairs_by(typed, pixels)
    for i, (pair, source) in enumerate(zip(found, pair_sources(4), strict=True)):
        wanted = np.where(pair.pasted[..., None], shown(pixels[source]), shown(pixels[i]))
        np.testing.assert_allclose(pair.mixed, wanted, atol=1e-5)
        assert pair.partner is None
    assert len({pair.pasted.tobytes() for pair in found}) == 4  # each image its own box
    if "transmix" not in typed:
        assert [pair.source_weight for pair in found] == pytest.approx([pair.pasted.mean() for pair in found])


def test_transmix_weighs_as_in_its_forward(pixels):
    area, attention = (pairs_by(typed, pixels) for typed in ("cutmix", "transmix"))
    assert all(np.array_equal(a.mixed, b.mixed) for a, b in zip(area, attention, strict=True))
    assert [pair.source_weight for pair in area] != pytest.approx([pair.source_weight for pair in attention])


def test_a_blend_is_of_the_same_pairs_and_has_no_outline(pixels):
    for i, (pair, source) in enumerate(zip(pairs_by("mixup", pixels), pair_sources(4), strict=True)):
        wanted = torch.lerp(pixels[i], pixels[source], pair.source_weight)
        np.testing.assert_allclose(pair.mixed, shown(wanted), atol=1e-5)
        assert pair.pasted is None


def test_a_blend_of_hidden_states_is_told(pixels):
    for image, pair in zip(pixels, pairs_by("manifold-mixup:layers=[1]", pixels), strict=True):
        np.testing.assert_allclose(pair.mixed, shown(image), atol=1e-5)
        assert pair.inside
    assert not any(pair.inside for pair in pairs_by("mixup", pixels))


def test_unmixed_images_stay_and_name_no_partner(pixels):
    for image, pair in zip(pixels, pairs_by("none", pixels), strict=True):
        np.testing.assert_allclose(pair.mixed, shown(image), atol=1e-5)
        assert (pair.source_weight, pair.pasted, pair.partner) == (0, None, None)


class Own(CutMix):
    """CutMix by a pairing of its own, which is no option."""

    def __init__(self, *, num_classes, prob=1.0, mixup_prob=0.0, mode="batch", seed=0):
        options = {"prob": prob, "mixup_prob": mixup_prob, "mode": mode, "seed": seed}
        super().__init__(num_classes=num_classes, pairing="flip", **options)


def test_a_partner_of_the_methods_own_choice_is_told(pixels, monkeypatch):
    monkeypatch.setitem(METHODS, "own", Own)
    assert [pair.partner for pair in pairs_by("own", pixels)] == [None, 2, None, 0]


def test_the_model_is_given_back(pixels):
    model = tiny_vit(proj_drop_rate=0.5).train()
    first, again = (pairs_by("smmix", pixels, model) for _ in range(2))
    assert all(np.array_equal(a.mixed, b.mixed) for a, b in zip(first, again, strict=True))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
