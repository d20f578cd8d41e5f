"""What TokenMixup's steps must keep, with every base."""

import copy

import pytest
import torch
from torch import nn

import attnmix
from attnmix.methods import tokenmixup as module
from attnmix.methods.choice import Choice
from attnmix.methods.tokenmixup import TokenMixup
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.tokenmixup_tasks import (
    EVERY_SAMPLE,
    MODELS,
    make_batch,
    make_task,
    spy_on_swaps,
)

# ---- what must never happen ----


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("horizontal", "vertical", "base"),
    [(None, 2, "none"), (1, 2, "none"), (2, 1, "none"), (2, 2, "cutmix"), (0, 2, "cutmix")],
)
def test_no_row_sees_another_images_tokens(make_vit, monkeypatch, options, horizontal, vertical, base):
    """VTM's memory is the row's own: gradients tell which images an output depends on."""
    swaps = spy_on_swaps(monkeypatch)
    task = make_task(
        make_vit(**options), horizontal=horizontal, vertical=vertical, base=base, score_stop_gradient=True
    )
    images, labels = make_batch(6)
    images.requires_grad_()
    torch.manual_seed(0)
    out = task(images, labels)
    pixels = out["mixed"].source_index.tolist()
    tokens = swaps[-1].partner.tolist() if horizontal is not None else list(range(6))
    assert horizontal is None or swaps[-1].mask.any(dim=1).all()
    for i in range(6):
        (gradient,) = torch.autograd.grad(out["output"][i].square().sum(), images, retain_graph=True)
        seen = {k for k in range(6) if gradient[k].abs().max() > 0}
        assert i in seen
        assert seen <= {i, pixels[i], tokens[i], pixels[tokens[i]]}


def test_the_batch_keeps_its_order(make_vit):
    task = make_task(make_vit(), vertical=None, rho=float("inf"))
    images, labels = make_batch(4)
    assert torch.allclose(task(images, labels)["output"], task.view.model(images), atol=1e-5)


def test_evaluation_and_no_gradient_are_the_bases_step(make_vit):
    task, plain = make_task(make_vit()), attnmix.MixTask(make_vit(), attnmix.create_method("none", num_classes=5))
    images, labels = make_batch(4)
    trained = task(images, labels)
    task.eval(), plain.eval()
    for out in (task(images, labels), _without_gradient(task, images, labels)):
        assert out["output"].equal(plain(images, labels)["output"])
        assert out["target"].equal(plain(images, labels)["target"])
        assert set(out["losses"]) == {"classification"}
        assert out["stats"] == {}
    assert not trained["output"].allclose(out["output"], atol=1e-2)
    task.train()
    assert _without_gradient(task, images, labels)["output"].equal(task.view.model(images))


@torch.no_grad()
def _without_gradient(task, images, labels):
    return task(images, labels)


def test_steps_that_the_base_leaves_alone_stay_plain(make_vit):
    task = make_task(make_vit(), base="cutmix", prob=0.0)
    images, labels = make_batch(4)
    out = task(images, labels)
    assert out["output"].equal(task.view.model(images))
    assert set(out["losses"]) == {"classification"}
    assert out["stats"] == {}


def test_mixup_steps_are_mixed_too(make_vit):
    out = make_task(make_vit(), base="mixup")(*make_batch(4))
    assert out["mixed"].source_mask is None
    assert out["stats"]["mixed_samples"] == 1


def test_a_model_is_given_back_as_it_was_after_an_exception(make_vit):
    task = make_task(make_vit())
    model = task.view.model
    model.head.register_forward_pre_hook(lambda *_: 1 / 0)
    before = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()]
    for place in (None, "attn", "mlp"):
        hooks = (
            []
            if place is None
            else [getattr(b, place).register_forward_hook(lambda *_: 1 / 0) for b in model.blocks]
        )
        with pytest.raises(ZeroDivisionError):
            task(*make_batch(4))
        for hook in hooks:
            hook.remove()
        after = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()]
        assert after == before
        assert torch._C._len_torch_function_stack() == 0


def test_nothing_is_drawn_from_the_global_generator(make_vit):
    model = make_vit()
    state = torch.get_rng_state()
    task = attnmix.MixTask(model, TokenMixup(num_classes=NUM_CLASSES, samples="random", tokens="random"))
    easy = attnmix.MixTask(make_vit(class_token=False, global_pool="avg"), TokenMixup(num_classes=NUM_CLASSES))
    torch.set_rng_state(state)
    images, labels = torch.ones(4, 3, 16, 24), torch.arange(4)
    for each in (task, easy):
        each(images, labels)
        assert torch.get_rng_state().equal(state)


def test_scorenets_first_weights_depend_on_the_seed_alone(make_vit):
    def weights(seed, global_seed):
        model = make_vit(class_token=False, global_pool="avg")
        torch.manual_seed(global_seed)
        task = attnmix.MixTask(model, TokenMixup(num_classes=NUM_CLASSES, seed=seed))
        return nn.utils.parameters_to_vector(task.method.score_net.parameters())

    assert weights(0, 0).equal(weights(0, 1))
    assert not weights(0, 0).equal(weights(1, 0))


@pytest.mark.parametrize("options", [{}, {"samples": "random", "random_samples": 0.5}, {"tokens": "random"}])
def test_results_depend_on_the_seed(make_vit, options):
    model = make_vit()
    images, labels = make_batch(8)

    def run(seed):
        task = make_task(model, base="cutmix", seed=seed, **options)
        return torch.stack([task(images, labels)["target"] for _ in range(3)])

    assert run(0).equal(run(0))
    assert not run(0).equal(run(1))


def test_pixels_are_exactly_the_bases(make_vit):
    task = make_task(make_vit(), base="cutmix")
    cutmix = attnmix.MixTask(make_vit(), attnmix.create_method("cutmix", num_classes=NUM_CLASSES, mixup_prob=0.5))
    for _ in range(6):
        images, labels = make_batch(4)
        ours, theirs = task(images, labels)["mixed"], cutmix(images, labels)["mixed"]
        assert ours.images.equal(theirs.images)
        assert ours.source_weight.equal(theirs.source_weight)


# ---- the two labels ----


def test_labels_are_mixed_twice_with_a_base_that_mixes_pixels(make_vit, monkeypatch):
    swaps = spy_on_swaps(monkeypatch)
    task = make_task(make_vit(), base="cutmix", mixup_prob=0.0, smoothing=0.0, vertical=None)
    images, labels = make_batch(5)
    out = task(images, labels)
    mixed, swap = out["mixed"], swaps[0]
    for i in range(5):
        wanted = torch.zeros(NUM_CLASSES)
        for image, share in ((i, 1 - swap.source_weight[i]), (int(swap.partner[i]), swap.source_weight[i])):
            weight = mixed.source_weight[image]
            wanted[labels[image]] += share * (1 - weight)
            wanted[labels[mixed.source_index[image]]] += share * weight
        assert torch.allclose(out["target"][i], wanted, atol=1e-6)
    assert swap.source_weight.min() > 0


def test_scorenet_learns_the_label_before_tokens_are_mixed(make_vit):
    task = make_task(make_vit(), base="transmix", mixup_prob=0.0, vertical=None, score_weight=2.0)
    images, labels = make_batch(4)
    tokens = []
    task.method.score_net.register_forward_hook(lambda net, args, out: tokens.append(out))
    out = task(images, labels)
    mixed = copy.copy(out["mixed"])
    area = mixed.source_mask.float().mean(dim=(1, 2))  # not TransMix's weight
    targets = task.method.targets(labels)
    label = torch.stack([area[i] * targets[3 - i] + (1 - area[i]) * targets[i] for i in range(4)])
    wanted = torch.stack([references.cross_entropy(tokens[0][i], label[i]) for i in range(4)])
    assert torch.allclose(out["losses"]["score"], 2 * wanted.mean(), atol=1e-5)
    assert torch.allclose(out["stats"]["difficulty"], wanted.mean(), atol=1e-5)


def test_final_difficulty_is_the_models_own_error(make_vit, monkeypatch):
    model = make_vit(drop_path_rate=0.3)
    found = []
    easy = module.easy_samples
    monkeypatch.setattr(module, "easy_samples", lambda d, **k: found.append(d) or easy(d, **k))
    task = make_task(model, score_at="final")
    images, labels = make_batch(4)
    model.blocks[0].eval()
    out = task(images, labels)
    assert [block.training for block in model.blocks] == [False, True, True]
    output = copy.deepcopy(model).eval()(images)
    wanted = [references.cross_entropy(output[i], task.method.targets(labels)[i]) for i in range(4)]
    assert torch.allclose(found[0], torch.stack(wanted), atol=1e-5)
    assert not found[0].requires_grad
    assert task.method.score_net is None
    assert "score" not in out["losses"]


# ---- other bases ----


@pytest.mark.parametrize("base", ["cutmix", "transmix", "smmix", "mixup", "none", "mixup+cutmix", "tl-align"])
def test_it_works_on_top_of_every_base(make_vit, base):
    task = make_task(make_vit(), base=base)
    names = set()
    for _ in range(6):
        out = task(*make_batch(4))
        names |= set(out["losses"])
        assert torch.allclose(out["target"].sum(dim=1), torch.ones(4), atol=1e-6)
        assert torch.allclose(sum(out["losses"].values()), out["loss"])
        out["loss"].backward()
    assert names >= {"classification", "score"}
    assert base != "smmix" or names >= {"fine", "consistency"}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters())


def test_transmix_reads_the_attention_of_the_model_not_of_the_memory(make_vit):
    """Its own block is the one that attends to memory: the tap still sees the image's tokens alone."""
    task = make_task(make_vit(), base="transmix", mixup_prob=0.0, horizontal=None)
    plain = attnmix.MixTask(make_vit(), attnmix.create_method("transmix", num_classes=5, mixup_prob=0.0))
    images, labels = make_batch(4)
    ours, theirs = task(images, labels)["mixed"], plain(images, labels)["mixed"]
    # nothing before the last block differs, so neither does its attention
    assert torch.allclose(ours.source_weight, theirs.source_weight, atol=1e-6)


def test_a_base_may_be_a_method(make_vit):
    base = attnmix.create_method("cutmix", num_classes=NUM_CLASSES, smoothing=0.3, mixup_prob=1.0)
    task = make_task(make_vit(), base=base)
    assert task.method.smoothing == 0.3
    assert task.method.base is base
    out = task(*make_batch(4))
    assert out["mixed"].source_mask is None
    assert out["target"].min().item() == pytest.approx(0.3 / NUM_CLASSES, abs=1e-6)


def test_all_draws_come_from_one_generator():
    method = TokenMixup(num_classes=3, base="mixup+cutmix", seed=4)
    inside = [m for m in method.modules() if hasattr(m, "generator")]
    assert len(inside) == 4
    assert all(m.generator is method.generator for m in inside)
    choice = Choice([method, TokenMixup(num_classes=3, vertical=None)])
    assert method.base.methods[0].generator is choice.generator


def test_cutmix_draws_mixup_half_of_the_time_by_default():
    assert TokenMixup(num_classes=3).shares == {"keep": 0.0, "blend": 0.5, "paste": 0.5}
    assert TokenMixup(num_classes=3, mixup_prob=0.0).shares["blend"] == 0
    assert TokenMixup(num_classes=3, base="none").shares["keep"] == 1


# ---- what is trained, saved, exported ----


def test_scorenet_is_trained_and_saved_and_not_exported(make_vit):
    task = make_task(make_vit(), base="cutmix")
    names = {name for name, _ in task.trainable_module.named_parameters()}
    assert {"method.score_net.classify.weight", "method.score_net.classify.bias"} <= names
    assert not any("score" in name for name in task.get_eval_model().state_dict())
    other = attnmix.MixTask(make_vit(), TokenMixup(num_classes=NUM_CLASSES, horizontal=1))
    other.load_task_state(task.get_task_state())
    assert other.method.score_net.classify.weight.equal(task.method.score_net.classify.weight)


def test_every_parameter_gets_a_gradient_on_every_step(make_vit):
    for options in ({}, {"tau": 0.0}, {"prob": 0.0}, {"score_at": "final"}):
        task = make_task(make_vit(), base="cutmix", **options)
        task(*make_batch(4))["loss"].backward()
        assert all(p.grad is not None for p in task.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_scorenet_has_the_models_type(make_vit, dtype):
    task = attnmix.MixTask(make_vit().to(dtype), TokenMixup(num_classes=NUM_CLASSES, **EVERY_SAMPLE))
    assert task.method.score_net.classify.weight.dtype == dtype
    images, labels = make_batch(4)
    out = task(images.to(dtype), labels)
    assert out["loss"].isfinite()
    assert out["target"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_autocast_works(make_vit, dtype, options):
    task = make_task(make_vit(**options))
    with torch.autocast("cpu", dtype=dtype):
        out = task(*make_batch(4))
    out["loss"].backward()
    assert out["loss"].isfinite()
    assert all(p.grad.isfinite().all() for p in task.parameters())


def test_numbers_that_are_none_stay_with_their_own_sample(make_vit):
    task = make_task(make_vit())
    images, labels = make_batch(4)
    images[1] = torch.nan
    out = task(images, labels)
    assert out["target"].isfinite().all()
    assert out["output"][[0, 2, 3]].isfinite().all()
    assert out["target"][1].equal(task.method.targets(labels)[1])


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_step(make_vit):
    """Steps that mix no tokens run compiled; the others never make it compile anew."""
    graphs = []
    plain = make_task(make_vit(), base="transmix", mixup_prob=0.0, prob=0.5, seed=2)
    compiled = attnmix.MixTask(
        torch.compile(copy.deepcopy(plain.view.model), backend=lambda graph, _: graphs.append(graph) or graph),
        copy.deepcopy(plain.method),
    )
    images, labels = make_batch(4)
    compiled.view(images)
    count = len(graphs)
    kinds = set()
    for _ in range(6):
        ours, wanted = compiled(images, labels), plain(images, labels)
        assert torch.allclose(ours["output"], wanted["output"], atol=1e-5)
        assert torch.allclose(ours["target"], wanted["target"], atol=1e-5)
        assert set(ours["stats"]) == set(wanted["stats"])
        kinds.add("mixed_samples" in ours["stats"])
    assert kinds == {True, False}
    assert len(graphs) == count > 0
