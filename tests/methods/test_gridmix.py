import pytest
import torch

import attnmix
from attnmix.methods.gridmix import local_loss
from attnmix.mixing import MixSampler
from attnmix.mixing.grid_masks import cell_means
from tests import references
from tests.conftest import NUM_CLASSES


def make_method(name="gridmix", **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def make_batch(batch=4, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def reference_local_loss(classify, tokens, cells, targets, partners, size):
    """Every cell of every image on its own: the mean over its pixels of their tokens, against its own label."""
    rows, columns = cells.shape[1:]
    height, width = size
    patch = height // tokens.shape[1], width // tokens.shape[2]
    losses = []
    for image in range(len(tokens)):
        for i in range(rows):
            for j in range(columns):
                inside = [
                    tokens[image, row // patch[0], column // patch[1]]
                    for row in range(i * height // rows, (i + 1) * height // rows)
                    for column in range(j * width // columns, (j + 1) * width // columns)
                ]
                logits = classify(torch.stack(inside).mean(dim=0)[None])[0]
                whose = partners[image] if cells[image, i, j] else image
                losses.append(references.cross_entropy(logits, targets[whose]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("model", [{}, {"class_token": False, "global_pool": "avg"}])
@pytest.mark.parametrize("grid", [(2, 3), (3, 4), 4])
@pytest.mark.parametrize("local_head", [True, False])
def test_losses_equal_the_reference(make_vit, model, grid, local_head):
    vit = make_vit(**model).eval()
    method = make_method(grid=grid, local_head=local_head, local_weight=0.5, mode="elem")
    task = attnmix.MixTask(vit, method)
    images, labels = make_batch()
    out = task(images, labels)
    mixed = out["mixed"]
    tokens = vit.forward_features(mixed.images)[:, vit.num_prefix_tokens :].unflatten(1, (4, 6))
    targets = torch.stack([references.smooth(label, NUM_CLASSES, 0.1) for label in labels.tolist()])
    classify = method.local_head if local_head else (lambda token: vit.head(vit.fc_norm(token)))
    local = reference_local_loss(classify, tokens, mixed.draw.cells, targets, [3, 2, 1, 0], (16, 24))
    assert torch.allclose(out["losses"]["local"], 0.5 * local, atol=1e-5)
    logits = vit(mixed.images)
    weight = mixed.source_mask.float().mean(dim=(1, 2))[:, None]
    wanted = weight * targets.flip(0) + (1 - weight) * targets
    assert torch.allclose(out["target"], wanted, atol=1e-6)
    whole = torch.stack([references.cross_entropy(logits[i], wanted[i]) for i in range(4)]).mean() + 0.5 * local
    assert torch.allclose(out["loss"], whole, atol=1e-5)
    references.assert_same_gradients(out["loss"], whole, vit)


def test_all_cells_of_one_image_are_an_ordinary_mean_against_its_label():
    tokens, targets = torch.randn(2, 4, 6, 8), torch.eye(2)
    cells = torch.zeros(2, 1, 1, dtype=torch.bool)
    head = torch.nn.Linear(8, 2)
    ours = local_loss(head, tokens, cells, targets, torch.tensor([1, 0]), image_size=(16, 24))
    wanted = torch.nn.functional.cross_entropy(head(tokens.mean(dim=(1, 2))), targets)
    assert torch.allclose(ours, wanted, atol=1e-6)
    swapped = local_loss(head, tokens, ~cells, targets, torch.tensor([1, 0]), image_size=(16, 24))
    assert torch.allclose(
        swapped, torch.nn.functional.cross_entropy(head(tokens.mean(dim=(1, 2))), targets.flip(0))
    )


def test_without_the_local_loss_it_is_a_pasting_like_any_other(make_vit):
    images, labels = make_batch()
    method = make_method(local_weight=0)
    out = attnmix.MixTask(make_vit(), method)(images, labels)
    full = attnmix.MixTask(make_vit(), make_method())(images, labels)
    assert list(out["losses"]) == ["classification"]
    assert list(full["losses"]) == ["classification", "local"]
    assert not list(method.parameters())
    assert out["mixed"].images.equal(full["mixed"].images)
    assert torch.allclose(out["losses"]["classification"], full["losses"]["classification"])


def test_the_local_head_is_trained_and_the_same_for_a_seed(make_vit):
    images, labels = make_batch()
    heads = []
    for seed in (0, 0, 1):
        method = make_method(seed=seed)
        attnmix.MixTask(make_vit(), method)(images, labels)["loss"].backward()
        assert method.local_head.weight.grad.abs().sum() > 0
        heads.append(method.local_head.weight)
    assert heads[0].equal(heads[1])
    assert not heads[0].equal(heads[2])


@pytest.mark.parametrize(("grid", "shape"), [(2, (2, 2)), ((2, 3), (2, 3)), ([4, 6], (4, 6))])
def test_grid_says_how_many_cells(make_vit, grid, shape):
    images, labels = make_batch()
    mixed = attnmix.MixTask(make_vit(), make_method(grid=grid)).mix(images, labels)
    assert mixed.draw.cells.shape == (4, *shape)
    corners = mixed.source_mask[:, :: 16 // shape[0], :: 24 // shape[1]]
    assert corners.equal(mixed.draw.cells)


def test_cells_of_unequal_size_have_the_exact_share(make_vit):
    images, labels = make_batch(size=(20, 28))
    task = attnmix.MixTask(make_vit(img_size=(20, 28)), make_method(grid=(3, 5), mode="elem"))
    mixed = task(images, labels)["mixed"]
    assert mixed.source_weight.tolist() == pytest.approx([int(m.sum()) / 560 for m in mixed.source_mask])


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_mode_says_how_many_draws_of_cells(make_vit, mode):
    images, labels = make_batch(8)
    cells = attnmix.MixTask(make_vit(), make_method(mode=mode)).mix(images, labels).draw.cells
    assert len(cells.flatten(1).unique(dim=0)) == {"batch": 1, "pair": 4, "elem": 8}[mode]


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_cells_make_up_the_drawn_share(make_vit, mode):
    images, labels = make_batch(8)
    sampler, generator = MixSampler(cutmix_alpha=2.0, mode=mode), torch.Generator().manual_seed(3)
    sampler.kind(generator)
    wished = sampler.spread(sampler.pasted_share(8, generator), 8)
    method = make_method(mode=mode, cutmix_alpha=2.0, seed=3)
    cells = attnmix.MixTask(make_vit(), method).mix(images, labels).draw.cells
    assert cells.sum(dim=(1, 2)).tolist() == [round(16 * share) for share in wished.tolist()]


def test_tokens_in_half_precision_are_averaged_in_single(make_vit):
    tokens, cells = torch.randn(2, 4, 6, 8, dtype=torch.bfloat16), torch.zeros(2, 3, 5, dtype=torch.bool)
    seen = []

    def classify(means):
        seen.append(means)
        return means[:, :2]

    local_loss(classify, tokens, cells, torch.eye(2), torch.tensor([1, 0]), image_size=(16, 24))
    exact = cell_means(tokens.double(), (3, 5), image_size=(16, 24)).flatten(0, 2)
    assert seen[0].dtype == torch.bfloat16
    assert (seen[0] - exact.bfloat16()).count_nonzero() <= 2  # of 240: where single precision rounds a tie


def test_count_keeps_to_the_share_and_bernoulli_only_on_average(make_vit):
    images, labels = make_batch(64)
    spread = {}
    for law in ("count", "bernoulli"):
        method = make_method(cells=law, cutmix_alpha=1e4, mode="elem", local_weight=0)  # a share of one half
        spread[law] = attnmix.MixTask(make_vit(), method).mix(images, labels).source_weight
    assert spread["count"].unique().tolist() == [0.5]
    assert spread["bernoulli"].mean().item() == pytest.approx(0.5, abs=0.06)
    assert spread["bernoulli"].std() > 0.08


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_other_labels_on_its_pixels(make_vit, label):
    images, labels = make_batch()
    out = attnmix.MixTask(make_vit(), make_method(label=label))(images, labels)
    plain = attnmix.MixTask(make_vit(), make_method())(images, labels)
    assert out["mixed"].images.equal(plain["mixed"].images)
    assert torch.allclose(out["losses"]["local"], plain["losses"]["local"], atol=1e-5)
    assert not torch.allclose(out["mixed"].source_weight, plain["mixed"].source_weight, atol=1e-4)


def test_in_turns_with_cutmix_and_under_tokenmixup(make_vit):
    images, labels = make_batch()
    task = attnmix.MixTask(make_vit(), make_method("cutmix+gridmix"))
    steps = [task(images, labels) for _ in range(20)]
    assert {(type(out["mixed"].draw).__name__, "local" in out["losses"]) for out in steps} == {
        ("Paste", False),
        ("PasteCells", True),
    }
    task = attnmix.MixTask(make_vit(), make_method("tokenmixup", base="gridmix", horizontal=1, vertical=2))
    out = task(images, labels)
    assert type(out["mixed"].draw).__name__ == "PasteCells"
    assert out["loss"].isfinite()


def test_blended_steps_have_no_local_loss(make_vit):
    images, labels = make_batch()
    out = attnmix.MixTask(make_vit(), make_method(mixup_prob=1.0))(images, labels)
    assert list(out["losses"]) == ["classification"]


def test_a_grid_finer_than_the_tokens_is_refused_with_a_way_out(make_vit):
    images, labels = make_batch()
    message = r"grid is \(8, 8\), but the model has 4 x 6 final tokens.*local_weight=0"
    with pytest.raises(ValueError, match=message):
        attnmix.MixTask(make_vit(), make_method(grid=8))
    dynamic = attnmix.MixTask(make_vit(dynamic_img_size=True), make_method(grid=8))  # takes larger images too
    with pytest.raises(ValueError, match=message):
        dynamic(images, labels)
    assert dynamic(*make_batch(size=(32, 48)))["loss"].isfinite()
    assert attnmix.MixTask(make_vit(), make_method(grid=8, local_weight=0))(images, labels)["loss"].isfinite()
    with pytest.raises(ValueError, match="a grid of 17 cells does not fit a side of 16 pixels"):
        attnmix.MixTask(make_vit(), make_method(grid=17, local_weight=0))(images, labels)


def test_a_model_that_drops_patches_is_refused_where_cells_are_classified(make_vit):
    with pytest.raises(ValueError, match="drops 50% of its patches"):
        attnmix.MixTask(make_vit(patch_drop_rate=0.5), make_method())
    attnmix.MixTask(make_vit(patch_drop_rate=0.5), make_method(local_weight=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 0}, "grid is 0, but must be rows and columns of cells"),
        ({"grid": (2, 3, 4)}, r"grid is \(2, 3, 4\)"),
        ({"grid": (2.5, 2)}, r"grid is \(2.5, 2\)"),
        ({"grid": 2.5}, "grid is 2.5, but must be rows and columns of cells"),
        ({"grid": True}, "grid is True, but"),
        ({"grid": (True, 2)}, r"grid is \(True, 2\), but"),
        ({"cells": "all"}, 'cells is "all", but must be one of count, bernoulli'),
        ({"local_weight": -1}, "local_weight is -1, but must be finite and at least 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_method(**options)
