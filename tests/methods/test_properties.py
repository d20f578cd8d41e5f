"""METHODS, "What a mixer must always keep", searched for counterexamples by hypothesis."""

import functools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import attnmix
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.methods.settings import NAMES, options_for

MODELS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg"},
}
CASES = settings(max_examples=25, deadline=None, derandomize=True, database=None)


@functools.cache
def model_of(kind):
    return tiny_vit(depth=2, **MODELS[kind])


def steps():
    """Strategies for the settings of a task and of a batch."""
    modes = [("batch", "flip"), ("pair", "flip"), ("elem", "flip"), ("elem", "roll"), ("batch", "shuffle")]
    return given(
        kind=st.sampled_from(list(MODELS)),
        batch=st.integers(1, 6),
        prob=st.sampled_from([0.0, 0.5, 1.0]),
        mixup_prob=st.sampled_from([0.0, 0.5, 1.0]),
        mode=st.sampled_from(modes),
        one_class=st.booleans(),
        identical=st.booleans(),
        seed=st.integers(0, 1000),
    )


def make(name, kind, *, prob, mixup_prob, mode, seed):
    options = {"prob": prob, "mixup_prob": mixup_prob, "mode": mode[0], "pairing": mode[1], "seed": seed}
    options["vertical"] = 1  # TokenMixup's, in models of two blocks
    options = options_for(name, lambda: model_of(kind), class_token=kind != "no class token", **options)
    method = attnmix.create_method(name, num_classes=NUM_CLASSES, smoothing=0.0, **options)
    return attnmix.MixTask(model_of(kind), method)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_mixer_must_always_keep(name):
    @CASES
    @steps()
    def check(kind, batch, prob, mixup_prob, mode, one_class, identical, seed):
        task = make(name, kind, prob=prob, mixup_prob=mixup_prob, mode=mode, seed=seed)
        torch.manual_seed(seed)
        images = torch.randn(1 if identical else batch, 3, 16, 24).expand(batch, -1, -1, -1).contiguous()
        labels = torch.zeros(batch, dtype=torch.long) if one_class else torch.arange(batch) % NUM_CLASSES
        before, state = images.clone(), torch.get_rng_state()
        out = task(images, labels)
        mixed, target = out["mixed"], out["target"]

        assert images.equal(before)
        assert torch.get_rng_state().equal(state)
        assert out["loss"].isfinite()
        assert torch.allclose(sum(out["losses"].values()), out["loss"])
        assert torch.allclose(target.sum(dim=1), torch.ones(batch), atol=1e-5)
        assert target.min() >= -1e-6
        assert ((mixed.source_weight >= 0) & (mixed.source_weight <= 1)).all()
        absent = torch.ones(NUM_CLASSES).scatter(0, labels, 0.0).bool()
        if not task.method.own_labels:
            assert not target[:, absent].any()
        if name != "tokenmixup" and not task.method.own_labels:  # which mixes two mixed images' labels once more
            for i in range(batch):
                others = torch.ones(NUM_CLASSES, dtype=torch.bool)
                others[labels[i]] = others[labels[mixed.source_index[i]]] = False
                assert not target[i, others].any()
        if one_class and not task.method.own_labels:
            assert torch.allclose(target, task.method.targets(labels), atol=1e-6)
        if prob == 0.0:
            assert mixed.images is images
            if not task.method.own_labels:
                assert target.equal(task.method.targets(labels))
                assert list(out["losses"]) == ["classification"]
        if mixed.draw.kind == "paste":
            untouched = (mixed.source_map == 0)[:, None].expand_as(images)
            assert mixed.images[untouched].equal(images[untouched])
            if name in ("cutmix", "smmix"):
                assert torch.allclose(mixed.source_weight, mixed.source_map.mean(dim=(1, 2)), atol=1e-6)
        if identical and not task.method.moves_content:
            assert mixed.images.equal(images)

    check()
