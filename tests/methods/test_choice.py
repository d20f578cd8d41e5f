import pytest
import torch

import attnmix
from attnmix.methods import Choice


def make(*names, weights=None, seed=0):
    return Choice([attnmix.create_method(n, num_classes=5) for n in names], weights, seed=seed)


def kinds(method, model, steps=60):
    task = attnmix.MixTask(model, method)
    images, labels = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])
    return [type(task.mix(images, labels).draw).__name__ for _ in range(steps)]


def test_members_are_drawn_by_weight(make_vit):
    model = make_vit()
    assert set(kinds(make("mixup", "cutmix", weights=[1, 0]), model)) == {"Blend"}
    drawn = kinds(make("mixup", "cutmix", "none", weights=[1, 2, 1]), model, 400)
    assert drawn.count("Paste") / 400 == pytest.approx(0.5, abs=0.07)
    assert drawn.count("Keep") / 400 == pytest.approx(0.25, abs=0.07)


def test_all_draws_come_from_one_generator(make_vit):
    model = make_vit()
    method = make("mixup", "cutmix", seed=5)
    assert all(member.generator is method.generator for member in method.methods)
    first = kinds(method, model)
    method.generator.manual_seed(5)
    assert kinds(method, model) == first
    assert kinds(make("mixup", "cutmix", seed=6), model) != first


def test_extra_parameters_of_a_member_are_trained(make_vit):
    smmix = attnmix.create_method("smmix", num_classes=5, token_head=True)
    task = attnmix.MixTask(make_vit(), Choice([smmix, attnmix.create_method("none", num_classes=5)]))
    assert any("token_head" in name for name, _ in task.get_trainable_module().named_parameters())


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1], "weights .1.0. do not fit 2 methods"), ([-1, 2], "do not fit"), ([0, 0], "do not fit")],
)
def test_wrong_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        make("mixup", "cutmix", weights=weights)


def test_wrong_members_are_named():
    with pytest.raises(ValueError, match="at least one method"):
        Choice([])
    with pytest.raises(ValueError, match="different class counts: .3, 5."):
        Choice([attnmix.create_method("none", num_classes=n) for n in (5, 3)])
