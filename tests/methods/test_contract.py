"""What every mixer must keep, whatever it is (METHODS, "What a mixer must always keep")."""

import copy

import pytest
import torch

import attnmix
from tests.conftest import NUM_CLASSES
from tests.methods.settings import NAMES, has_option, options_for

MIXING = [name for name in NAMES if name != "none"]
OWN_LABELS = [name for name, kind in attnmix.METHODS.items() if kind.own_labels]
MODELS = {
    "class token": {},
    "square grid": {"img_size": 16},
    "no class token": {"class_token": False, "global_pool": "avg"},
}


def make_task(make_vit, name, *, model="class token", **options):
    def make(**other):
        return make_vit(**MODELS[model], **other)

    options = options_for(name, make, class_token=model != "no class token", **options)
    return attnmix.MixTask(make(), attnmix.create_method(name, num_classes=NUM_CLASSES, **options))


def make_batch(task, batch=4):
    images = torch.randn(batch, 3, *task.view.model.patch_embed.img_size)
    return images, torch.arange(batch) % NUM_CLASSES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_step_returns_what_it_promises(make_vit, name, model, batch):
    task = make_task(make_vit, name, model=model, smoothing=0.0)
    images, labels = make_batch(task, batch)
    before = images.clone()
    out = task(images, labels)
    mixed = out["mixed"]
    assert images.equal(before)
    assert mixed.images.shape == images.shape
    assert out["output"].shape == out["target"].shape == (batch, NUM_CLASSES)
    assert out["target"].dtype == mixed.source_weight.dtype == torch.float32
    assert torch.allclose(out["target"].sum(dim=1), torch.ones(batch), atol=1e-6)
    assert torch.allclose(sum(out["losses"].values()), out["loss"])
    assert out["loss"].isfinite()
    out["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.view.model.parameters())
    if name == "tokenmixup":  # mixes the labels of two mixed images once more
        assert batch == 1 or out["stats"]["mixed_samples"] > 0
        return
    if task.method.own_labels:
        return
    # only the two images' classes, each with its weight
    for i in range(batch):
        wanted = torch.zeros(NUM_CLASSES)
        wanted[labels[i]] += 1 - mixed.source_weight[i]
        wanted[labels[mixed.source_index[i]]] += mixed.source_weight[i]
        assert torch.allclose(out["target"][i], wanted, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if has_option(name, "mixup_prob")])
def test_every_pixel_comes_from_the_two_images_as_the_mask_says(make_vit, name):
    task = make_task(make_vit, name)
    images, labels = make_batch(task)
    # image i holds i everywhere, so a pixel tells whose it is
    images = torch.arange(4.0)[:, None, None, None].expand(4, 3, 16, 24).contiguous()
    for _ in range(20):
        mixed = task.mix(images, labels)
        assert (mixed.source_mask is None) == (mixed.source_share is not None)
        share = mixed.source_map[:, None]
        assert torch.allclose(mixed.images, torch.lerp(images, images[mixed.source_index], share), atol=1e-5)
        assert 0 <= share.min() <= share.max() <= 1
        if mixed.source_mask is not None:
            owner = torch.where(
                mixed.source_mask, mixed.source_index[:, None, None], torch.arange(4)[:, None, None]
            )
            assert torch.allclose(mixed.images, owner[:, None].expand_as(mixed.images).float(), atol=1e-5)
        if not task.method.own_weight:
            assert torch.allclose(mixed.source_weight, mixed.source_map.mean(dim=(1, 2)), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cutout"])  # which mixes nobody with anybody
def test_images_that_are_their_own_partner_stay_themselves(make_vit, name):
    task = make_task(make_vit, name)
    images, labels = make_batch(task, 3)
    for _ in range(10):
        mixed = task.mix(images, labels)
        own = mixed.source_index == torch.arange(3)
        assert own[1] or not has_option(name, "pairing")
        assert mixed.images[own].equal(images[own])
        single = task.mix(images[:1], labels[:1])
        assert single.images.equal(images[:1])


@pytest.mark.parametrize("name", [name for name, kind in attnmix.METHODS.items() if not kind.moves_content])
def test_a_batch_of_identical_images_comes_back_unchanged(make_vit, name):
    # where content moves from one place to another, only an image's own self is left alone
    task = make_task(make_vit, name)
    images, labels = make_batch(task, 1)
    images, labels = images.expand(4, -1, -1, -1), labels.expand(4)
    for _ in range(10):
        out = task(images, labels)
        assert out["mixed"].images.equal(images)
        if name not in OWN_LABELS:
            assert torch.allclose(out["target"], task.method.targets(labels), atol=1e-6)


@pytest.mark.parametrize("name", MIXING)
def test_results_depend_on_the_seed_alone(make_vit, name):
    def run(seed, global_seed):
        task = make_task(make_vit, name, seed=seed)
        torch.manual_seed(0)
        images, labels = make_batch(task)
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        steps = [task(images, labels) for _ in range(5)]
        assert torch.get_rng_state().equal(state)  # nothing is drawn from the global generator
        return torch.stack([step["mixed"].images for step in steps]), torch.stack(
            [step["target"] for step in steps]
        )

    first, again, other = run(0, 0), run(0, 1), run(1, 0)
    assert all(one.equal(two) for one, two in zip(first, again, strict=True))
    assert not all(one.equal(two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("name", MIXING)
def test_probability_zero_is_the_plain_model(make_vit, name):
    plain, task = make_task(make_vit, "none"), make_task(make_vit, name, prob=0.0)
    images, labels = make_batch(task)
    for _ in range(5):
        out, wanted = task(images, labels), plain(images, labels)
        assert out["mixed"].images is images
        assert out["output"].equal(wanted["output"])
        if name not in OWN_LABELS:  # a teacher's hold for images that are not mixed too
            assert out["loss"].equal(wanted["loss"])
            assert out["target"].equal(wanted["target"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_a_finite_loss_exact_targets_and_every_gradient(make_vit, name, dtype):
    task, exact = make_task(make_vit, name), make_task(make_vit, name)
    images, labels = make_batch(task)
    with torch.autocast("cpu", dtype=dtype):
        out = task(images, labels)
    out["loss"].backward()
    wanted = exact(images, labels)
    wanted["loss"].backward()
    assert out["target"].dtype == torch.float32
    assert torch.allclose(out["target"].sum(dim=1), torch.ones(4), atol=1e-6)
    assert out["loss"].item() == pytest.approx(wanted["loss"].item(), rel=0.1)
    for parameter, other in zip(task.parameters(), exact.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.norm().item() == pytest.approx(other.grad.norm().item(), rel=0.3, abs=0.05)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_type_trains_in_it(make_vit, name, dtype):
    task, exact = make_task(make_vit, name).to(dtype), make_task(make_vit, name)
    images, labels = make_batch(exact)
    out, wanted = task(images.to(dtype), labels), exact(images, labels)
    assert out["output"].dtype == dtype
    assert out["target"].dtype == torch.float32
    assert out["loss"].item() == pytest.approx(wanted["loss"].item(), rel=0.1)
    out["loss"].backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in task.view.model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_given_back_as_it_was(make_vit, name):
    task = make_task(make_vit, name)
    model = task.view.model
    model.train()
    model.blocks[0].eval()
    images, labels = make_batch(task)

    def state():
        hooks = [
            (len(m._forward_hooks), len(m._forward_pre_hooks), m.training, sorted(vars(m)))
            for m in model.modules()
        ]
        return hooks, copy.deepcopy(model.state_dict())

    before = state()
    task(images, labels)
    images[0, 0, 0, 0] = torch.nan  # goes through, and must not disturb anything either
    task(images, labels)
    model.head.register_forward_pre_hook(lambda *_: 1 / 0)
    hooked = state()
    with pytest.raises(ZeroDivisionError):
        task(images, labels)
    after = state()
    assert after[0] == hooked[0]
    assert [flags[2] for flags in after[0]] == [flags[2] for flags in before[0]]
    assert all(torch.equal(after[1][key], before[1][key]) for key in before[1])


@pytest.mark.parametrize("name", [name for name in NAMES if has_option(name, "pairing")])
@pytest.mark.parametrize("pairing", ["flip", "roll", "shuffle"])
def test_pairing_says_who_is_mixed_with_whom(make_vit, name, pairing):
    task = make_task(make_vit, name, pairing=pairing)
    images, labels = make_batch(task, 8)
    index = task.mix(images, labels).source_index.tolist()
    wanted = {"flip": [7, 6, 5, 4, 3, 2, 1, 0], "roll": [7, 0, 1, 2, 3, 4, 5, 6]}
    assert index == wanted.get(pairing, index)
    assert sorted(index) == list(range(8))


@pytest.mark.parametrize("name", [name for name in NAMES if has_option(name, "mode")])
@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_mode_says_how_many_draws_a_batch_takes(make_vit, name, mode):
    options = (
        {"mixup_prob": 1.0} if has_option(name, "mixup_prob") else {}
    )  # where it pastes, one draw may be one each
    task = make_task(make_vit, name, mode=mode, **options)
    images, labels = make_batch(task, 8)
    assert len(task.mix(images, labels).source_weight.unique()) == {"batch": 1, "pair": 4, "elem": 8}[mode]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "relabel"])  # a teacher gives every class some
def test_smoothing_spreads_its_share_evenly(make_vit, name):
    task = make_task(make_vit, name, smoothing=0.2)
    images, labels = make_batch(task)
    assert task(images, labels)["target"].min().item() == pytest.approx(0.2 / NUM_CLASSES, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_soft_labels_are_mixed_like_hard_ones(make_vit, name):
    hard, soft = make_task(make_vit, name, smoothing=0.0), make_task(make_vit, name, smoothing=0.0)
    images, labels = make_batch(hard)
    distributions = torch.nn.functional.one_hot(labels, NUM_CLASSES).float()
    assert torch.allclose(hard(images, labels)["target"], soft(images, distributions)["target"])
