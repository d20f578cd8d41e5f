"""Teacher or label maps: one of them has to be there, and be of use."""

import re

import pytest
import torch

import attnmix
from attnmix.methods.label_source import check_label_maps
from attnmix.methods.relabel import ReLabel
from attnmix.methods.teacher import score_maps
from attnmix.mixing import LabelMaps
from tests.conftest import NUM_CLASSES, tiny_vit

NAMES = ["tokenmix", "token-labeling", "relabel"]
WAY_OUT = (
    'give it a teacher, teacher= the folder of a run, .*"self"; or train with label maps made by `attnmix maps`'
)


def create(name, **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def with_maps(teacher, images, labels, k=NUM_CLASSES):
    best = score_maps(teacher, images).topk(k, dim=1)
    return LabelMaps(labels, best.indices, best.values)


@pytest.mark.parametrize("name", NAMES)
def test_maps_of_all_classes_do_as_their_teacher(name):
    teacher = tiny_vit(patch_size=8)
    taught = attnmix.MixTask(tiny_vit(), create(name, teacher=teacher, mixup_prob=0.0))
    mapped = attnmix.MixTask(tiny_vit(), create(name, mixup_prob=0.0))
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    maps = with_maps(teacher, images, labels)
    for _ in range(3):
        one, two = taught(images, labels), mapped(images, maps)
        assert torch.allclose(one["target"], two["target"], atol=1e-5)
        assert torch.allclose(one["loss"], two["loss"], atol=1e-5)
    few = mapped(images, with_maps(teacher, images, labels, k=2))
    assert few["loss"].isfinite()
    assert not torch.allclose(few["loss"], taught(images, labels)["loss"], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_with_neither_there_is_nothing_to_learn_from(name):
    method = create(name, mixup_prob=0.0)
    assert method.needs_label_maps
    task = attnmix.MixTask(tiny_vit(), method)
    with pytest.raises(ValueError, match=f"^{name} has no score maps.*: {WAY_OUT}"):
        task(torch.randn(4, 3, 16, 24), torch.arange(4))


@pytest.mark.parametrize("name", NAMES)
def test_where_both_are_there_the_teacher_is_asked(name):
    teacher = tiny_vit(patch_size=8)
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    wrong = with_maps(teacher, torch.randn(4, 3, 16, 24), labels)
    tasks = [attnmix.MixTask(tiny_vit(), create(name, teacher=teacher, mixup_prob=0.0)) for _ in range(2)]
    assert tasks[0](images, labels)["loss"].equal(tasks[1](images, wrong)["loss"])


@pytest.mark.parametrize("name", NAMES)
def test_options_of_a_teacher_need_one(name):
    with pytest.raises(ValueError, match="teacher_options .* need a teacher"):
        create(name, teacher_options={"img_size": 32})


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_teacher_is_found_before_training_and_none_is_made_before(name):
    with pytest.raises(ValueError, match="predicts 9 classes, not 5"):
        attnmix.MixTask(tiny_vit(), create(name, teacher=tiny_vit(num_classes=9)))
    create(name, teacher="no-such-model")  # just to look at it
    with pytest.raises(ValueError, match="teacher 'no-such-model' is neither"):
        attnmix.MixTask(tiny_vit(), create(name, teacher="no-such-model"))


@pytest.mark.parametrize("name", NAMES)
def test_patches_that_are_dropped_are_refused(name):
    with pytest.raises(ValueError, match="drops 50% of its patches"):
        attnmix.MixTask(tiny_vit(patch_drop_rate=0.5), create(name, teacher="self"))


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_changes_what_is_learned(name):
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    losses = []
    for teacher in (tiny_vit(patch_size=8), "self"):
        losses.append(attnmix.MixTask(tiny_vit(), create(name, teacher=teacher, mixup_prob=0.0))(images, labels))
    assert not torch.allclose(losses[0]["loss"], losses[1]["loss"], atol=1e-4)


@pytest.mark.parametrize("name", [*NAMES, "cutmix+relabel", "tokenmix+token-labeling"])
def test_maps_that_are_needed_have_to_be_given(name):
    method = create(name)
    check_label_maps(method, given=True)
    first = name.removeprefix("cutmix+").partition("+")[0]
    with pytest.raises(ValueError, match=f"^{first} has no score maps to learn from: {WAY_OUT}"):
        check_label_maps(method, given=False)
    based = create("tokenmixup", base=name)
    check_label_maps(based, given=True)
    with pytest.raises(ValueError, match="has no score maps to learn from"):
        check_label_maps(based, given=False)


def test_maps_that_nobody_looks_at_are_refused():
    for name in ("cutmix", "mixup+cutmix", "tokenmixup"):
        check_label_maps(create(name), given=False)
        with pytest.raises(
            ValueError, match=f"label maps are given, but {re.escape(name)} takes none: leave them out"
        ):
            check_label_maps(create(name), given=True)
    taught = create("relabel", teacher="self")
    check_label_maps(taught, given=False)
    with pytest.raises(
        ValueError, match="label maps are given, but relabel asks its teacher: leave out one of the two"
    ):
        check_label_maps(taught, given=True)


class OfOnesOwn(ReLabel):
    pass


def test_a_method_that_is_in_no_table_is_called_by_its_class():
    with pytest.raises(ValueError, match="^OfOnesOwn has no score maps"):
        check_label_maps(OfOnesOwn(num_classes=3), given=False)


def test_an_ablation_without_scores_needs_nobody_and_takes_no_maps():
    for name, options in (("tokenmix", {"target": "area"}), ("token-labeling", {"dense_weight": 0.0})):
        for given in ({}, {"teacher": "no-such-model"}):
            method = create(name, **options, **given)
            assert not method.needs_label_maps
            check_label_maps(method, given=False)
            message = f"label maps are given, but {name} looks at none with its options: leave them out"
            with pytest.raises(ValueError, match=message):
                check_label_maps(method, given=True)
        check_label_maps(create(f"relabel+{name}", **options), given=True)  # the other member reads them
        task = attnmix.MixTask(tiny_vit(), create(name, teacher="no-such-model", **options))  # never made
        task(torch.randn(4, 3, 16, 24), torch.arange(4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_other_labels_compose(name, label):
    weights = []
    for options in ({}, {"label": label}):
        task = attnmix.MixTask(tiny_vit(), create(name, teacher="self", mixup_prob=0.0, **options))
        out = task(torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0)), torch.arange(4))
        assert out["loss"].isfinite()
        weights.append(out["mixed"].source_weight)
    assert not torch.allclose(*weights, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_in_turns_with_another_and_under_tokenmixup(name):
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    task = attnmix.MixTask(tiny_vit(), create(f"cutmix+{name}", teacher="self"))
    tokens = attnmix.create_method(
        "tokenmixup", num_classes=NUM_CLASSES, base=name, teacher="self", horizontal=1, vertical=2, tau=torch.inf
    )
    for each in (task, attnmix.MixTask(tiny_vit(), tokens)):
        for _ in range(4):
            out = each(images, labels)
            assert torch.allclose(out["target"].sum(dim=1), torch.ones(4), atol=1e-5)
            assert out["loss"].isfinite()


def test_a_teachers_labels_are_the_target_under_tokenmixup_too():
    images, labels = torch.randn(4, 3, 16, 24), torch.zeros(4, dtype=torch.long)
    options = {"teacher": "self", "prob": 0.0}
    for base in ("relabel", "relabel+relabel"):
        method = create("tokenmixup", base=base, horizontal=1, vertical=None, **options)
        out = attnmix.MixTask(tiny_vit(), method)(images, labels)
        wanted = score_maps(tiny_vit(), images).mean(dim=(2, 3)).softmax(dim=1)
        assert torch.allclose(out["target"], wanted, atol=1e-5)  # which are not smoothed


@pytest.mark.parametrize(
    ("name", "options"), [("relabel", {}), ("token-labeling", {"class_label": "teacher"}), ("tokenmix", {})]
)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 2, NUM_CLASSES]), r"label 5 is outside 0\.\.4"),
        (torch.tensor([0, 1, -1, 2]), r"label -1 is outside 0\.\.4"),
        (torch.zeros(4, 1, dtype=torch.long), r"labels of shape \(4, 1\)"),
        (torch.zeros(4), r"labels of shape \(4,\) and type torch.float32"),
        (torch.full((4, 9), 1 / 9), "soft labels have 9 classes, the method has 5"),
    ],
)
def test_a_truth_that_cannot_be_is_found_though_a_teacher_labels(name, options, labels, message):
    task = attnmix.MixTask(tiny_vit(), create(name, teacher="self", **options))
    with pytest.raises(ValueError, match=message):
        task(torch.randn(4, 3, 16, 24), labels)
