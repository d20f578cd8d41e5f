import copy
import math
import sys

import numpy as np
import pytest
import torch

import attnmix
from attnmix.methods import co_mixup
from attnmix.mixing import joint_masks
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.settings import options_for

SIZE = (16, 24)


def make_task(model, **options):
    return attnmix.MixTask(model, attnmix.create_method("co-mixup", num_classes=NUM_CLASSES, **options))


def make_batch(batch=8):
    return torch.randn(batch, 3, *SIZE), torch.arange(batch) % NUM_CLASSES


def slow_pixels(model, images, labels):
    """The norm of each image's own gradient at its pixels, one image at a time, by a copy."""
    model, maps = copy.deepcopy(model).eval(), []
    for image, label in zip(images, labels.tolist(), strict=True):
        pixels = image[None].clone().requires_grad_()
        references.cross_entropy(model(pixels)[0], references.smooth(label, NUM_CLASSES, 0.1)).backward()
        maps.append((pixels.grad[0] ** 2).sum(dim=0).sqrt())
    return torch.stack(maps)


def slow_saliency(model, images, labels):
    """Each block's share of its own image's gradient norm, `[B, 4, 4]`."""
    maps = []
    for norm in slow_pixels(model, images, labels):
        blocks = [[norm[4 * r : 4 * r + 4, 6 * c : 6 * c + 6].sum() for c in range(4)] for r in range(4)]
        maps.append(torch.tensor(blocks) / norm.sum())
    return torch.stack(maps)


def given_problem(monkeypatch, task, images, labels):
    """The mixed batch, and what the optimisation was given in each group."""
    problems = []
    choose = joint_masks.choose_together

    def recorded(cost, levels, partners, **options):
        found = choose(cost, levels, partners, **options)
        problems.append((cost, levels, partners, options, found))
        return found

    monkeypatch.setattr(co_mixup, "choose_together", recorded)
    return task.mix(images, labels), problems


def test_masks_and_partners_are_the_best_for_each_output(make_vit, monkeypatch):
    model, (images, labels) = make_vit(), make_batch()
    task = make_task(model, levels=2, resolve=False, iterations=20, tau=0.0, gamma=0.02, omega=0.1)
    mixed, ((cost, *_, (levels, partners)),) = given_problem(monkeypatch, task, images, labels)
    saliency = slow_saliency(model, images, labels)
    assert np.allclose(cost.saliency, saliency.numpy(), atol=1e-5)
    assert partners.tolist() == mixed.source_index.tolist()
    assert mixed.source_mask[:, ::4, ::6].numpy().tolist() == (levels > 0).tolist()
    # no other partner, and no other block, makes the objective less
    best = cost.total(levels, partners)
    for output in range(8):
        for partner in set(range(8)) - {output}:
            other = partners.copy()
            other[output] = partner
            assert cost.total(levels, other) >= best - 1e-9
        for block in range(16):
            changed = levels.copy()
            changed[output].flat[block] = 1 - changed[output].flat[block]
            assert cost.total(changed, partners) >= best - 1e-9


def test_compatibility_goes_by_windows_of_a_blocks_size(make_vit, monkeypatch):
    model, (images, labels) = make_vit(), make_batch(6)
    task = make_task(model, omega=0.5)
    _, ((cost, *_),) = given_problem(monkeypatch, task, images, labels)
    places = np.array(
        [references.best_window(each, (4, 6), largest=True) for each in slow_pixels(model, images, labels)]
    )
    assert np.allclose(cost.compatible, joint_masks.compatibility(places / SIZE, 0.5), atol=1e-6)


def test_without_other_terms_every_block_is_of_the_more_salient_image(make_vit):
    model, (images, labels) = make_vit(), make_batch()
    mixed = make_task(model, levels=2, beta=0.0, gamma=0.0, eta=0.0).mix(images, labels)
    saliency = slow_saliency(model, images, labels)
    index = mixed.source_index
    assert mixed.source_mask[:, ::4, ::6].equal(saliency[index] > saliency)
    kept = [[torch.maximum(saliency[i], saliency[j]).sum() for j in range(8)] for i in range(8)]
    best = torch.tensor(kept).fill_diagonal_(0).max(dim=1).values
    assert torch.allclose(torch.maximum(saliency, saliency[index]).sum(dim=(1, 2)), best)


def test_outputs_share_the_images_more_evenly_for_diversity(make_vit):
    model, (images, labels) = make_vit(), make_batch(12)

    def most_held(gamma):
        mixed = make_task(model, gamma=gamma).mix(images, labels)
        held = torch.bincount(mixed.source_index, weights=mixed.source_weight.double(), minlength=12)
        return (held + 1 - mixed.source_weight).max()

    assert most_held(0.0) > 2.5
    assert most_held(1.0) < 2


def test_groups_are_dealt_out_evenly(make_vit, monkeypatch):
    images, labels = make_batch(9)
    task = make_task(make_vit(), part=4)
    mixed, problems = given_problem(monkeypatch, task, images, labels)
    assert [len(problem[1]) for problem in problems] == [3, 3, 3]
    assert all((mixed.source_index - torch.arange(9)) % 3 == 0)
    assert all(mixed.source_index != torch.arange(9))


def test_the_only_image_of_a_group_stays_itself(make_vit):
    images, labels = make_batch(3)
    mixed = make_task(make_vit(), part=2).mix(images, labels)
    assert mixed.source_index.tolist() == [2, 1, 0]
    assert mixed.images[1].equal(images[1])
    assert mixed.source_weight[1] == 0


def test_it_starts_from_random_masks_in_a_ring(make_vit, monkeypatch):
    images, labels = make_batch()
    _, ((cost, levels, partners, options, _),) = given_problem(monkeypatch, make_task(make_vit()), images, labels)
    seen, at = [], 0
    for _ in range(8):
        seen.append(at)
        at = partners[at]
    assert sorted(seen) == list(range(8))
    assert set(levels.flatten()) == {0, 1, 2}
    assert options == {"iterations": 4, "resolve": True}
    assert np.exp(-cost.scarcity).sum() == pytest.approx(1, abs=1e-5)


def test_the_prior_is_a_draw_of_dirichlets(make_vit):
    method = make_task(make_vit(), dirichlet_alpha=2.0).method
    drawn = np.concatenate([method._gamma(100) for _ in range(50)])
    assert drawn.mean() == pytest.approx(2, rel=0.05)  # Gamma(2, 1)
    assert drawn.var() == pytest.approx(2, rel=0.1)


def test_large_windows_lie_an_eighth_apart():
    saliency = torch.rand(3, 32, 48)
    places = co_mixup.salient_places(saliency, (16, 24))
    for i in range(3):
        means = {
            (row / 32, column / 48): saliency[i, row : row + 16, column : column + 24].mean().item()
            for row in range(0, 17, 2)
            for column in range(0, 25, 3)
        }
        assert places[i].tolist() == pytest.approx(max(means, key=means.get))


def test_salient_places_are_those_of_the_best_window():
    saliency = torch.rand(3, 6, 8)
    places = co_mixup.salient_places(saliency, (2, 3))
    for i in range(3):
        row, column = references.best_window(saliency[i], (2, 3), largest=True)
        assert places[i].tolist() == pytest.approx([row / 6, column / 8])
    assert co_mixup.salient_places(torch.full((1, 4, 4), torch.nan), (2, 2)).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 2},
        {"levels": 2},
        {"beta": 2.0},
        {"gamma": 0.0},
        {"eta": 1.0},
        {"dirichlet_alpha": 0.3},
        {"tau": 0.3},
        {"threshold": "hard"},
        {"omega": 0.8},
        {"part": 4},
        {"iterations": 1},
        {"resolve": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_changes_the_images(make_vit, options):
    model = make_vit()
    images, labels = make_batch(12)
    one, two = make_task(model, gamma=0.1), make_task(model, **{"gamma": 0.1, **options})
    assert not all(torch.equal(one.mix(images, labels).images, two.mix(images, labels).images) for _ in range(6))


def test_mixup_is_drawn_as_everywhere(make_vit):
    task = make_task(make_vit(), mixup_prob=0.5, mixup_alpha=0.4, mode="elem")
    images, labels = make_batch()
    drawn = [task.mix(images, labels).draw for _ in range(20)]
    blends = [draw for draw in drawn if draw.kind == "blend"]
    assert 4 < len(blends) < 16
    assert task.method.shares == {"keep": 0.0, "blend": 0.5, "paste": 0.5}
    assert blends[0].source_index.tolist() == list(range(7, -1, -1))


def test_it_has_no_pairing():
    with pytest.raises(ValueError, match='no option "pairing"'):
        attnmix.create_method("co-mixup", num_classes=3, pairing="roll")


def test_the_host_waits_once(make_vit, monkeypatch):
    copies = []
    down = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(self.shape) or down(self))
    make_task(make_vit(), part=4).mix(*make_batch())
    assert copies == [(8, 18)]


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_pixels_are_the_two_images_at_default_options(make_vit, batch):
    images, labels = make_batch(batch)
    before = images.clone()
    out = make_task(make_vit(), smoothing=0.0)(images, labels)
    mixed = out["mixed"]
    assert images.equal(before)
    assert torch.allclose(mixed.images, torch.lerp(images, images[mixed.source_index], mixed.source_map[:, None]))
    assert torch.allclose(mixed.source_weight, mixed.source_map.mean(dim=(1, 2)))
    assert out["loss"].isfinite()


def test_an_image_that_is_not_finite_disturbs_no_other(make_vit):
    images, labels = make_batch()
    images[0, 0, 0, 0] = torch.nan
    mixed = make_task(make_vit()).mix(images, labels)
    whole = mixed.images.isfinite().all(dim=1).all(dim=1).all(dim=1)
    held = (torch.arange(8) == 0) | (mixed.source_index == 0)
    assert whole[~held].all()


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_label_policies_compose(make_vit, label):
    out = make_task(make_vit(), label=label)(*make_batch())
    assert out["loss"].isfinite()
    assert not torch.allclose(out["mixed"].source_weight, out["mixed"].source_map.mean(dim=(1, 2)), atol=1e-4)


def test_it_takes_turns_and_serves_tokenmixup(make_vit):
    images, labels = make_batch()
    turns = attnmix.MixTask(make_vit(), attnmix.create_method("co-mixup+cutmix", num_classes=NUM_CLASSES))
    kinds = {type(turns.mix(images, labels).draw).__name__ for _ in range(12)}
    assert kinds == {"PasteMask", "Paste"}
    options = options_for("tokenmixup", make_vit, base="co-mixup")
    task = attnmix.MixTask(make_vit(), attnmix.create_method("tokenmixup", num_classes=NUM_CLASSES, **options))
    out = task(images, labels)
    assert out["loss"].isfinite()
    assert type(out["mixed"].draw).__name__ == "PasteMask"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks is 0, but"),
        ({"levels": 10}, "levels is 10, but a mask has 2"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"gamma": math.nan}, "gamma is nan"),
        ({"eta": -0.1}, "eta is -0.1"),
        ({"tau": -0.1}, "tau is -0.1"),
        ({"dirichlet_alpha": 0.0}, "dirichlet_alpha is 0.0, but Dirichlet"),
        ({"threshold": "soft"}, 'threshold is "soft", but must be one of max, hard'),
        ({"omega": 1.5}, "omega is 1.5"),
        ({"levels": 2.5}, "levels is 2.5, but a mask has 2 .* a whole number"),
        ({"levels": True}, "levels is True, but"),
        ({"part": 1}, "part is 1, but must be a whole number, at least 2"),
        ({"part": 2.5}, "part is 2.5, but must be a whole number"),
        ({"iterations": 0}, "iterations is 0, but must be a whole number, at least 1"),
        ({"iterations": 1.5}, "iterations is 1.5, but must be a whole number"),
        ({"iterations": True}, "iterations is True, but"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("co-mixup", num_classes=3, **options)


def test_a_missing_package_is_named_before_training(make_vit, monkeypatch):
    monkeypatch.setitem(sys.modules, "maxflow", None)
    with pytest.raises(ValueError, match=r'co-mixup cuts graphs by PyMaxflow: pip install "attnmix\[puzzlemix\]"'):
        make_task(make_vit())
