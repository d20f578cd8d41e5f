import json

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from timm.data import create_transform, resolve_model_data_config

from attnmix.training import train
from attnmix.training.checkpoint import load_checkpoint
from attnmix.training.export import FILES, export_model

OPTIONS = {"img_size": 48, "patch_size": 6, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", OPTIONS),
        ("deit_tiny_distilled_patch16_224", {"img_size": (32, 64), "depth": 2, "num_classes": 3}),
        ("cait_xxs24_224", {"img_size": 32, "depth": 2, "num_classes": 3}),
    ],
)
def test_an_exported_model_gives_the_same_logits(tmp_path, name, options):
    model = timm.create_model(name, **options).eval()
    export_model(model, tmp_path / "model", class_names=["a", "b", "c"], crop_pct=1.0)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}
    again = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    side = options["img_size"]
    images = torch.randn(2, 3, *(side if isinstance(side, tuple) else (side, side)))
    with torch.no_grad():
        assert torch.equal(model(images), again(images))


def test_the_configuration_says_how_to_use_it(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **OPTIONS)
    export_model(model, tmp_path, class_names=["a", "b", "c"], crop_pct=0.95, crop_mode="squash")
    assert json.loads((tmp_path / "config.json").read_text())["label_names"] == ["a", "b", "c"]
    config = resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path}"))
    assert config["input_size"] == (3, 48, 48)
    assert (config["crop_pct"], config["crop_mode"], config["interpolation"]) == (0.95, "squash", "bicubic")
    assert create_transform(**config, is_training=False)


def test_the_card_lies_beside_the_weights_and_disturbs_no_one(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **OPTIONS).eval()
    export_model(model, tmp_path, class_names=["ä", "b", "c"], crop_pct=1.0, card="# ä\n")
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# ä\n"
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert torch.equal(again.head.weight, model.head.weight)
    assert again.pretrained_cfg["label_names"] == ["ä", "b", "c"]  # as the card says


def test_a_run_exports_a_card_of_what_it_measured(tiny, tmp_path):
    recipe = tiny(init=None, ema=0.5)
    result = train(recipe, tmp_path / "mine", progress=False)
    text = (tmp_path / "mine" / "model" / "README.md").read_text(encoding="utf-8")
    first = ModelCard(text).data.eval_results[0]
    assert first.metric_value == round(result.top1 / 100, 4)
    assert "on the 20 images of `digits-in-scenes`" in text
    assert "attnmix train recipe.yaml --out runs/mine" in text
    assert "Of the moving average of the weights" in text
    assert str(tmp_path) not in text


def test_the_average_is_exported_where_there_is_one(tiny, tmp_path):
    train(tiny(ema=0.5), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    again = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).state_dict()
    assert all(torch.equal(again[name], value) for name, value in saved["ema"].items())


def test_a_run_exports_how_it_was_evaluated(tiny, tmp_path):
    train(tiny(augment={"crop_pct": None, "interpolation": "bilinear"}), tmp_path, progress=False)
    config = resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path / 'model'}"))
    assert (config["crop_pct"], config["crop_mode"], config["interpolation"]) == (1.0, "squash", "bilinear")


def test_what_a_method_added_is_not_exported(tiny, tmp_path):
    train(tiny(method="smmix", method_options={"token_head": True}), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    again = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).state_dict()
    inside = {
        name.removeprefix("model."): v for name, v in saved["trainable"].items() if name.startswith("model.")
    }
    assert len(inside) < len(saved["trainable"])
    assert again.keys() == inside.keys()
    assert all(torch.equal(again[name], value) for name, value in inside.items())
