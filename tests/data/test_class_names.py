import pkgutil

import pytest
import timm
import torch
from timm.data import ImageNetInfo
from timm.models import PretrainedCfg
from torch import nn

from attnmix.data import Digits
from attnmix.data.class_names import match_classes, model_class_names
from attnmix.training.export import export_model
from tests.conftest import tiny_vit

SYNSETS = ImageNetInfo("imagenet-1k").label_names()


def timms(name):
    return pkgutil.get_data("timm.data", f"_info/{name}").decode().split()


def match(of_data, of_model, num_classes=None):
    return match_classes(of_data, of_model, num_classes=num_classes or len(of_model), where="'photos'")


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_synsets_of_other_sets_meet_timms_numbers(name):
    columns = match(timms(f"{name}_synsets.txt"), SYNSETS)
    assert columns.tolist() == [int(number) for number in timms(f"{name}_indices.txt")]
    assert columns.dtype == torch.int64


def test_the_same_names_in_order_need_no_columns():
    assert match(SYNSETS, SYNSETS) is None
    assert match(Digits.class_names, [str(digit) for digit in range(10)]) is None
    assert match(("a", "b"), ["a", "b"]) is None


def test_another_order_and_a_part():
    assert match(["dog", "cat"], ["cat", "cow", "dog"]).tolist() == [2, 0]
    assert match(["7", "1"], [str(digit) for digit in range(10)]).tolist() == [7, 1]


def test_unknown_names_are_fine_where_the_numbers_agree():
    assert match(["a", "b"], [], num_classes=2) is None
    with pytest.raises(ValueError, match="'photos' has 2 classes and the model 5 outputs of unknown names"):
        match(["a", "b"], [], num_classes=5)


def test_classes_that_the_model_lacks():
    with pytest.raises(ValueError, match="2 of its 3 classes are not among the model's 4: catt, mouse") as error:
        match(["catt", "dog", "mouse"], ["cat", "dog", "cow", "elk"])
    assert "'photos'" in str(error.value)
    assert "the model's are cat, dog, cow, elk; did you mean 'cat'?" in str(error.value)
    with pytest.raises(ValueError, match="9 of its 9 .*: a0, a1, a2, a3, a4, [.]{3}; the model's are b, c$"):
        match([f"a{number}" for number in range(9)], ["b", "c"])


def test_synsets_are_asked_for_and_none_is_suggested():
    with pytest.raises(
        ValueError, match=r"tench; .* n01440764, .*expected class folders named by ImageNet synsets"
    ):
        match(["tench"], SYNSETS)
    with pytest.raises(ValueError, match="n99999999; .*, ...$"):
        match(["n99999999"], SYNSETS)


def test_names_that_do_not_tell_one_class_from_another():
    with pytest.raises(ValueError, match="several classes of 'photos' are named cat: expected another name"):
        match(["cat", "cat"], ["cat", "dog"])
    with pytest.raises(ValueError, match="several outputs of the model are named crane: expected another name"):
        match(["crane"], ["crane", "dog", "crane"])
    assert match(["dog"], ["crane", "dog", "crane"]).tolist() == [1]  # it is not asked for
    assert match(["crane", "crane"], ["crane", "crane"]) is None


def test_another_number_of_names_than_outputs():
    with pytest.raises(ValueError, match="2 names for the model's 3 outputs"):
        match(["a"], ["a", "b"], num_classes=3)


# --- What a model says of its outputs


def test_exports_carry_their_names(tmp_path):
    model = timm.create_model("test_vit", num_classes=3)
    export_model(model, tmp_path, class_names=["cat", "dog", "elk"], crop_pct=1.0)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert model_class_names(again) == ["cat", "dog", "elk"]
    again.reset_classifier(7)
    assert model_class_names(again) == []  # other outputs by now


ELEVEN = list("kjihgfedcba")  # 10 comes after 2, and no name before the next in the alphabet
BY_NUMBER = dict(sorted(enumerate(ELEVEN), reverse=True))


@pytest.mark.parametrize(
    "told",
    [ELEVEN, tuple(ELEVEN), BY_NUMBER, {str(number): name for number, name in BY_NUMBER.items()}],
    ids=["list", "tuple", "dict", "JSON"],
)
@pytest.mark.parametrize("form", [lambda **told: told, PretrainedCfg], ids=["dict", "PretrainedCfg"])
def test_names_in_any_form(told, form):
    model = tiny_vit(num_classes=11)
    model.pretrained_cfg = form(label_names=told)
    assert model_class_names(model) == ELEVEN


@pytest.mark.parametrize(
    ("num_classes", "subset"), [(1000, "imagenet-1k"), (11821, "imagenet-12k"), (21843, "imagenet-21k-goog")]
)
def test_timm_models_of_imagenets_classes(num_classes, subset):
    model = timm.create_model("test_vit", num_classes=num_classes)
    assert model_class_names(model) == ImageNetInfo(subset).label_names()


def test_models_that_say_nothing():
    assert model_class_names(tiny_vit(num_classes=5)) == []
    assert model_class_names(nn.Linear(3, 1000)) == []


@pytest.mark.parametrize("separator", [", ", " / "])
def test_imagenet_by_its_words_is_imagenet(separator):
    info = ImageNetInfo()
    words = [separator.join(name.split(", ")) for name in info.label_descriptions()]
    assert match_classes(words, info.label_names(), num_classes=1000, where="x") is None  # two cranes, in order
    some = match_classes(words[5:2:-1], info.label_names(), num_classes=1000, where="x")
    assert some.tolist() == [5, 4, 3]


def test_words_of_two_classes_name_neither():
    with pytest.raises(ValueError, match="'crane' is the name of 2 of the model's classes"):
        match_classes(["crane"], ImageNetInfo().label_names(), num_classes=1000, where="x")
