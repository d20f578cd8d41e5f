import dataclasses

import pytest
import yaml

from attnmix.training.recipe import (
    Recipe,
    known_recipes,
    load_recipe,
    nearest,
    recipe_defaults,
    recipe_path,
    save_recipe,
)


@pytest.mark.parametrize("name", ["quickstart", "quickstart-long", "folder"])
def test_packaged_recipes_load_and_open_with_their_story(name):
    text = known_recipes()[name].read_text()
    assert isinstance(load_recipe(name), Recipe)
    assert text.startswith("# ")
    assert f"attnmix train {name} " in text  # the command
    assert "Needs:" in text


def test_quickstart_is_the_issues_quick_recipe():
    recipe = load_recipe("quickstart")
    options = recipe.model_options
    assert (options["img_size"], options["patch_size"], options["embed_dim"]) == (48, 8, 64)
    assert (options["depth"], options["num_heads"], options["drop_path_rate"]) == (4, 4, 0.1)
    assert (recipe.lr, recipe.batch_size, recipe.clip_grad, recipe.precision) == (2e-3, 64, 5.0, "no")
    assert (recipe.optimizer.opt, recipe.optimizer.weight_decay) == ("adamw", 0.05)
    assert (recipe.schedule.sched, recipe.schedule.warmup_epochs) == ("cosine", 3)
    assert recipe.augment.no_aug
    assert (recipe.data, recipe.eval_split) == ("digits-in-scenes", "test")


def test_quickstart_long_differs_in_data_patch_and_epochs_only():
    short, long = (recipe_defaults(load_recipe(name)) for name in ("quickstart", "quickstart-long"))
    different = {name for name in short if short[name] != long[name]} - {"eval_every"}  # changes no result
    assert different == {"data_options", "epochs", "model_options"}
    assert long["data_options"] == {"scale": [0.45, 0.65], "train_count": 4000}
    assert long["model_options"] == {**short["model_options"], "patch_size": 6}
    assert long["epochs"] == 50


def test_overrides_merge_into_dictionaries_and_groups():
    recipe = load_recipe("quickstart", lr=1, model_options={"depth": 2}, optimizer={"betas": [0.9, 0.98]})
    assert recipe.lr == 1.0
    assert recipe.model_options["depth"] == 2
    assert recipe.model_options["embed_dim"] == 64
    assert recipe.optimizer.betas == (0.9, 0.98)
    assert recipe.optimizer.weight_decay == 0.05


def test_numbers_without_a_dot_are_numbers(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("lr: 2e-3\nmethod_options: {smoothing: 1e-1}\n")
    recipe = load_recipe(path)
    assert recipe.lr == 0.002
    assert recipe.method_options == {"smoothing": 0.1}


def test_a_saved_recipe_loads_as_the_same(tmp_path):
    recipe = load_recipe("quickstart-long", ema=0.99, optimizer={"eps": 1e-9, "betas": [0.8, 0.9]})
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_every_key_has_a_help_text():
    source = recipe_path("quickstart").parent.parent / "training" / "recipe.py"
    lines = source.read_text().splitlines()
    for kind in (
        Recipe,
        *(type(getattr(Recipe(), g)) for g in ("optimizer", "schedule", "augment", "loader")),
    ):
        for field in dataclasses.fields(kind):
            at = [i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: ")]
            assert any(lines[i + 1].startswith('    """') for i in at), field.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", r"unknown recipe key 'epoch' in .*a.yaml; did you mean 'epochs'\?"),
        ("batch-size: 3", r"unknown recipe key 'batch-size' .*did you mean 'batch_size'\?"),
        ("weight_decay: 0.1", r"'weight_decay' .*did you mean 'optimizer.weight_decay'\?"),
        ("optimizer: {wieght_decay: 0.1}", r"'optimizer.wieght_decay' .*'optimizer.weight_decay'\?"),
        ("zzzzzz: 1", r"unknown recipe key 'zzzzzz' in .*a.yaml$"),
        ("optimizer: 3", r"'optimizer' in .*a.yaml must hold keys with values, not 3"),
        ("epochs: three", r"epochs.*Got value: three"),
        ("epochs: 1.5", r"epochs.*Got value: 1.5"),
        ("precision: bf17", r"precision.*'bf16'.*Got value: bf17"),
        ("model_options: 3", r"model_options.*Got value: 3"),
        ("augment: {scale: [0.1]}", r"augment.scale.*0.1"),
        ("- epochs", r"must hold keys with values, as 'epochs: 30', not a list"),
        ("", r"must hold keys with values, as 'epochs: 30', not a NoneType"),
        ("epochs: [", r"a.yaml is not valid YAML"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"epochs": 0}, "epochs is 0, but must be 1 or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"accumulation_steps": 0}, "accumulation_steps is 0"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"lr": 0.0}, "lr is 0.0, but must be above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"seed": -1}, "seed is -1, but must be 0 or more"),
        ({"device": "gpu"}, "device is 'gpu', but must be auto, cpu, cuda"),
        ({"device": "cpu:1"}, "device is 'cpu:1'"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0"),
        ({"ema": 1.0}, r"ema is 1.0, but must be in \(0, 1\)"),
        ({"threads": 0}, "threads is 0"),
        ({"optimizer": {"weight_decay": -1.0}}, "optimizer.weight_decay is -1.0"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum is 1.0"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas is "),
        ({"optimizer": {"eps": 0.0}}, "optimizer.eps is 0.0"),
        ({"optimizer": {"layer_decay": 2.0}}, "optimizer.layer_decay is 2.0"),
        ({"schedule": {"warmup_epochs": -1}}, "schedule.warmup_epochs is -1"),
        ({"schedule": {"warmup_lr": -1.0}}, "schedule.warmup_lr is -1.0"),
        ({"schedule": {"min_lr": -1.0}}, "schedule.min_lr is -1.0"),
        ({"augment": {"scale": [0.5, 0.1]}}, "augment.scale is "),
        ({"augment": {"ratio": [0.0, 1.0]}}, "augment.ratio is "),
        ({"augment": {"hflip": 1.5}}, "augment.hflip is 1.5, but must be a probability"),
        ({"augment": {"vflip": -0.5}}, "augment.vflip is -0.5"),
        ({"augment": {"re_prob": 2.0}}, "augment.re_prob is 2.0"),
        ({"augment": {"color_jitter": -1.0}}, "augment.color_jitter is -1.0"),
        ({"augment": {"crop_pct": 0.0}}, r"augment.crop_pct is 0.0, but must be in \(0, 1\], or null"),
        ({"loader": {"workers": -1}}, "loader.workers is -1"),
        ({"epoch": 3}, r"unknown recipe key 'epoch'; did you mean 'epochs'\?"),
        (
            {"optimizer": {"optt": "sgd"}},
            r"unknown recipe key 'optimizer.optt'; did you mean 'optimizer.opt'\?",
        ),
    ],
)
def test_wrong_values(overrides, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("quickstart", **overrides)


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown recipe 'quikstart'; did you mean 'quickstart'\?; known: folder"
    ):
        load_recipe("quikstart")
    with pytest.raises(ValueError, match=r"unknown recipe 'no/such.yaml'.*or a path to a YAML file"):
        recipe_path("no/such.yaml")


def test_nearest_reads_dashes_as_underscores():
    assert nearest("batch-sise", ["batch_size", "lr"]) == "; did you mean 'batch_size'?"
    assert nearest("xxxx", ["batch_size"]) == ""


def test_recipe_files_hold_no_key_twice():
    for path in known_recipes().values():
        keys = [line.partition(":")[0] for line in path.read_text().splitlines() if line[:1].isalpha()]
        assert len(keys) == len(set(keys)) == len(yaml.safe_load(path.read_text()))
