import copy
import math

import pytest
import torch
from torch import nn

import attnmix
from attnmix.methods.automix import AutoMix
from attnmix.methods.choice import Choice
from attnmix.methods.mix_block import MixBlock, area_loss, pair_scores, upsampled_mask
from attnmix.methods.moving_average import MovingAverage
from tests import references
from tests.backbone import families
from tests.conftest import NUM_CLASSES, tiny_vit

GRID, SIZE = (4, 6), (16, 24)


def make_task(model, *, lively=True, **options):
    """A task whose Mix Block makes masks that differ from place to place."""
    task = attnmix.MixTask(model, AutoMix(num_classes=NUM_CLASSES, **options))
    if lively:
        enliven(task)
    return task


def enliven(task):
    generator = torch.Generator().manual_seed(7)
    for module in task.method.modules():
        if isinstance(module, MixBlock):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.4, generator=generator)


def make_batch(batch=4):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, *SIZE, generator=generator), torch.arange(batch) % NUM_CLASSES


def detached(parameters):
    return [parameter.detach().clone() for parameter in parameters]


# ---- the slow reference: one pair, one place at a time ----


def tokens_into(model, images, block):
    """Image tokens that go into a block of a timm ViT in evaluation mode."""
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(images))
        for earlier in model.blocks[:block]:
            tokens = earlier(tokens)
    return tokens[:, model.num_prefix_tokens :]


def slow_mask(mix_block, target, source, ratio):
    """The source's share of every pixel `[H][W]`, of one pair's features `[N, D]`."""

    def linear(layer, feature, share):
        given = [*feature.tolist(), share]
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [bias + sum(w * g for w, g in zip(weights, given, strict=True)) for weights, bias in rows]

    queries = [linear(mix_block.embed, feature, 1 - ratio) for feature in target]
    keys = [linear(mix_block.embed, feature, ratio) for feature in source]
    values = [linear(mix_block.value, feature, ratio)[0] for feature in source]
    shares = []
    for query in queries:
        above = below = 0.0
        for key, value in zip(keys, values, strict=True):
            likeness = math.exp(sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query)))
            above += likeness * value
            below += likeness
        shares.append(1 / (1 + math.exp(-above / below)))
    return [[shares[row // 4 * GRID[1] + column // 4] for column in range(SIZE[1])] for row in range(SIZE[0])]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
def test_a_step_equals_the_slow_reference(batch, options):
    model = tiny_vit(**options)
    task = make_task(
        model, mode="elem", pairing="roll", mixup_margin=0.3, block=2, area_margin=0.02, area_weight=0.5
    )
    method = task.method
    images, labels = make_batch(batch)
    targets = method.targets(labels)
    tokens = tokens_into(model, images, 2)
    plan = method.plan(task.view, images, labels)
    run = method.run(task.view, plan)
    losses = method.losses(task.view, plan, run, targets)

    mixed, guide = plan.mixed, plan.guide
    generation, area, plain = 0.0, 0.0, 0
    for i in range(batch):
        partner, ratio = int(mixed.source_index[i]), float(mixed.source_weight[i])
        assert partner == (i - 1) % batch
        mask = torch.tensor(slow_mask(method.mix_block, tokens[i], tokens[partner], ratio))
        if min(ratio, 1 - ratio) <= 0.3:
            mask, plain = torch.full(SIZE, ratio), plain + 1
        assert torch.allclose(mixed.source_share[i], mask, atol=1e-5)
        assert torch.allclose(mixed.images[i], (1 - mask) * images[i] + mask * images[partner], atol=1e-4)

        partner, ratio = int(guide.partners[i]), float(guide.source_weight[i])
        mask = torch.tensor(slow_mask(method.mix_block, tokens[i], tokens[partner], ratio))
        logits = model((1 - mask) * images[i : i + 1] + mask * images[partner : partner + 1])[0]
        label = ratio * targets[partner] + (1 - ratio) * targets[i]
        generation += references.cross_entropy(logits, label) / batch
        area += max(abs(float(mask.mean()) - ratio) - 0.02, 0) / batch
    assert batch == 1 or 0 < plain < batch
    clean = torch.stack([references.cross_entropy(model(images)[i], targets[i]) for i in range(batch)]).mean()
    assert losses["generation"].item() == pytest.approx(generation.item(), abs=1e-5)
    assert losses["area"].item() == pytest.approx(0.5 * area, abs=1e-6)
    assert area > 0
    assert losses["clean"].item() == pytest.approx(clean.item(), abs=1e-5)


def test_ratios_within_the_margin_are_mixup():
    task = make_task(tiny_vit(), mixup_margin=0.5, mode="elem")
    images, labels = make_batch()
    mixed = task(images, labels)["mixed"]
    for i in range(4):
        weight = mixed.source_weight[i]
        assert torch.allclose(mixed.images[i], (1 - weight) * images[i] + weight * images[3 - i], atol=1e-6)


def test_a_flat_mix_block_makes_no_difference_between_places():
    task = make_task(tiny_vit(), lively=False, mixup_margin=0.0)
    nn.init.zeros_(task.method.mix_block.value.weight)
    assert task(*make_batch())["mixed"].source_share.eq(0.5).all()


@pytest.mark.parametrize("value", [0.7, -2.0])
def test_a_constant_value_makes_a_constant_mask(value):
    task = make_task(tiny_vit(), mixup_margin=0.0, mode="elem")
    nn.init.zeros_(task.method.mix_block.value.weight)
    nn.init.constant_(task.method.mix_block.value.bias, value)
    share = task(*make_batch())["mixed"].source_share
    assert torch.allclose(share, torch.full_like(share, 1 / (1 + math.exp(-value))), atol=1e-6)


def test_places_read_the_other_images_values_by_likeness():
    # the target's first place is like the source's third, its second like none more than another
    query = torch.tensor([[[60.0, 0.0], [0.0, 0.0]]])
    key = torch.tensor([[[0.0, 9.0], [0.0, -9.0], [9.0, 0.0]]])
    scores = pair_scores(query, key, torch.tensor([[1.0, 2.0, 6.0]]))
    assert torch.allclose(scores, torch.tensor([[6.0, 3.0]]))


# ---- who learns from what ----


def test_each_loss_trains_its_own():
    task = make_task(tiny_vit(), area_margin=0.0)
    model, block = list(task.view.model.parameters()), list(task.method.mix_block.parameters())
    losses = task(*make_batch())["losses"]
    assert list(losses) == ["classification", "clean", "generation", "area"]
    for name, loss in losses.items():
        to_model = torch.autograd.grad(loss, model, retain_graph=True, allow_unused=True) if loss.grad_fn else []
        to_block = torch.autograd.grad(loss, block, retain_graph=True, allow_unused=True)
        if name in ("classification", "clean"):
            assert all(grad is not None for grad in to_model)
            assert not any(grad is not None for grad in to_block)
        else:
            assert not any(grad is not None for grad in to_model)
            assert all(grad is not None and grad.abs().max() > 0 for grad in to_block)


def test_the_models_gradient_takes_the_mask_as_a_constant():
    model = tiny_vit()
    out = make_task(model, mixup_margin=0.0)(*make_batch())
    mixed = out["mixed"].images
    assert not mixed.requires_grad
    logits, unmixed = model(mixed.clone()), model(make_batch()[0])
    targets = make_task(model).method.targets(make_batch()[1])
    loss = nn.functional.cross_entropy(logits, out["target"])
    clean = nn.functional.cross_entropy(unmixed, targets)
    parameters = list(model.parameters())
    for ours, wanted in ((out["losses"]["classification"], loss), (out["loss"], loss + clean)):
        pairs = [torch.autograd.grad(each, parameters, retain_graph=True) for each in (ours, wanted)]
        assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(*pairs, strict=True))


def test_the_mix_block_learns_masks_that_are_easier_to_classify():
    def generation(block=None):
        task = make_task(tiny_vit(), lively=False, clean_weight=0.0, mode="elem")
        if block is not None:
            task.method.mix_block = block
        return sum(task(*make_batch())["losses"]["generation"].item() for _ in range(5))

    task = make_task(tiny_vit(), lively=False, clean_weight=0.0, seed=1)
    optimizer = torch.optim.Adam(task.method.mix_block.parameters(), lr=0.003)
    for _ in range(60):
        optimizer.zero_grad()
        task(*make_batch())["loss"].backward()
        optimizer.step()
    assert generation(task.method.mix_block) < 0.95 * generation()


def test_nothing_of_it_is_in_the_model_that_is_kept():
    model = tiny_vit()
    names = set(model.state_dict())
    task = make_task(model)
    task(*make_batch())["loss"].backward()
    assert task.get_eval_model() is model
    assert set(model.state_dict()) == names
    added = {name for name, _ in task.method.named_parameters()}
    assert added == {f"mix_block.{part}.{kind}" for part in ("embed", "value") for kind in ("weight", "bias")}
    averaged = list(task.method.average.view.model.parameters())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in averaged)


# ---- the moving average ----


def shift(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by


def test_the_average_follows_in_training_steps_alone():
    model = tiny_vit()
    task = make_task(model, momentum=0.75)
    averaged = task.method.average.view.model
    shift(model, 1.0)  # weights that were loaded late
    task(*make_batch())
    wanted = detached(model.parameters())
    assert all(one.equal(two) for one, two in zip(averaged.parameters(), wanted, strict=True))
    for _ in range(3):
        shift(model, 0.5)
        task(*make_batch())
        wanted = [0.75 * old + 0.25 * new for old, new in zip(wanted, model.parameters(), strict=True)]
    assert all(torch.allclose(one, two) for one, two in zip(averaged.parameters(), wanted, strict=True))
    before = detached(averaged.parameters())
    task.mix(*make_batch())
    with torch.no_grad():
        task(*make_batch())
    model.eval()
    task(*make_batch())
    assert all(one.equal(two) for one, two in zip(averaged.parameters(), before, strict=True))
    assert not any(module.training for module in averaged.modules())
    task.train()
    assert not any(module.training for module in averaged.modules())


@pytest.mark.parametrize("fused", [False, True])
def test_the_average_follows_once_for_each_update_of_gathered_gradients(fused):
    """Fused optimizers leave the weights' version counters as they are."""
    model = tiny_vit()
    task = make_task(model, momentum=0.75)
    averaged = task.method.average.view.model
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=0.01, fused=fused)
    wanted = detached(model.parameters())
    for update in range(3):
        if update:
            wanted = [0.75 * old + 0.25 * new for old, new in zip(wanted, model.parameters(), strict=True)]
        kept = []
        for _ in range(3):
            task(*make_batch())["loss"].backward()
            kept.append(detached(averaged.parameters()))
        for ours in kept:
            assert all(torch.allclose(one, two, atol=1e-7) for one, two in zip(ours, wanted, strict=True))
            assert all(one.equal(two) for one, two in zip(ours, kept[0], strict=True))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # nor do gradients tell


def test_a_resumed_average_stays_until_an_update():
    model = tiny_vit()
    average, resumed = (MovingAverage(model, momentum=0.5) for _ in range(2))
    average.follow(model)
    shift(model, 1.0)
    average.follow(model)
    resumed.load_state_dict(average.state_dict())
    resumed.follow(model)
    pairs = zip(average.view.model.parameters(), resumed.view.model.parameters(), strict=True)
    assert all(one.equal(two) for one, two in pairs)
    shift(model, 1.0)
    resumed.follow(model)
    assert not resumed.view.model.head.bias.equal(average.view.model.head.bias)


@pytest.mark.parametrize("seen", ["no tensor", torch.zeros(3)])
def test_a_damaged_state_is_refused(seen):
    average = MovingAverage(tiny_vit(), momentum=0.5)
    with pytest.raises(ValueError, match=r"state is damaged: what it saw are not \d+ numbers"):
        average.set_extra_state({**average.get_extra_state(), "seen": seen})


def test_what_was_seen_moves_with_the_average():
    model = tiny_vit()
    average = MovingAverage(model, momentum=0.0)
    average.follow(model)
    before = detached(average.to("meta").view.model.parameters())
    average.follow(model.to("meta"))  # nothing left on the old device
    assert [each.shape for each in average.view.model.parameters()] == [each.shape for each in before]


def test_a_change_of_any_one_parameter_is_seen():
    model = tiny_vit()
    average = MovingAverage(model, momentum=0.0)
    average.follow(model)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter += 0.5
        average.follow(model)
        assert torch.allclose(average.view.model.get_parameter(name), parameter)


def test_features_and_judgement_are_the_averages():
    images, labels = make_batch()
    stays, goes = (make_task(tiny_vit(), momentum=momentum, clean_weight=0.0) for momentum in (1.0, 0.0))
    for task in (stays, goes):
        task(images, labels)
        shift(task.view.model, 0.3)
    kept, followed = stays(images, labels), goes(images, labels)
    assert not torch.allclose(kept["mixed"].source_share, followed["mixed"].source_share, atol=1e-3)
    assert not torch.allclose(kept["losses"]["generation"], followed["losses"]["generation"])


def test_buffers_are_copied():
    model = nn.ModuleList([tiny_vit()])[0]
    model.register_buffer("counter", torch.tensor(3))
    average = MovingAverage(model, momentum=0.9)
    model.counter += 4
    average.follow(model)
    assert average.view.model.counter == 7


def test_a_half_precision_models_average_keeps_small_steps():
    task = make_task(tiny_vit(), momentum=0.999).to(torch.bfloat16)
    images, labels = make_batch()
    task(images.bfloat16(), labels)
    averaged = task.method.average.view.model
    before = averaged.head.bias.clone()
    for _ in range(3):
        shift(task.view.model, 1.0)
        out = task(images.bfloat16(), labels)
    assert out["losses"]["generation"].isfinite()
    assert averaged.head.bias.dtype == torch.float32
    assert torch.allclose(averaged.head.bias - before, torch.full((NUM_CLASSES,), 0.006), rtol=0.1)


def test_an_error_leaves_the_average_without_hooks():
    average = MovingAverage(tiny_vit(), momentum=0.9)
    block = average.view.blocks[1]
    images = make_batch()[0]
    average.features(images, 1)
    assert not block._forward_pre_hooks
    average.view.model.blocks[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        average.features(images, 1)
    assert not block._forward_pre_hooks


def test_features_end_at_the_block():
    average = MovingAverage(tiny_vit(), momentum=0.9)
    average.view.model.blocks[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    tokens, grid = average.features(make_batch()[0], 1)
    assert tokens.shape == (4, 24, 24)
    assert grid == GRID
    with pytest.raises(ZeroDivisionError):
        average.features(make_batch()[0], 2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_task_takes_the_same_next_step(tmp_path, accumulation, fused):
    def step(task, optimizer):
        optimizer.zero_grad()
        for _ in range(accumulation):
            out = task(*make_batch())
            out["loss"].backward()
        optimizer.step()
        return out

    def trained(seed):
        torch.manual_seed(seed)
        task = make_task(tiny_vit(), lively=False, momentum=0.9, seed=seed)
        return task, torch.optim.SGD([p for p in task.parameters() if p.requires_grad], lr=0.1, fused=fused)

    first = trained(0)
    for _ in range(3):
        step(*first)
    state = {"model": first[0].get_eval_model().state_dict(), **first[0].get_task_state()}
    torch.save(state, tmp_path / "state.pt")
    second = trained(5)
    step(*second)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second[0].get_eval_model().load_state_dict(state["model"])
    second[0].load_task_state(state)
    for _ in range(2):
        one, two = step(*first), step(*second)
        assert one["mixed"].images.equal(two["mixed"].images)
        for name, loss in one["losses"].items():
            assert loss.equal(two["losses"][name])
    averages = (task.method.average.view.model.parameters() for task, _ in (first, second))
    assert all(ours.equal(theirs) for ours, theirs in zip(*averages, strict=True))


def test_a_copied_task_has_an_average_of_its_own():
    task = make_task(tiny_vit(), momentum=0.0)
    twin = copy.deepcopy(task)
    shift(twin.view.model, 1.0)
    twin(*make_batch())
    assert not twin.method.average.view.model.head.bias.equal(task.method.average.view.model.head.bias)


def test_initial_weights_come_from_the_seed_alone():
    def weights(seed, others):
        torch.manual_seed(others)
        return make_task(tiny_vit(), lively=False, seed=seed).method.mix_block.embed.weight

    assert weights(0, 0).equal(weights(0, 1))
    assert not weights(0, 0).equal(weights(1, 0))


# ---- options ----


@pytest.mark.parametrize(
    "options",
    [
        {"block": 0},
        {"block": -1},
        {"upsampling": "bilinear"},
        {"mixup_margin": 0.5},
        {"cutmix_alpha": 0.3},
    ],
)
def test_options_of_the_mask_change_it(options):
    tasks = (make_task(tiny_vit()), make_task(tiny_vit(), **options))
    masks = [torch.stack([task.mix(*make_batch()).source_share for _ in range(3)]) for task in tasks]
    assert not torch.allclose(*masks, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"clean_weight": 0.5}, {"clean"}),
        ({"area_weight": 0.3}, {"area"}),
        ({"area_margin": 0.02}, {"area"}),
        ({"label": "transmix"}, {"classification"}),
        ({"label": "tl-align"}, {"classification"}),
    ],
)
def test_options_of_the_losses_change_them(options, changed):
    base = {"mode": "elem", "cutmix_alpha": 0.3}
    usual, other = (make_task(tiny_vit(), **base, **more)(*make_batch())["losses"] for more in ({}, options))
    assert {name for name in usual if not torch.allclose(usual[name], other[name], rtol=1e-6)} == changed


def test_losses_of_no_weight_are_left_out():
    losses = make_task(tiny_vit(), clean_weight=0.0, area_weight=0.0)(*make_batch())["losses"]
    assert list(losses) == ["classification", "generation"]


def test_the_middle_block_is_read_by_default():
    assert make_task(tiny_vit(depth=12)).method.block == 6
    assert make_task(tiny_vit(depth=1)).method.block == 0


def test_bilinear_masks_pass_smoothly_from_token_to_token():
    scores = torch.randn(2, *GRID)
    for how, levels in (("nearest", 24), ("bilinear", 16 * 24)):
        mask = upsampled_mask(scores, SIZE, how=how)
        assert len(mask[0].unique()) > levels // 2
        assert len(mask[0].unique()) <= levels
    assert torch.allclose(upsampled_mask(scores, GRID, how="bilinear"), torch.sigmoid(scores))


def test_area_within_the_margin_costs_nothing():
    mask = torch.full((2, *SIZE), 0.55)
    assert area_loss(mask, torch.tensor([0.5, 0.6]), margin=0.1) == 0
    assert area_loss(mask, torch.tensor([0.25, 0.95]), margin=0.1).item() == pytest.approx(0.25)


def test_looking_draws_what_training_would():
    looked, stepped = make_task(tiny_vit(), pairing="shuffle"), make_task(tiny_vit(), pairing="shuffle")
    for _ in range(3):
        assert looked.mix(*make_batch()).source_weight.equal(stepped(*make_batch())["mixed"].source_weight)


# ---- together with the rest ----


@pytest.mark.parametrize("name", ["automix+cutmix", "tokenmixup"])
def test_it_works_inside_other_methods(name):
    options = {} if "+" in name else {"base": "automix", "horizontal": 1, "vertical": None, "rho": 0.0, "tau": 9e9}
    method = attnmix.create_method(name, num_classes=NUM_CLASSES, **options)
    task = attnmix.MixTask(tiny_vit(), method)
    enliven(task)
    seen = set()
    for _ in range(8 if isinstance(method, Choice) else 1):
        out = task(*make_batch())
        seen |= set(out["losses"])
        task.zero_grad()
        out["loss"].backward()
        assert all(p.grad is not None for p in task.parameters() if p.requires_grad)
    assert {"classification", "generation"} <= seen


def test_mixup_in_turns_leaves_the_mix_block_idle():
    task = make_task(tiny_vit(), mixup_prob=1.0)
    out = task(*make_batch())
    assert list(out["losses"]) == ["classification"]
    out["loss"].backward()
    assert all(p.grad.eq(0).all() for p in task.method.parameters())


@pytest.mark.parametrize("family", ["siglip", "deit_distilled", "eva02", "cait", "xcit", "pvt", "swin", "hf_swin"])
def test_families_give_features_on_their_own_grid(family):
    model = families.build(family).train()
    task = attnmix.MixTask(model, AutoMix(num_classes=3))
    enliven(task)
    out = task(torch.randn(4, 3, *families.FAMILIES[family].size), torch.tensor([0, 1, 2, 0]))
    out["loss"].backward()
    assert out["mixed"].source_share.std() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.method.parameters())


def test_a_model_that_drops_patches_is_refused():
    with pytest.raises(ValueError, match="drops 50% of its patches"):
        make_task(tiny_vit(patch_drop_rate=0.5))


def test_a_block_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="block is 3, but VisionTransformer has 3 blocks"):
        make_task(tiny_vit(), block=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 1.5}, "block is 1.5, but must be the number of a block"),
        ({"block": True}, "block is True, but must be the number of a block"),
        ({"momentum": 1.5}, "momentum is 1.5, but must be between 0 and 1"),
        ({"clean_weight": -1}, "clean_weight is -1, but must be finite and at least 0"),
        ({"area_weight": math.inf}, "area_weight is inf"),
        ({"area_margin": 2}, "area_margin is 2"),
        ({"mixup_margin": 0.7}, "mixup_margin is 0.7, but must be between 0 and 0.5"),
        ({"upsampling": "cubic"}, 'upsampling is "cubic", but must be one of nearest, bilinear'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("automix", num_classes=3, **options)
