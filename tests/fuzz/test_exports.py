import copy
import json
import os

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnmix.commands.sources import find_sources
from attnmix.commands.subjects import open_subject
from attnmix.data import create_evaluation_set
from attnmix.training.export import export_model
from attnmix.training.setup import create_model
from tests.fuzz.trying import attempt, fuzz, mangled, plain, with_other_values
from tests.training.conftest import tiny_recipe

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.fixture
def export(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **SMALL)
    return export_model(model, tmp_path / "model", class_names="abc", crop_pct=1.0)


def opened(folder):
    (source,) = find_sources([str(folder)])
    subject = open_subject(source, device=torch.device("cpu"))
    shown, _ = create_evaluation_set(
        "digits-in-scenes",
        input_size=subject.input_size,
        mean=subject.mean,
        std=subject.std,
        data_options={"test_count": 2},
        **subject.resizing,
    )
    assert shown[0][0].shape == subject.input_size
    return subject


def configure(folder, change):
    path = folder / "config.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def place(**values):
    return lambda told: told["pretrained_cfg"].update(values)


def options(**values):
    return lambda told: told["model_args"].update(values)


ELSEWHERE = {
    "a file": place(file="secret.pth", source="", custom_load=True),
    "an address": place(url="http://127.0.0.1:9/secret.pth", source="timm"),
    "the hub": place(hf_hub_id="nobody/secret", source="hf-hub", custom_load="hf", hf_hub_filename="../secret"),
    "weights": place(state_dict={"a": 1}, source=""),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_weights_from_elsewhere_are_not_read(export, where):
    """timm puts the folder in the place of whatever the configuration says."""
    before = opened(export).model.state_dict()
    configure(export, ELSEWHERE[where])
    after = opened(export).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


CANNOT_BE = {
    "a checkpoint": (options(checkpoint_path="secret.pth"), "unexpected keyword argument 'checkpoint_path'"),
    "another configuration": (options(pretrained_cfg={"file": "secret.pth"}), "multiple values"),
    "over it": (options(pretrained_cfg_overlay={"url": "http://127.0.0.1:9/x", "source": ""}), "multiple values"),
    "a cache": (options(cache_dir="/secret"), "multiple values"),
    "another place": (lambda told: told.update(architecture="hf-hub:nobody/secret"), "Unknown model"),
    "a folder": (lambda told: told.update(architecture="local-dir:/"), "Unknown model"),
    "code": (options(norm_layer="__import__('os').system"), "no model can be made of the config.json"),
    "too much": (options(embed_dim=2**40), "no model can be made of the config.json"),
    "nowhere": (options(device="meta"), "it would have no weights"),
    "names": (lambda told: told.update(label_names=5), "no model can be made of the config.json"),
    "numbered names": (
        lambda told: told.update(label_names={"a": "b"}),
        "no model can be made of the config.json",
    ),
    "mean": (place(mean=[float("nan")] * 3), r"its config.json says mean \(?\[?nan"),
    "words for a mean": (place(mean="abc"), "its config.json says mean"),
    "std": (place(std=[0, 0, 0]), "its config.json says std"),
    "crop": (place(crop_pct=1e-9), "its config.json says crop_pct 1e-09, which cannot be"),  # of 10^22 pixels
    "interpolation": (place(interpolation="evil"), "interpolation 'evil'; known: bicubic"),
}


@pytest.mark.parametrize("what", CANNOT_BE)
def test_configurations_that_cannot_be(export, what):
    change, message = CANNOT_BE[what]
    configure(export, change)
    with pytest.raises(ValueError, match=message):
        opened(export)


def test_configurations_of_any_values(export):
    path = export / "config.json"
    told = json.loads(path.read_text())
    small = st.one_of(plain, st.sampled_from([0, -1, 3, [16, 16], "token", "avg", True]))

    @fuzz(70)
    @given(text=st.one_of(with_other_values(told, small).map(json.dumps), mangled(path.read_bytes())))
    def check(text):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        attempt("exports: configurations", lambda: opened(export))

    check()


def test_damaged_weights(export):
    """safetensors checks that the file is whole; the values themselves have no checksum."""
    path = export / "model.safetensors"
    whole = path.read_bytes()
    recipe = tiny_recipe(init=str(path), model_options=SMALL)
    recipe.model_options.pop("num_classes")

    @fuzz(70)
    @given(data=st.one_of(mangled(whole), mangled(whole[:2000]), st.binary(max_size=60)))
    def check(data):
        path.write_bytes(data)
        attempt("exports: weights", lambda: opened(export), names=str(export))
        attempt("exports: init", lambda: create_model(recipe, num_classes=3), names=str(path))

    check()


class Code:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pth"])
def test_pickled_weights_run_nothing(export, name):
    """timm takes them where there is no model.safetensors."""
    weights = torch.load(_saved(export), weights_only=True)
    (export / "model.safetensors").unlink()
    torch.save({**weights, "x": Code()}, export / name)
    message = attempt("exports: pickles", lambda: opened(export))[1]
    assert "weights_only=True blocked loading this checkpoint" in message
    torch.save(weights, export / name)
    assert opened(export).class_names == ["a", "b", "c"]


def _saved(export):
    path = export.parent / "weights.pt"
    torch.save(copy.deepcopy(opened(export).model.state_dict()), path)
    return path
