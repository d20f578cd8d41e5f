import pytest
import timm
import torch

import attnmix
from attnmix.methods.mergemix import rescaled_weight
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.test_transmix import NO_CLASS_TOKEN
from tests.mixing.test_token_merging import merged_lists


def make_task(model, name="mergemix", **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method(name, num_classes=model.num_classes, **options))


def make_batch(batch=4, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def keys_of(model, images, block=-1):
    """Keys `[B, N, D]` of the image tokens, mean over heads, by an ordinary hook."""
    caught = []
    attention = model.blocks[block].attn
    hook = attention.qkv.register_forward_hook(lambda module, inputs, output: caught.append(output.detach()))
    with torch.no_grad():
        model(images)
    hook.remove()
    batch, count, _ = caught[0].shape
    keys = caught[0].reshape(batch, count, 3, attention.num_heads, -1)[:, :, 1]
    return keys.mean(dim=2)[:, model.num_prefix_tokens :]


def slow_mask(scores, features, taken, *, merged, rounds, how):
    """Which tokens of one image are pasted, in lists: match, merge, recover, take the best."""
    count = len(scores)
    listed, places = features, [[n] for n in range(count)]
    total = int(merged * count)
    for number in range(rounds):
        now = total * (number + 1) // rounds - total * number // rounds
        listed, places = merged_lists(listed, places, now)
    recovered = [0.0] * count
    for place in places:
        value = sum(scores[n] for n in place) / (len(place) if how == "mean" else 1)
        for n in place:
            recovered[n] = value
    order = sorted(range(count), key=lambda n: (-recovered[n], n))
    return [n in order[:taken] for n in range(count)]


@pytest.mark.parametrize("batch", [1, 3, 6])
@pytest.mark.parametrize(
    ("how", "match", "block"), [("sum", "keys", -1), ("mean", "keys", 1), ("sum", "tokens", -1)]
)
def test_masks_equal_the_slow_reference(make_vit, batch, how, match, block):
    model = make_vit().eval()
    task = make_task(model, rounds=3, group_score=how, match=match, block=block, mode="elem")
    images, labels = make_batch(batch)
    scores = references.class_attention(model, images, block=block).double()
    with torch.no_grad():
        final = model.forward_features(images)[:, 1:]
    features = (final if match == "tokens" else keys_of(model, images, block)).double().tolist()
    for _ in range(3):
        mixed = task.mix(images, labels)
        for i, source in enumerate(mixed.source_index.tolist()):
            ours = mixed.source_mask[i, ::4, ::4].flatten()
            wanted = slow_mask(
                scores[source].tolist(), features[source], int(ours.sum()), merged=0.5, rounds=3, how=how
            )
            assert ours.tolist() == wanted
            assert mixed.source_mask[i].equal(ours.view(4, 6).repeat_interleave(4, 0).repeat_interleave(4, 1))


def test_the_share_drawn_is_taken_in_whole_tokens(make_vit):
    task, plain = make_task(make_vit()), make_task(make_vit(), "cutmix")
    for _ in range(4):
        mixed = task.mix(*make_batch())
        plain.method.sampler.kind(plain.method.generator)
        share = float(plain.method.sampler.pasted_share(4, plain.method.generator)[0])
        assert mixed.source_weight.tolist() == pytest.approx([int(share * 24) / 24] * 4)


def test_without_merging_the_best_tokens_are_pasted(make_vit):
    model = make_vit().eval()
    images, labels = make_batch()
    mixed = make_task(model, merged=0.0).mix(images, labels)
    scores = references.class_attention(model, images)[mixed.source_index]
    mask = mixed.source_mask[:, ::4, ::4].flatten(1)
    best = scores.topk(int(mask[0].sum()), dim=1).indices
    assert mask.equal(torch.zeros_like(mask).scatter(1, best, True))


def test_like_tokens_are_pasted_together(make_vit):
    # attention says nothing, and all tokens of the left half are one token: it goes first, as the largest group
    model = make_vit().eval()
    torch.nn.init.zeros_(model.pos_embed)
    torch.nn.init.zeros_(model.blocks[-1].attn.qkv.weight.data[: model.embed_dim])
    images, labels = make_batch()
    images[:, :, :, :12] = 0.5
    for _ in range(5):
        task = make_task(model, seed=4, match="tokens", merged=0.5)
        mask = task.mix(images, labels).source_mask
        outside = mask[:, :, 12:].sum(dim=(1, 2))
        full = mask[:, :, :12].all(dim=2).all(dim=1)
        assert ((outside == 0) | full).all()


@pytest.mark.parametrize(
    "options",
    [
        {"merged": 0.0},
        {"rounds": 1},
        {"match": "tokens"},
        {"group_score": "mean"},
        {"attention": "image"},
        {"attention": "random"},
        {"block": 0},
        {"cutmix_alpha": 0.2},
    ],
)
def test_every_option_changes_the_masks(make_vit, options):
    model, (images, labels) = make_vit(), make_batch()
    masks = [
        torch.stack([task.mix(images, labels).source_mask for _ in range(4)])
        for task in (make_task(model), make_task(model, **options))
    ]
    assert not masks[0].equal(masks[1])


def test_a_provider_looks_instead_on_its_own_grid(make_vit):
    model, provider = make_vit(), make_vit(patch_size=8, depth=2).eval()
    images, labels = make_batch()
    mixed = make_task(model, merged=0.0, provider=provider).mix(images, labels)
    taken = int(mixed.source_mask[0, ::4, ::4].sum())
    attention = references.class_attention(provider, images).view(4, 2, 3)
    scores = (attention / 4).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)[mixed.source_index]
    for i in range(4):
        kept = scores[i][mixed.source_mask[i, ::4, ::4].flatten()].sum()
        assert float(kept) == pytest.approx(float(scores[i].topk(taken).values.sum()), abs=1e-6)
    with_groups = make_task(model, provider=provider).mix(images, labels)
    assert with_groups.source_mask.shape == (4, 16, 24)


@pytest.mark.parametrize("name", ["transmix", "tl-align", "rescaled"])
def test_labels_of_other_policies(make_vit, name):
    model, (images, labels) = make_vit(), make_batch()
    area, other = make_task(model)(images, labels), make_task(model, label=name)(images, labels)
    if name != "rescaled":
        assert other["mixed"].images.equal(area["mixed"].images)
    assert not torch.allclose(area["target"], other["target"], atol=1e-4)


def test_rescaled_weights_fill_the_batch_from_0_to_1(make_vit):
    noise, share = torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([0.5, 0.25, 0.125])
    for kept in (0.1, 0.5, 1.0):  # the paper's mean, which the scaling takes off
        drawn = [kept + s * z for s, z in zip(share.tolist(), noise.tolist(), strict=True)]
        wanted = [(value - min(drawn)) / (max(drawn) - min(drawn) + 1e-5) for value in drawn]
        assert rescaled_weight(noise, share).tolist() == pytest.approx(wanted, abs=1e-6)
    # one share for the whole batch: nothing of the deviation is left
    same = rescaled_weight(noise, torch.full((3,), 0.3))
    assert same.tolist() == pytest.approx([0, 0.5, 1], abs=1e-3)
    out = make_task(make_vit(), label="rescaled", smoothing=0.0)(*make_batch())
    weight = out["mixed"].source_weight
    assert weight.min() == 0
    assert weight.max() > 0.999
    assert make_task(make_vit(), label="rescaled").mix(*make_batch(1)).source_weight.tolist() == [0]


def test_the_clean_forward_is_without_gradient_and_as_at_inference(make_vit):
    model = make_vit(proj_drop_rate=0.5).train()
    task = make_task(model, seed=2)
    images, labels = make_batch()
    state = torch.get_rng_state()
    first = task.mix(images, labels)
    assert torch.get_rng_state().equal(state)  # dropout drew nothing
    assert model.training
    assert not first.images.requires_grad
    assert make_task(model, seed=2).mix(images, labels).images.equal(first.images)


def test_an_early_block_ends_the_clean_forward(make_vit):
    model = make_vit()
    ran = []
    task = make_task(model, block=0)
    task.mix(*make_batch())  # warm
    original = model.blocks[2].forward
    model.blocks[2].forward = lambda *args, **kwargs: ran.append(1) or original(*args, **kwargs)
    task.mix(*make_batch())
    assert ran == []
    make_task(model, block=0, match="tokens").mix(*make_batch())
    assert ran == [1]


def test_a_choice_with_cutmix_works_and_so_does_tokenmixup_on_top(make_vit):
    images, labels = make_batch()
    both = make_task(make_vit(), "mergemix+cutmix")
    assert len({round(both(images, labels)["loss"].item(), 4) for _ in range(6)}) > 1
    over = make_task(make_vit().train(), "tokenmixup", base="mergemix", horizontal=1, vertical=None, rho=1.0)
    plain = make_task(make_vit(), "mergemix")
    for _ in range(3):
        assert over(images, labels)["target"].equal(plain(images, labels)["target"])


@pytest.mark.parametrize("channels", [1, 4])
def test_models_of_other_channels_are_bound_and_mixed(make_vit, channels):
    images, labels = torch.randn(4, channels, 16, 24), torch.arange(4) % NUM_CLASSES
    out = make_task(make_vit(in_chans=channels))(images, labels)
    assert out["loss"].isfinite()
    assert out["mixed"].source_mask.any()


def test_swin_needs_final_tokens_to_match(make_vit):
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=(32, 64),
        num_classes=NUM_CLASSES,
        embed_dim=8,
        depths=(1, 1),
        num_heads=(1, 2),
        window_size=4,
    )
    with pytest.raises(ValueError, match='not one for each final token: use match="tokens"'):
        make_task(swin, attention="image")
    out = make_task(swin, attention="image", match="tokens")(*make_batch(4, (32, 64)))
    assert out["loss"].isfinite()
    assert out["mixed"].source_mask[:, ::8, ::8].flatten(1).sum(dim=1).unique().numel() == 1


def test_keys_of_attention_that_is_spelled_out_cannot_be_seen(make_vit):
    model = make_vit()
    for block in model.blocks:
        block.attn.fused_attn = False
    with pytest.raises(ValueError, match='spells its attention out.*use match="tokens"'):
        make_task(model).mix(*make_batch())
    assert make_task(model, match="tokens").mix(*make_batch()).source_mask.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "scaled"}, 'label is "scaled", but must be one of rescaled, area'),
        ({"match": "values"}, 'match is "values"'),
        ({"group_score": "max"}, 'group_score is "max"'),
        ({"rounds": 0}, "rounds is 0, but must be a whole number"),
        ({"rounds": True}, "rounds is True, but must be a whole number"),
        ({"block": True}, "block is True, but must be a whole number"),
        ({"merged": -0.1}, "merged is -0.1"),
        ({"merged": 0.8, "rounds": 3}, "merged is 0.8, but must be a share .* from 0 to 0.75.*take more rounds"),
        ({"attention": "head"}, 'attention is "head"'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("mergemix", num_classes=3, **options)


def test_a_model_without_class_row_is_refused_with_a_way_out(make_vit):
    with pytest.raises(ValueError, match='MergeMix could read; use attention="image"'):
        make_task(make_vit(**NO_CLASS_TOKEN))
