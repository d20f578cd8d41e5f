import copy
import itertools

import pytest
import timm
import torch
from torch import nn

import attnmix
from attnmix.methods import method_options
from attnmix.methods import tokenmixup as module
from attnmix.methods.choice import Choice
from attnmix.methods.tokenmixup import TokenMixup, salient_tokens
from tests import references
from tests.conftest import NUM_CLASSES

MODELS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers alone": {"class_token": False, "reg_tokens": 2, "global_pool": "avg"},
}
EVERY_SAMPLE = {"tau": float("inf"), "rho": 0.01}


def make_task(model, **options):
    """A task whose ScoreNet tells samples apart from the start."""
    options = {"horizontal": 1, "vertical": 2, "base": "none", **EVERY_SAMPLE, **options}
    task = attnmix.MixTask(model, TokenMixup(num_classes=NUM_CLASSES, **options))
    generator = torch.Generator().manual_seed(7)
    if task.method.score_net is not None:
        for parameter in task.method.score_net.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return task


def make_batch(batch, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def spy_on_swaps(monkeypatch):
    """The `TokenSwap` of every step, as it is made."""
    swaps = []
    for name in ("swap_salient", "swap_random"):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, function=function, **k: swaps.append(function(*a, **k)) or swaps[-1]
        )
    return swaps


# ---- the slow reference: the model's forward by its modules, explicit softmax, plain loops ----


def slow_attention(block, queries, keys):
    """Softmax attention `[B, H, M_query, M_key]` and values `[B, H, M_key, D]` of a timm ViT block."""

    def split(tokens):
        batch, count, _ = tokens.shape
        qkv = block.attn.qkv(block.norm1(tokens))
        return qkv.reshape(batch, count, 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4)

    query, (_, key, value) = split(queries)[0], split(keys)
    return (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(dim=-1), value


def slow_saliency(model, block, tokens):
    """Class row where there is a class token, else the mean of the image tokens' rows; image columns."""
    attention = slow_attention(block, tokens, tokens)[0].detach().mean(dim=1)
    prefix = model.num_prefix_tokens
    rows = attention[:, :1] if model.cls_token is not None else attention[:, prefix:]
    return rows.mean(dim=1)[:, prefix:]


def slow_score(model, net, tokens):
    if model.cls_token is not None:
        return net.classify(tokens[0])
    images = tokens[model.num_prefix_tokens :]
    weights = torch.stack([net.attend(token)[0] for token in images]).softmax(dim=0)
    return net.classify(sum(weight * token for weight, token in zip(weights, images, strict=True)))


def slow_pairs(gain):
    """Which partners give the largest total, each at most once, by trying all."""
    rows, columns = len(gain), len(gain[0]) if gain else 0
    best, found = -1.0, ()
    for choice in itertools.permutations(range(columns), rows):
        total = sum(gain[i][j] for i, j in enumerate(choice))
        if total > best:
            best, found = total, choice
    return found


def slow_step(model, net, images, target, *, horizontal, vertical, tau, scale, rho, kappa, score_weight, stop):
    """Logits, mixed target and the losses of Algorithms 1 and 2."""
    batch, prefix = len(images), model.num_prefix_tokens
    x, memory, mixed, score = model._pos_embed(model.patch_embed(images)), [], target.clone(), None
    for number, block in enumerate(model.blocks):
        if number == horizontal:
            saliency = slow_saliency(model, block, x)
            logits = [slow_score(model, net, x[i].detach() if stop else x[i]) for i in range(batch)]
            difficulty = [references.cross_entropy(logits[i], target[i]) for i in range(batch)]
            score = score_weight * torch.stack(difficulty).mean()
            easy = [i for i in range(batch) if scale * difficulty[i].item() <= tau]
            lead = [[saliency[j] - saliency[i] - rho for j in range(batch)] for i in range(batch)]
            gain = [[float(lead[i][j].clamp(min=0).sum()) for j in range(batch)] for i in easy]
            rows = list(x)
            for i, j in zip(easy, slow_pairs(gain), strict=True):
                taken = [bool(d > 0) for d in lead[i][j]]
                rows[i] = torch.stack(
                    [x[i, t] for t in range(prefix)]
                    + [x[j if taken[t] else i, prefix + t] for t in range(len(taken))]
                )
                source = sum(float(saliency[j, t]) for t in range(len(taken)) if taken[t])
                kept = sum(float(saliency[i, t]) for t in range(len(taken)) if not taken[t])
                weight = source / (source + kept)
                mixed[i] = weight * target[j] + (1 - weight) * target[i]
            x = torch.stack(rows)
        if vertical is not None and number < vertical:
            saliency = slow_saliency(model, block, x)
            for i in range(batch):
                order = sorted(range(saliency.shape[1]), key=lambda t, i=i: -float(saliency[i, t]))
                memory.append((i, torch.stack([x[i, prefix + t] for t in order[:kappa]])))
        keys = x
        if number == vertical:
            keys = torch.stack([torch.cat([x[i], *[m for k, m in memory if k == i]]) for i in range(batch)])
        attention, value = slow_attention(block, x, keys)
        x = x + block.attn.proj((attention @ value).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    output = model.forward_head(model.norm(x))
    losses = {
        "classification": torch.stack([references.cross_entropy(output[i], mixed[i]) for i in range(batch)]).mean()
    }
    return output, mixed, losses if score is None else {**losses, "score": score}


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("size", [(16, 16), (16, 24)], ids=["square", "not square"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("horizontal", "vertical"),
    [(1, None), (None, 2), (1, 2), (2, 2), (2, 1)],
    ids=["HTM", "VTM", "12", "22", "21"],
)
def test_a_step_equals_the_slow_reference(make_vit, batch, size, options, horizontal, vertical):
    model = make_vit(img_size=size, **options)
    task = make_task(model, horizontal=horizontal, vertical=vertical, tau=0.17)
    images, labels = make_batch(batch, size)
    target = torch.stack([references.smooth(label, NUM_CLASSES, 0.1) for label in labels.tolist()])
    has_class = model.cls_token is not None
    out = task(images, labels)
    output, mixed, losses = slow_step(
        model,
        task.method.score_net,
        images,
        target,
        horizontal=horizontal,
        vertical=vertical,
        tau=0.17,
        scale=0.1,
        rho=0.01,
        kappa=3,
        score_weight=1.0 if has_class else 0.001,
        stop=has_class,
    )
    assert torch.allclose(out["target"], mixed, atol=1e-5)
    assert torch.allclose(out["output"], output, atol=1e-4)
    assert set(out["losses"]) == set(losses)
    for name, loss in losses.items():
        assert torch.allclose(out["losses"][name], loss, atol=1e-5)
    parameters = list(task.parameters())
    ours = torch.autograd.grad(out["loss"], parameters, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(sum(losses.values()), parameters, allow_unused=True, materialize_grads=True)
    for a, b in zip(ours, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_the_reference_cases_hold_easy_and_difficult_samples(make_vit):
    for options in MODELS.values():
        shares = [
            make_task(make_vit(**options), tau=0.17)(*make_batch(6))["stats"]["mixed_samples"] for _ in range(4)
        ]
        assert 0 < torch.stack(shares).mean() < 1


# ---- other families: attention on other grids than the tokens' ----


def make_swin():
    options = {"img_size": (32, 64), "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2)}
    return timm.models.SwinTransformer(num_heads=(1, 2), num_classes=NUM_CLASSES, **options)


def make_pvt():
    options = {"embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    return timm.create_model("pvt_v2_b0", num_classes=NUM_CLASSES, **options)


def make_cait():
    options = {"img_size": (32, 64), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return timm.models.Cait(num_classes=NUM_CLASSES, **options)


def windows_of(grid, side, shift):
    """Which tokens share a window, in the order of the windows."""
    places = torch.arange(grid[0] * grid[1]).view(grid)
    found = []
    for top in range(0, grid[0], side):
        for left in range(0, grid[1], side):
            found.append(
                [
                    int(places[(row + shift) % grid[0], (column + shift) % grid[1]])
                    for row in range(top, top + side)
                    for column in range(left, left + side)
                ]
            )
    return found


def swin_saliency(model, images, number):
    """Mean over all queries of an image; a token of another window attends with 0."""
    block = [block for stage in model.layers for block in stage.blocks][number]
    found = []
    block.attn.softmax.register_forward_hook(lambda *a: found.append(a[-1].mean(dim=1)))
    with torch.no_grad():
        model(images)
    grid, side, shift = ((8, 16), 4, 2 * (number % 2)) if number < 2 else ((4, 8), 4, 0)
    windows, saliency = windows_of(grid, side, shift), torch.zeros(len(images), grid[0] * grid[1])
    for image in range(len(images)):
        for number, window in enumerate(windows):
            rows = found[0][image * len(windows) + number]
            for place, token in enumerate(window):
                saliency[image, token] = rows[:, place].sum() / (grid[0] * grid[1])
    return saliency


def pvt_saliency(model, images, number):
    """A cell's attention is shared among its tokens."""
    block, found = model.stages[number].blocks[0], []
    block.attn.fused_attn = False
    block.attn.attn_drop.register_forward_pre_hook(lambda _, args: found.append(args[0].mean(dim=(1, 2))))
    with torch.no_grad():
        model(images)
    ratio, columns = (8, 4, 2, 1)[number], 16 >> number
    saliency = torch.zeros(len(images), (columns // 2) * columns)
    for token in range(saliency.shape[1]):
        row, column = divmod(token, columns)
        saliency[:, token] = found[0][:, row // ratio * (columns // ratio) + column // ratio] / ratio**2
    return saliency


def cait_saliency(model, images, number):
    found = []
    model.blocks[number].attn.proj_w.register_forward_pre_hook(
        lambda _, args: found.append(args[0].mean(dim=(1, 3)))
    )
    with torch.no_grad():
        model(images)
    return found[0]


@pytest.mark.parametrize(
    ("make", "slow", "number"),
    [
        *[(make_swin, swin_saliency, number) for number in (0, 1, 2)],
        *[(make_pvt, pvt_saliency, number) for number in range(4)],
        (make_cait, cait_saliency, 1),
    ],
)
def test_saliency_is_brought_to_the_tokens_of_any_family(monkeypatch, make, slow, number):
    seen = []
    salient = module.swap_salient
    monkeypatch.setattr(module, "swap_salient", lambda s, *a, **k: seen.append(s) or salient(s, *a, **k))
    torch.manual_seed(1)
    model = make()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    images, labels = make_batch(3, (32, 64))
    wanted = slow(copy.deepcopy(model), images, number)
    out = make_task(model, horizontal=number, vertical=None, rho=0.0)(images, labels)
    assert torch.allclose(seen[0], wanted, atol=1e-6)
    assert wanted.std() > 1e-4
    assert torch.allclose(wanted.sum(dim=1), torch.ones(3), atol=1e-5)
    out["loss"].backward()
    assert out["stats"]["mixed_tokens"] > 0


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


# ---- options ----


@pytest.mark.parametrize(
    "options",
    [
        {"horizontal": 2},
        {"horizontal": -1},
        {"horizontal": None},
        {"vertical": 1},
        {"vertical": None},
        {"base": "mixup"},
        {"tau": 0.15},
        {"difficulty_scale": 1.0, "tau": 1.6},
        {"rho": 0.03},
        {"kappa": 5},
        {"score_pool": "mean"},
        {"score_pool": "attention"},
        {"score_weight": 0.5},
        {"samples": "random"},
        {"tokens": "random"},
    ],
    ids=str,
)
def test_every_option_changes_the_result(make_vit, options):
    images, labels = make_batch(6)
    default, other = make_task(make_vit())(images, labels), make_task(make_vit(), **options)(images, labels)
    assert not torch.allclose(default["loss"], other["loss"], atol=1e-5)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"samples": "random"}, {"samples": "random", "random_samples": 3}),
        ({"score_at": "final"}, {"samples": "random", "random_samples": 0}),
    ],
    ids=str,
)
def test_where_there_is_no_score_loss_the_options_still_tell(make_vit, one, two):
    images, labels = make_batch(6)
    losses = [make_task(make_vit(), **options)(images, labels)["loss"] for options in (one, two)]
    assert not torch.allclose(*losses, atol=1e-5)


def test_a_base_of_several_smooths_as_the_drawn_one_does(make_vit):
    members = [
        attnmix.create_method(n, num_classes=NUM_CLASSES, smoothing=s) for n, s in (("mixup", 0.5), ("none", 0))
    ]
    method = TokenMixup(num_classes=NUM_CLASSES, base=Choice(members, [0, 1]), tau=0.0)
    out = attnmix.MixTask(make_vit(), method)(*make_batch(4))
    assert out["target"].min() == 0


@pytest.mark.parametrize(
    ("base", "own"),
    [("cutmix", [0.1]), ("none", [0.1]), ("smmix", [0.1]), ("relabel", [0.0]), ("cutmix+relabel", [0.1, 0.0])],
)
def test_smoothing_is_the_bases_own_unless_given(base, own):
    assert method_options("tokenmixup", {"base": base})["smoothing"].default is None
    for given, wanted in (
        ({}, own),
        ({"smoothing": 0.3}, [0.3] * len(own)),
        ({"smoothing": 0.0}, [0.0] * len(own)),
    ):
        method = TokenMixup(num_classes=3, base=base, **given)
        assert [member.smoothing for member in getattr(method.base, "methods", [method.base])] == wanted
        assert method.smoothing == method.base.smoothing == wanted[0]


def test_salient_tokens_are_the_highest():
    places = salient_tokens(torch.tensor([[0.1, 0.5, 0.2, 0.4], [0.9, 0.1, 0.2, 0.3]]), 2)
    assert [sorted(row) for row in places.tolist()] == [[1, 3], [0, 3]]


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_score_stop_gradient_keeps_the_score_from_the_model(make_vit, options):
    for stop in (True, False):
        task = make_task(make_vit(**options), score_stop_gradient=stop)
        task(*make_batch(4))["losses"]["score"].backward()
        reached = task.view.model.patch_embed.proj.weight.grad is not None
        assert reached is not stop
        assert all(p.grad is not None for p in task.method.score_net.parameters())


def test_random_samples_is_a_chance_or_a_number(make_vit):
    model, (images, labels) = make_vit(), make_batch(8)

    def shares(steps, **options):
        task = make_task(model, samples="random", rho=0.0, vertical=None, **options)
        assert task.method.score_net is None
        return torch.stack([task(images, labels)["stats"]["mixed_samples"] * 8 for _ in range(steps)])

    # one in eight is at times matched with itself
    assert (shares(10, random_samples=3) <= 3).all()
    assert shares(10, random_samples=3).mean() > 2
    assert shares(20, random_samples=0.25).mean() == pytest.approx(2, abs=0.8)
    assert shares(3, random_samples=0).max() == 0
    assert shares(3, random_samples=100).max() == 8


def test_random_tokens_in_vtm_are_drawn_anew_every_step(make_vit):
    task = make_task(make_vit(), horizontal=None, tokens="random")
    images, labels = make_batch(3)
    first, second = task(images, labels)["output"], task(images, labels)["output"]
    assert not torch.allclose(first, second, atol=1e-4)


def test_stats_count_what_was_done(make_vit, monkeypatch):
    swaps = spy_on_swaps(monkeypatch)
    out = make_task(make_vit(), tau=0.17)(*make_batch(6))
    mask = swaps[0].mask
    mixed = mask.any(dim=1)
    stats = out["stats"]
    assert stats["mixed_samples"] == mixed.float().mean()
    assert stats["mixed_tokens"].item() == pytest.approx(mask.sum().item() / mixed.sum().item())
    assert stats["memory_tokens"] == 6
    assert stats["saliency_gain"] > 0
    assert all(v.ndim == 0 and v.dtype == torch.float32 and not v.requires_grad for v in stats.values())
    nothing = make_task(make_vit(), tau=0.0)(*make_batch(6))["stats"]
    assert nothing["mixed_samples"] == nothing["mixed_tokens"] == nothing["saliency_gain"] == 0


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


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizontal": None, "vertical": None}, "horizontal and vertical are both None"),
        ({"smoothing": 1.0}, "smoothing is 1.0, but must be in"),
        ({"tau": -0.1}, "tau is -0.1, but must be at least 0"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"rho": -1.0}, "rho is -1.0"),
        ({"score_weight": -1.0}, "score_weight is -1.0"),
        ({"difficulty_scale": 0.0}, "difficulty_scale is 0.0, but must be above 0"),
        ({"kappa": 0}, "kappa is 0, but must be a whole number of tokens"),
        ({"kappa": 2.5}, "kappa is 2.5"),
        ({"horizontal": 1.5}, "horizontal is 1.5, but must be the number of a block, or None"),
        ({"vertical": "last"}, "vertical is 'last'"),
        ({"random_samples": -1}, "random_samples is -1"),
        ({"random_samples": float("nan")}, "random_samples is nan"),
        ({"random_samples": 2.5}, "random_samples is 2.5, but must be a chance below 1, or a whole number"),
        ({"score_pool": "max"}, 'score_pool is "max", but must be one of auto, class, attention, mean'),
        ({"score_at": "end"}, 'score_at is "end", but must be one of block, final'),
        ({"samples": "hard"}, 'samples is "hard", but must be one of easy, random'),
        ({"tokens": "all"}, 'tokens is "all", but must be one of salient, random'),
        ({"base": "cutmax"}, 'no method "cutmax"; did you mean "cutmix"'),
        ({"base": "mixup", "cutmix_alpha": 1.0}, 'mixup has no option "cutmix_alpha"'),
        ({"base": TokenMixup(num_classes=3)}, "base contains TokenMixup, which has a training step of its own"),
        ({"base": Choice([TokenMixup(num_classes=3)])}, "base contains TokenMixup"),
        ({"base": attnmix.create_method("cutmix", num_classes=4)}, "base has 4 classes, TokenMixup 3"),
        ({"base": None}, "base is None, but must be a method's name"),
        ({"base": "cutmx"}, 'base: no method "cutmx"; did you mean "cutmix"'),
        (
            {"base": attnmix.create_method("cutmix", num_classes=3), "prob": 0.5},
            "base is a method already: its options .'prob'. belong",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TokenMixup(num_classes=3, **options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {"horizontal": 3}, "horizontal is 3, but VisionTransformer has 3 blocks, -3 to 2"),
        ({}, {"vertical": -4}, "vertical is -4, but VisionTransformer has 3 blocks"),
        ({}, {"vertical": 0}, "vertical is 0, but the first block has no earlier block"),
        ({}, {"vertical": -3}, "vertical is -3, but the first block"),
        (
            {"class_token": False, "global_pool": "avg"},
            {"score_pool": "class"},
            'score_pool is "class", but block 1 of VisionTransformer has no class token; use "attention"',
        ),
        ({"patch_drop_rate": 0.5}, {}, "drops 50% of its patches"),
        ({"class_token": False, "global_pool": "avg"}, {"base": "transmix"}, "classifies by no class token"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_is_refused(make_vit, model, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(make_vit(**model), **options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            make_swin,
            {"vertical": 1},
            "vertical=1 does not work on SwinTransformer: its relative position bias.*alone",
        ),
        (
            make_pvt,
            {"vertical": 3},
            "vertical=3 does not work on PyramidVisionTransformerV2: its keys are laid out",
        ),
        (make_cait, {"vertical": -1}, "vertical=-1 does not work on Cait: its heads talk.*vertical=None"),
        (
            lambda: timm.create_model("xcit_nano_12_p16_224", num_classes=NUM_CLASSES, img_size=64, depth=2),
            {"horizontal": 1, "vertical": None},
            "horizontal is 1, but that block of Xcit mixes channels",
        ),
    ],
)
def test_a_family_that_does_not_fit_is_refused_with_a_way_out(make, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(make(), **options)


def test_more_memory_than_tokens_is_an_error(make_vit):
    with pytest.raises(ValueError, match="kappa is 25, but block 0 of VisionTransformer has 24 image tokens"):
        make_task(make_vit(), kappa=25)(*make_batch(2))


def test_gradient_checkpointing_is_refused(make_vit):
    model = make_vit()
    task = make_task(model)
    model.set_grad_checkpointing()
    with pytest.raises(ValueError, match="checkpoints gradients.*switch gradient checkpointing off"):
        task(*make_batch(2))
    with pytest.raises(ValueError, match="checkpoints gradients"):
        make_task(model)
