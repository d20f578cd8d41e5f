import numpy as np
import pytest
import torch

from attnmix.evaluation.mixed_pictures import mixed_pictures
from attnmix.evaluation.pasting import pasting_method
from attnmix.methods import create_method
from attnmix.methods.pasting import Pasting
from attnmix.mixing.masks import PasteMask
from tests.conftest import tiny_vit

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def pictures_by(method, *, masks=None, model=None):
    pixels = torch.rand(4, 3, 16, 24, generator=torch.Generator().manual_seed(2))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    rows = mixed_pictures(
        tiny_vit() if model is None else model,
        method,
        (pixels - mean) / std,
        torch.arange(4),
        name="ours",
        classes=list("abcd"),
        masks=masks,
        mean=MEAN,
        std=STD,
    )
    return rows, pixels.permute(0, 2, 3, 1).numpy()


def test_pictures_hold_what_was_pasted_and_what_followed():
    masks = torch.rand(4, 16, 24, generator=torch.Generator().manual_seed(3)) > 0.5
    rows, pixels = pictures_by(pasting_method("transmix", num_classes=5, seed=1), masks=masks)
    assert len(rows) == 4
    for i, row in enumerate(rows):
        source = (i - 1) % 4  # partners are rolled
        assert (row.method, row.target_label, row.source_label) == ("ours", "abcd"[i], "abcd"[source])
        wanted, inside = pixels[i].copy(), row.pasted
        wanted[inside] = pixels[source][inside]
        np.testing.assert_allclose(row.mixed, wanted, atol=1e-5)
        np.testing.assert_allclose(row.source, pixels[source], atol=1e-5)
        np.testing.assert_allclose(row.target, pixels[i], atol=1e-5)
        assert row.weights["area"] == pytest.approx(inside.mean())
        ours, theirs = int(masks[source][inside].sum()), int(masks[i].sum() - masks[i][inside].sum())
        assert row.weights["visible"] == pytest.approx(ours / (ours + theirs))
        # attention's share, token by token of 4x4 pixels
        covered = np.zeros((16, 24))
        covered[inside] = 1
        share = sum(
            row.attention[y, x] * covered[4 * y : 4 * y + 4, 4 * x : 4 * x + 4].mean()
            for y in range(4)
            for x in range(6)
        )
        assert row.weights["attention"] == pytest.approx(share / row.attention.sum(), abs=1e-5)
        assert list(row.weights) == ["label", "area", "attention", "visible"]
    assert any(row.weights["label"] != row.weights["area"] for row in rows)


def test_what_is_visible_is_unknown_without_both_masks():
    method = pasting_method("cutmix", num_classes=5)
    assert all(row.weights["visible"] is None for row in pictures_by(method)[0])
    masks = torch.ones(4, 16, 24, dtype=torch.bool)
    masks[2] = False
    rows, _ = pictures_by(method, masks=masks)
    assert [row.weights["visible"] is None for row in rows] == [False, False, True, True]


def test_a_blend_has_nothing_pasted():
    rows, _ = pictures_by(create_method("mixup", num_classes=5))
    assert all(row.pasted is None and list(row.weights) == ["label"] for row in rows)


class Softly(Pasting):
    """Pastes more of the source the further down."""

    def paste(self, view, images, labels):
        batch, _, height, width = images.shape
        mask = torch.linspace(0, 1, height)[:, None].expand(batch, height, width)
        return PasteMask(self.partners(images), mask)


def test_a_soft_mask_has_shares_and_an_outline_where_the_source_is_most():
    rows, _ = pictures_by(Softly(num_classes=5, pairing="roll"))
    for row in rows:
        assert not row.pasted[:8].any()
        assert row.pasted[8:].all()
        assert row.weights["area"] == pytest.approx(0.5)
        share = (row.attention * np.linspace(0, 1, 16).reshape(4, 4).mean(axis=1)[:, None]).sum()
        assert row.weights["attention"] == pytest.approx(share / row.attention.sum(), abs=1e-5)


def test_a_blend_of_hidden_states_is_told():
    rows, pixels = pictures_by(create_method("manifold-mixup", num_classes=5, layers=[1]))
    for row, image in zip(rows, pixels, strict=True):
        assert row.inside
        assert row.pasted is None
        np.testing.assert_allclose(row.mixed, image, atol=1e-5)
    rows, _ = pictures_by(create_method("manifold-mixup", num_classes=5, layers=[0]))
    assert not any(row.inside for row in rows)


def test_the_model_is_given_back():
    model = tiny_vit(proj_drop_rate=0.5).train()
    first, _ = pictures_by(pasting_method("smmix", num_classes=5), model=model)
    again, _ = pictures_by(pasting_method("smmix", num_classes=5), model=model)
    assert all(np.array_equal(a.attention, b.attention) for a, b in zip(first, again, strict=True))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_the_method_cannot_work_on():
    model, method = tiny_vit(class_token=False, global_pool="avg"), pasting_method("transmix", num_classes=5)
    with pytest.raises(ValueError, match='use attention="image"'):
        pictures_by(method, model=model)
