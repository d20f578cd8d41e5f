import copy

import pytest
import torch
from torch import nn

import attnmix
from attnmix.methods.smmix import consistency_target, fine_loss
from tests import references
from tests.conftest import NUM_CLASSES

GRIDS = {"square": (16, 16), "not square": (16, 24)}
MODELS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "averaged": {"class_token": False, "global_pool": "avg"},
    "averaged then normed": {"class_token": False, "global_pool": "avg", "fc_norm": True},
}


def make_task(model, **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method("smmix", num_classes=NUM_CLASSES, **options))


def make_batch(batch, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def windows(mixed, patch=4):
    """Of each sample: top left of the target and of the source window, and their size, in tokens."""
    draw = mixed.draw
    target = draw.box[:, :2] // patch
    return target.tolist(), (target + draw.offset // patch).tolist(), (draw.box[0, 2:] // patch).tolist()


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("size", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_windows_equal_a_brute_force_search_on_the_unfused_models_attention(make_vit, batch, size, options):
    model = make_vit(img_size=size, **options)
    task, (images, labels) = make_task(model), make_batch(batch, size)
    attention = references.image_attention(copy.deepcopy(model).eval(), images)
    attention = attention.reshape(batch, size[0] // 4, size[1] // 4)
    for _ in range(4):
        mixed = task.mix(images, labels)
        target, source, window = windows(mixed)
        for i, partner in enumerate(mixed.source_index.tolist()):
            least = references.best_window(attention[i], window, largest=False)
            most = references.best_window(attention[partner], window, largest=True)
            assert tuple(target[i]) == least
            assert tuple(source[i]) == (least if partner == i else most)
            (t, left), (st, sl) = [(4 * a, 4 * b) for a, b in (target[i], source[i])]
            height, width = 4 * window[0], 4 * window[1]
            wanted = images[i].clone()
            wanted[:, t : t + height, left : left + width] = images[partner, :, st : st + height, sl : sl + width]
            assert mixed.images[i].equal(wanted)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("size", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("authors", [False, True], ids=["paper", "authors' code"])
def test_losses_equal_hand_written_ones(make_vit, batch, size, options, authors):
    model = make_vit(img_size=size, **options)
    ways = {"token_head": True, "consistency_mix": "logits"} if authors else {}
    task, (images, labels) = make_task(model, **ways), make_batch(batch, size)
    out = task(images, labels)
    mixed = out["mixed"]
    smoothed = [references.smooth(label, NUM_CLASSES, 0.1) for label in labels.tolist()]
    features = model.forward_features(mixed.images)
    with torch.no_grad():
        clean = copy.deepcopy(model).eval()(images)

    fine, consistency = [], []
    target, _, window = windows(mixed)
    for i, partner in enumerate(mixed.source_index.tolist()):
        inside, outside = [], []
        for row in range(size[0] // 4):
            for column in range(size[1] // 4):
                token = features[i, model.num_prefix_tokens + row * (size[1] // 4) + column]
                hit = 0 <= row - target[i][0] < window[0] and 0 <= column - target[i][1] < window[1]
                (inside if hit else outside).append(token)
        classify = task.method.token_head if authors else lambda token: model.head(model.fc_norm(token))
        of_source, of_target = (classify(torch.stack(tokens).mean(dim=0)) for tokens in (inside, outside))
        fine.append(
            (
                references.cross_entropy(of_source, smoothed[partner])
                + references.cross_entropy(of_target, smoothed[i])
            )
            / 2
        )
        weight = window[0] * window[1] / (size[0] * size[1] / 16)
        if authors:
            teacher = (weight * clean[partner] + (1 - weight) * clean[i]).softmax(0)
        else:
            teacher = weight * clean[partner].softmax(0) + (1 - weight) * clean[i].softmax(0)
        student = out["output"][i].log_softmax(0)
        consistency.append((teacher * (teacher.log() - student)).sum())
        assert mixed.source_weight[i].item() == pytest.approx(weight)
    assert torch.allclose(out["losses"]["fine"], torch.stack(fine).mean(), atol=1e-5)
    assert torch.allclose(out["losses"]["consistency"], torch.stack(consistency).mean(), atol=1e-5)

    share = window[0] * window[1] * 16 / (size[0] * size[1])
    partners = mixed.source_index.tolist()
    wanted = torch.stack([share * smoothed[p] + (1 - share) * smoothed[i] for i, p in enumerate(partners)])
    assert torch.allclose(out["target"], wanted, atol=1e-5)
    logits = model.forward_head(features)
    classification = torch.stack([references.cross_entropy(logits[i], wanted[i]) for i in range(batch)])
    total = (classification + torch.stack(fine) + torch.stack(consistency)).mean()
    references.assert_same_gradients(out["loss"], total, model)


@pytest.mark.parametrize("source", ["random", "max"])
@pytest.mark.parametrize("target", ["corr", "max", "min"])
def test_the_six_mixing_schemes_of_table_a4(make_vit, source, target):
    model = make_vit(img_size=32)
    task, (images, labels) = make_task(model, source=source, target=target), make_batch(6, (32, 32))
    attention = references.image_attention(copy.deepcopy(model).eval(), images).unflatten(1, (8, 8))
    seen = set()
    for _ in range(6):
        mixed = task.mix(images, labels)
        on_target, from_source, window = windows(mixed)
        for i, partner in enumerate(mixed.source_index.tolist()):
            if source == "max":
                assert tuple(from_source[i]) == references.best_window(attention[partner], window, largest=True)
            if target == "corr":
                assert on_target[i] == from_source[i]
            else:
                largest = target == "max"
                assert tuple(on_target[i]) == references.best_window(attention[i], window, largest=largest)
            seen.add(tuple(from_source[i]))
        assert mixed.source_weight[0].item() == pytest.approx(window[0] * window[1] / 64)
    assert len(seen) > 12 or source == "max"


def test_cutmix_regions_without_losses_are_cutmix(make_vit):
    model, (images, labels) = make_vit(), make_batch(6)
    bare = make_task(model, regions="cutmix", fine=False, consistency=False)
    cutmix = attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=NUM_CLASSES))
    for _ in range(5):
        ours, theirs = bare(images, labels), cutmix(images, labels)
        assert ours["mixed"].images.equal(theirs["mixed"].images)
        assert ours["loss"].equal(theirs["loss"])


def test_consistency_on_cutmix_regions_is_table_7s_third_column(make_vit):
    model, (images, labels) = make_vit(), make_batch(6)
    out = make_task(model, regions="cutmix", fine=False)(images, labels)
    assert set(out["losses"]) == {"classification", "consistency"}
    with torch.no_grad():
        clean = copy.deepcopy(model).eval()(images).softmax(1)
    weight = out["mixed"].source_weight[:, None]
    teacher = weight * clean[out["mixed"].source_index] + (1 - weight) * clean
    wanted = (teacher * (teacher.log() - out["output"].log_softmax(1))).sum(1).mean()
    assert torch.allclose(out["losses"]["consistency"], wanted, atol=1e-5)


def test_transmix_labels_on_smmix_images(make_vit):
    model, (images, labels) = make_vit(), make_batch(4)
    out = make_task(model, label="transmix")(images, labels)
    mixed = out["mixed"]
    wanted = references.transmix_target(
        model,
        mixed.images,
        mixed.source_mask,
        labels.tolist(),
        mixed.source_index.tolist(),
        num_classes=NUM_CLASSES,
        smoothing=0.1,
        attention_share=0.5,
        grid=(4, 6),
        of_images=False,
    )
    assert torch.allclose(out["target"], wanted, atol=1e-5)
    assert set(out["losses"]) == {"classification", "fine", "consistency"}


def test_tl_align_labels_on_smmix_images(make_vit):
    model, (images, labels) = make_vit(), make_batch(4)
    out = make_task(model, label="tl-align")(images, labels)
    mixed = out["mixed"]
    wanted = references.tl_align_target(
        model,
        mixed.images,
        mixed.source_mask,
        labels.tolist(),
        mixed.source_index.tolist(),
        num_classes=NUM_CLASSES,
        smoothing=0.1,
        residual=True,
        patch=4,
    )
    assert torch.allclose(out["target"], wanted, atol=1e-5)


def test_nothing_is_looked_at_that_nothing_needs(make_vit):
    model, (images, labels) = make_vit(), make_batch(4)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))  # the clean pass; training goes by features
    for options, wanted in (
        ({}, 1),
        ({"source": "random", "target": "corr"}, 1),
        ({"source": "random", "target": "corr", "consistency": False}, 0),
        ({"attention": "random"}, 1),
        ({"attention": "random", "consistency": False}, 0),
        ({"consistency": False}, 1),
    ):
        calls.clear()
        make_task(model, **options)(images, labels)
        assert len(calls) == wanted, options


@pytest.mark.parametrize("block", [0, 1, -1])
def test_without_consistency_the_clean_pass_ends_at_the_block_it_reads(make_vit, block):
    model = make_vit()
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    expected = make_task(model, consistency=True, block=block).mix(images, labels).images
    task = make_task(model, consistency=False, block=block)
    ran = []
    attend = type(model.blocks[0].attn).forward
    for number, layer in enumerate(model.blocks):  # no hook: whoever has one is owed a whole forward
        layer.attn.forward = lambda x, *a, number=number, layer=layer, **k: (
            ran.append(number) or attend(layer.attn, x, *a, **k)
        )
    assert task.mix(images, labels).images.equal(expected)
    assert ran == list(range(block % 3 + 1))
    ran.clear()
    task = make_task(model, consistency=False, block=block)
    with model.head.register_forward_hook(lambda *_: None):
        assert task.mix(images, labels).images.equal(expected)
    assert ran == [0, 1, 2]


def test_consistency_target_two_ways():
    logits = torch.randn(2, 3)
    weight, partner = torch.tensor([0.25, 0.5]), torch.tensor([1, 0])
    literal = consistency_target(logits, partner, weight)
    authors = consistency_target(logits, partner, weight, mix="logits")
    assert torch.allclose(literal[0], 0.75 * logits[0].softmax(0) + 0.25 * logits[1].softmax(0))
    assert torch.allclose(authors[0], (0.75 * logits[0] + 0.25 * logits[1]).softmax(0))
    assert torch.allclose(literal.sum(1), torch.ones(2))


def test_a_window_over_the_whole_grid_trains_the_source_alone():
    tokens, targets = torch.randn(1, 4, 3, requires_grad=True), torch.eye(3)[:1]
    loss = fine_loss(lambda t: t, tokens, torch.ones(1, 4, dtype=torch.bool), targets, torch.tensor([0]))
    wanted = references.cross_entropy(tokens.mean(dim=1)[0], targets[0]) / 2
    assert torch.allclose(loss, wanted)
    loss.backward()
    assert tokens.grad.isfinite().all()


def test_the_clean_pass_is_as_at_inference_and_leaves_no_mark(make_vit):
    model = make_vit(drop_path_rate=0.5, proj_drop_rate=0.3).train()
    model.fc_norm = nn.Identity()
    model.norm_pre = nn.BatchNorm1d(25)  # statistics that a training-mode pass would move
    task, (images, labels) = make_task(model), make_batch(4)
    reference = copy.deepcopy(model).eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    guide = task.method.plan(task.view, images, labels).guide
    assert torch.allclose(guide.clean_logits, reference(images), atol=1e-6)
    assert not guide.clean_logits.requires_grad
    assert torch.get_rng_state().equal(state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert model.blocks[0].training


def test_mixup_steps_have_neither_window_nor_clean_pass(make_vit):
    model = make_vit()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    out = make_task(model, mixup_prob=1.0)(*make_batch(4))
    assert out["mixed"].source_mask is None
    assert list(out["losses"]) == ["classification"]
    assert len(calls) == 1


def test_token_head_is_trained_saved_and_not_exported(make_vit):
    task = make_task(make_vit(), token_head=True)
    out = task(*make_batch(4))
    out["loss"].backward()
    head = task.method.token_head
    assert head.weight.shape == (NUM_CLASSES, 24)
    assert head.weight.grad.abs().sum() > 0
    trained = dict(task.get_trainable_module().named_parameters())
    assert any(parameter is head.weight for parameter in trained.values())
    assert any("token_head" in key for key in task.state_dict())
    assert "weight" in str(task.get_task_state()["method"].keys())
    assert not any("token_head" in key for key in task.get_eval_model().state_dict())


def test_token_head_starts_from_the_methods_seed_alone(make_vit):
    heads = []
    for seed, others in ((0, 0), (0, 1), (1, 0)):
        model = make_vit()
        torch.manual_seed(others)
        state = torch.get_rng_state()
        heads.append(make_task(model, token_head=True, seed=seed).method.token_head.weight)
        assert torch.get_rng_state().equal(state)
    assert heads[0].equal(heads[1])
    assert not heads[0].equal(heads[2])


def test_random_scores_need_no_block_of_the_model(make_vit):
    options = {"regions": "cutmix", "fine": False, "attention": "random", "block": 7}
    out = make_task(make_vit(), **options)(*make_batch(4))
    assert set(out["losses"]) == {"classification", "consistency"}


def test_token_head_gets_a_gradient_in_every_step_even_of_mixup(make_vit):
    task = make_task(make_vit(), token_head=True, mixup_prob=1.0)
    task(*make_batch(4))["loss"].backward()
    assert task.method.token_head.weight.grad.abs().sum() == 0


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({"block": 0}, "images"),
        ({"side_ratio": (0.5, 0.5)}, "weight"),
        ({"side_ratio": (0.0, 1.0)}, "weight"),
        ({"side_law": "integer"}, "weight"),
        ({"fine": False}, "losses"),
        ({"consistency": False}, "losses"),
        ({"consistency_mix": "logits"}, "consistency"),
        ({"token_head": True}, "fine"),
        ({"source": "random"}, "images"),
        ({"target": "corr"}, "images"),
        ({"target": "max"}, "images"),
        ({"regions": "cutmix", "fine": False}, "images"),
        ({"attention": "random"}, "images"),
        ({"attention": "image-rollout"}, "images"),
        ({"label": "transmix"}, "weight"),
        ({"label": "tl-align"}, "weight"),
    ],
)
def test_every_option_changes_the_step(make_vit, options, differs):
    model, (images, labels) = make_vit(img_size=(32, 48)), make_batch(8, (32, 48))
    default, other = make_task(model), make_task(model, **options)
    pairs = [(default(images, labels), other(images, labels)) for _ in range(6)]

    def changed(one, two):
        return {
            "images": not one["mixed"].images.equal(two["mixed"].images),
            "weight": not one["mixed"].source_weight.equal(two["mixed"].source_weight),
            "losses": set(one["losses"]) != set(two["losses"]),
        }.get(differs, False) or (
            differs in one["losses"] and not torch.allclose(one["losses"][differs], two["losses"][differs])
        )

    assert any(changed(one, two) for one, two in pairs)


def test_one_side_ratio_draws_every_size_between_its_ends(make_vit):
    task, (images, labels) = make_task(make_vit(img_size=32)), make_batch(2, (32, 32))
    sides = {windows(task.mix(images, labels))[2][0] for _ in range(60)}
    assert sides == {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side_law": "even"}, 'side_law is "even", but must be one of ratio, integer'),
        ({"consistency_mix": "mean"}, 'consistency_mix is "mean"'),
        ({"side_ratio": (0.8, 0.2)}, r"side_ratio is \(0.8, 0.2\)"),
        ({"token_head": True, "fine": False}, "needs fine=True"),
        ({"regions": "cutmix"}, 'regions="cutmix" needs fine=False'),
        ({"regions": "boxes"}, 'regions is "boxes", but must be one of attention, cutmix'),
        ({"source": "min"}, 'source is "min", but must be one of max, random'),
        ({"target": "mid"}, 'target is "mid", but must be one of min, max, corr'),
        ({"label": "trans"}, 'label is "trans", but must be one of area, transmix, transmix-image, tl-align'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("smmix", num_classes=3, **options)


def test_alpha_and_mode_are_cutmixs_where_regions_are(make_vit):
    model, (images, labels) = make_vit(img_size=32), make_batch(8, (32, 32))
    plain = {"regions": "cutmix", "fine": False}
    default = make_task(model, **plain)(images, labels)["mixed"].source_weight
    assert len(default.unique()) == 1
    assert len(make_task(model, mode="elem", **plain)(images, labels)["mixed"].source_weight.unique()) > 4
    other = make_task(model, cutmix_alpha=0.2, **plain)(images, labels)["mixed"].source_weight
    assert not other.equal(default)
