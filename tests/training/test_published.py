"""The papers' recipes: every one is read, builds its model, and trains two steps of a shrunk one."""

import numpy as np
import pytest
import torch
from PIL import Image

import attnmix
from attnmix import cli
from attnmix.training import known_overlays, known_recipes, load_recipe, train
from attnmix.training.setup import create_model

OWN = ("folder", "quickstart", "quickstart-long")  # not a paper's
PUBLISHED = [name for name in known_recipes() if name not in OWN]

# Each family on a few tokens: its name -> options over the recipe's.
PLAIN = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
PYRAMID = {"depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "mlp_ratio": 2.0}
WINDOWS = {"img_size": 32, "patch_size": 2, "window_size": 2, "embed_dim": 8, **PYRAMID}
COMPACT = {"img_size": 32, "embed_dim": 16, "depth": 5, "num_heads": 2}
PVT = {"depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "embed_dims": [8, 8, 16, 16], "mlp_ratios": [2, 2, 2, 2]}
TINY = {
    "deit": PLAIN,
    "cait": PLAIN,
    "xcit": {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "pvt": {"img_size": 64, **PVT},
    "swin": WINDOWS,
    "ca": WINDOWS,
    "cct": COMPACT,
    "vit-base-finetune": {**PLAIN, "depth": 5, "pretrained": False},
    "vit": COMPACT,
}

# Millions of parameters (TransMix, Tables 1 and 7; SMMix and the models' papers for the rest).
PARAMETERS = {
    "deit-tiny": 5.7, "deit-small": 22.1, "deit-base": 86.6, "pvt-tiny": 13.2, "pvt-small": 24.5,
    "pvt-medium": 44.2, "pvt-large": 61.4, "cait-xxs24": 12.0, "cait-xxs36": 17.3, "xcit-tiny": 12.1,
    "xcit-small": 26.3, "xcit-medium": 84.4, "xcit-large": 189.1, "swin-tiny": 28.3, "swin-small": 49.6,
    "ca-swin-tiny": 28.3, "ca-swin-small": 49.6, "vit-base-finetune": 86.6, "cct-cifar10": 3.76,
    "cct-cifar100": 3.76, "vit-lite-cifar100": 3.72,
}  # fmt: skip

DEIT = [name for name in PUBLISHED if name.startswith("deit-")]
PYRAMIDS = [name for name in PUBLISHED if name.startswith("pvt-")]
CAIT = [name for name in PUBLISHED if name.startswith("cait-")]
XCIT = [name for name in PUBLISHED if name.startswith("xcit-")]
SWIN = [name for name in PUBLISHED if name.startswith("swin-")]
CA_SWIN = [name for name in PUBLISHED if name.startswith("ca-swin-")]

# Overlay -> recipes it is for.
PAIRS = {
    "transmix": [*DEIT, *PYRAMIDS, *CAIT, *XCIT, *CA_SWIN],
    "transmix-deit-base": ["deit-base"],
    "smmix": [*DEIT, *PYRAMIDS, *CAIT, *SWIN],
    "tl-align": [*DEIT, *PYRAMIDS, *CAIT, *SWIN],
    "tokenmixup-cct-cifar100": ["cct-cifar100"],
    "tokenmixup-cct-cifar10": ["cct-cifar10"],
    "tokenmixup-vit": ["vit-base-finetune"],
    "tokenmixup-vit-lite-cifar100": ["vit-lite-cifar100"],
}
ALL_PAIRS = [f"{recipe}+{overlay}" for overlay, recipes in PAIRS.items() for recipe in recipes]
TRAINED = (
    "deit-small+",
    "deit-base+transmix-",
    "pvt-tiny",
    "cait-xxs24",
    "xcit-tiny",
    "swin-tiny",
    "ca-swin-tiny",
)
ONE_OF_A_FAMILY = [name for name in ALL_PAIRS if name.startswith((*TRAINED, "cct", "vit"))]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of four classes, four training images and one other each, 32 to 64 pixels high."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("images")
    for split, count in (("train", 4), ("val", 1)):
        for label in range(4):
            (folder / split / f"class{label}").mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 255, (32 + 8 * index, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / f"class{label}" / f"{index}.jpg")
    return folder


def shrunk(name, images, **overrides):
    """The recipe on the folder and a tiny model: one epoch of two steps on the CPU, its other values kept."""
    family = next(family for family in TINY if name.startswith(family))
    return load_recipe(
        name,
        data=str(images),
        train_split="train",
        eval_split="val",
        model_options=TINY[family],
        batch_size=8,
        epochs=1,
        device="cpu",
        threads=1,
        precision="no",
        schedule={"warmup_epochs": 0, "cooldown_epochs": 0},
        loader={"workers": 0},
        **overrides,
    )


def skip_unless_there(recipe):
    if recipe.method not in attnmix.METHODS:
        pytest.skip(f"{recipe.method} is no method yet")


def test_every_overlay_is_for_some_recipe():
    assert set(PAIRS) == set(known_overlays())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_tells_its_story(name):
    text = known_recipes()[name].read_text()
    story = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert f"attnmix train {name} " in story
    for part in ("et al.", "Needs:", "Published top-1 (%):", " images a step"):
        assert part in story, part
    recipe = load_recipe(name)
    if recipe.data == "path/to/imagenet":
        assert "--data path/to/imagenet" in story
        assert (recipe.train_split, recipe.eval_split) == ("train", "val")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_baseline_is_cutmix_and_mixup_by_turns(name):
    recipe = load_recipe(name)
    expected = ("none", {"smoothing": 0.0}) if name == "vit-base-finetune" else ("cutmix", {"mixup_prob": 0.5})
    assert (recipe.method, recipe.method_options) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_models_have_the_published_sizes(name):
    recipe = load_recipe(name, model_options={"pretrained": False})
    classes = {"torch/cifar10": 10, "torch/cifar100": 100}.get(recipe.data, 1000)
    with torch.device("meta"):
        model = create_model(recipe, num_classes=classes)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert millions == pytest.approx(PARAMETERS[name], rel=0.02)


def test_rates_belong_to_the_batch_they_are_published_for():
    """DeiT's and Swin's rule, 5e-4 per 512 images, on eight processes."""
    for name in PUBLISHED:
        recipe = load_recipe(name)
        if recipe.data == "path/to/imagenet" and name != "vit-base-finetune":
            assert recipe.lr == pytest.approx(5e-4 * 8 * recipe.batch_size / 512), name
    assert load_recipe("deit-small+transmix").batch_size * 8 == 256


@pytest.mark.parametrize("name", [name for name in ALL_PAIRS if name not in ONE_OF_A_FAMILY])
def test_a_pair_is_read_and_its_method_made(name):
    recipe = load_recipe(name)
    skip_unless_there(recipe)
    assert attnmix.create_method(recipe.method, num_classes=4, **recipe.method_options)


@pytest.mark.parametrize("name", PUBLISHED + ONE_OF_A_FAMILY)
def test_two_steps(images, tmp_path, name):
    recipe = shrunk(name, images)
    skip_unless_there(recipe)
    result = train(recipe, tmp_path, progress=False)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["updates"] == 2
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert len(result.class_names) == 4
    start = create_model(recipe, num_classes=4).state_dict()
    assert any(not torch.equal(start[key], saved["trainable"][f"model.{key}"]) for key in start)


def test_the_command_with_an_overlay(images, tmp_path, capsys):
    words = ["train", "deit-small+transmix", "--data", str(images), "--out", str(tmp_path)]
    for option, value in TINY["deit"].items():
        words += [f"--model_options.{option}", str(value)]
    words += [
        "--epochs=1",
        "--batch_size=8",
        "--device=cpu",
        "--threads=1",
        "--precision=no",
        "--loader.workers=0",
    ]
    assert cli.main([*words, "--method_options.mixup_prob=0.25"]) == 0
    merged = load_recipe(tmp_path / "recipe.yaml")
    assert (merged.method, merged.method_options) == ("transmix", {"mixup_prob": 0.25})
    assert (merged.aug_repeats, merged.schedule.warmup_epochs, merged.augment.re_prob) == (1, 20, 0.25)
    assert cli.main([*words, "--method_options.mixup_prob=0.25", "--resume"]) == 0
    assert cli.main([*words, "--resume"]) == 2
    assert "method_options was {'mixup_prob': 0.25} and is now {'mixup_prob': 0.5}" in capsys.readouterr().err


def test_help_of_a_recipe_with_an_overlay(capsys):
    assert cli.main(["train", "deit-small+transmix", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("+OVERLAY behind it", "default: transmix)", "default: 32)", "default: 20)", "default: 300)"):
        assert part in text, part


@pytest.mark.parametrize(
    "words", [["train", "deit-small+transmx", "--out=x"], ["train", "deit-small+transmx", "--help"]]
)
def test_a_wrong_overlay_is_one_line(capsys, words):
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnmix: error: unknown overlay 'transmx'; did you mean 'transmix'?; known: smmix, ")
    assert error.count("\n") == 1
