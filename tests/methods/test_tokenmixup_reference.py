"""TokenMixup beside a slow reference: loops and explicit softmax, and other families' saliency."""

import copy
import itertools

import pytest
import torch

from attnmix.methods import tokenmixup as module
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.tokenmixup_tasks import (
    MODELS,
    make_batch,
    make_cait,
    make_pvt,
    make_swin,
    make_task,
)

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
