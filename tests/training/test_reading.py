import re

import pytest
import yaml

from attnmix.training import reading
from attnmix.training.reading import (
    known_overlays,
    known_recipes,
    load_recipe,
    nearest,
    recipe_defaults,
    recipe_files,
    save_recipe,
)
from attnmix.training.recipe import Recipe


@pytest.fixture
def overlays(tmp_path, monkeypatch):
    """Make overlays of one's own the packaged ones: overlays(name="text of the file")."""

    def make(**texts):
        folder = tmp_path / "overlays"
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.yaml").write_text(text)
        monkeypatch.setattr(reading, "OVERLAYS", folder)

    return make


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", r"unknown recipe key 'epoch' in .*a.yaml; did you mean 'epochs'\?"),
        ("batch-size: 3", r"unknown recipe key 'batch-size' .*did you mean 'batch_size'\?"),
        ("weight_decay: 0.1", r"'weight_decay' .*did you mean 'optimizer.weight_decay'\?"),
        ("optimizer: {wieght_decay: 0.1}", r"'optimizer.wieght_decay' .*'optimizer.weight_decay'\?"),
        ("zzzzzz: 1", r"unknown recipe key 'zzzzzz' in .*a.yaml$"),
        ("optimizer: 3", r"'optimizer' in .*a.yaml must hold keys with values, not 3"),
        ("epochs: three", r"^epochs must be a whole number. Got value: three in .*a.yaml$"),
        ("epochs: 1.5", r"epochs.*Got value: 1.5"),
        (
            "precision: bf17",
            r"^precision must be 'no', 'bf16' or 'fp16'; did you mean 'bf16'\? Got value: bf17 in .*a.yaml$",
        ),
        ("clip_grad: much", r"^clip_grad must be a number or null. Got value: much in"),
        ("optimizer: {betas: 1}", r"^optimizer.betas must be a list of two numbers or null. Got value: 1 in"),
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


@pytest.mark.parametrize("key", recipe_defaults(load_recipe("quickstart")))
def test_no_refusal_speaks_of_pythons_types(tmp_path, key):
    group, _, name = key.rpartition(".")
    refused = []
    for value in ("zzz", "1.5", "true", "[1, b]", "{a: 1}"):
        (tmp_path / "a.yaml").write_text(f"{group}: {{{name}: {value}}}" if group else f"{name}: {value}")
        try:
            load_recipe(tmp_path / "a.yaml")
        except ValueError as error:
            refused.append(str(error))
    assert refused
    for message in refused:
        assert not re.search(r"class|typing|subtypes|Parser", message)


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown recipe 'quikstart'; did you mean 'quickstart'\?; known: ca-swin-small, "
    ):
        load_recipe("quikstart")
    with pytest.raises(ValueError, match=r"unknown recipe 'no/such.yaml'.*or a path to a YAML file"):
        recipe_files("no/such.yaml")


def test_nearest_reads_dashes_as_underscores():
    assert nearest("batch-sise", ["batch_size", "lr"]) == "; did you mean 'batch_size'?"
    assert nearest("xxxx", ["batch_size"]) == ""


def test_recipe_files_hold_no_key_twice():
    for path in (*known_recipes().values(), *known_overlays().values()):
        keys = [line.partition(":")[0] for line in path.read_text().splitlines() if line[:1].isalpha()]
        assert len(keys) == len(set(keys)) == len(yaml.safe_load(path.read_text()))


def test_unknown_keys_in_overrides():
    with pytest.raises(ValueError, match=r"unknown recipe key 'epoch'; did you mean 'epochs'\?"):
        load_recipe("quickstart", epoch=3)
    with pytest.raises(ValueError, match=r"'optimizer.optt'; did you mean 'optimizer.opt'\?"):
        load_recipe("quickstart", optimizer={"optt": "sgd"})


# ------------------------------------------------------------------ overlays


def different(first, second):
    first, second = recipe_defaults(first), recipe_defaults(second)
    return {name: second[name] for name in first if first[name] != second[name]}


def test_an_overlay_changes_its_keys_alone():
    assert different(load_recipe("deit-small"), load_recipe("deit-small+transmix")) == {
        "method": "transmix",
        "aug_repeats": 1,
        "batch_size": 32,
        "schedule.warmup_epochs": 20,
    }
    assert different(load_recipe("pvt-tiny"), load_recipe("pvt-tiny+smmix")) == {"method": "smmix"}


def test_overlays_lie_in_the_order_they_are_written(overlays):
    overlays(one="lr: 1\nmodel_options: {depth: 1}\noptimizer: {eps: 1e-3}", two="lr: 2")
    both = load_recipe("quickstart+one+two")
    assert both.lr == 2.0
    assert (both.optimizer.eps, both.optimizer.weight_decay) == (0.001, 0.05)  # 1e-3 is a number here too
    assert both.model_options == {**load_recipe("quickstart").model_options, "depth": 1}
    assert load_recipe("quickstart+two+one").lr == 1.0


def test_overrides_lie_over_overlays(overlays):
    overlays(one="lr: 1\noptimizer: {eps: 1e-3}")
    recipe = load_recipe("quickstart+one", lr=3, optimizer={"weight_decay": 0.2})
    assert (recipe.lr, recipe.optimizer.eps, recipe.optimizer.weight_decay) == (3.0, 0.001, 0.2)


def test_a_paths_plus_is_the_paths(overlays, tmp_path):
    overlays(one="lr: 1")
    for name in ("a+one.yaml", "b.yaml"):
        (tmp_path / name).write_text("epochs: 7\nlr: 5")
    assert recipe_files(tmp_path / "a+one.yaml") == [tmp_path / "a+one.yaml"]
    assert load_recipe(tmp_path / "a+one.yaml").lr == 5.0
    assert load_recipe(f"{tmp_path / 'a+one.yaml'}+one").lr == 1.0
    assert (load_recipe(f"{tmp_path / 'b.yaml'}+one").lr, load_recipe(tmp_path / "b.yaml").epochs) == (1.0, 7)


def test_a_method_takes_its_own_options_alone(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("method: cutmix\nmethod_options: {cutmix_alpha: 2.0}")
    assert load_recipe(path, method="cutmix").method_options == {"cutmix_alpha": 2.0}
    assert load_recipe(path, method_options={"prob": 0.5}).method_options == {"cutmix_alpha": 2.0, "prob": 0.5}
    assert load_recipe(path, method="none").method_options == {}
    assert load_recipe(path, method="smmix", method_options={"fine": False}).method_options == {"fine": False}
    assert load_recipe(f"{path}+smmix").method_options == {"mixup_prob": 0.5}
    path.write_text("method: tl_align\nmethod_options: {box: even}")
    assert load_recipe(path, method="tl-align").method_options == {"box": "even"}


def test_data_take_their_own_options_alone():
    assert load_recipe("cct-cifar10", data="images").data_options == {}
    assert load_recipe("cct-cifar10", data_options={"download": False}).data_options["root"] == "data/cifar10"
    assert load_recipe("quickstart-long", data="digits_in_scenes").data_options["train_count"] == 4000


def test_a_saved_overlaid_recipe_holds_the_merged_values(tmp_path):
    recipe = load_recipe("deit-small+transmix", lr=1e-4)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text())["method"] == "transmix"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "deit-small+transmx",
            r"unknown overlay 'transmx'; did you mean 'transmix'\?; known: smmix, tl-align, ",
        ),
        ("smmix-table-7", "is no recipe but a table: attnmix ablate smmix-table-7 RECIPE"),
        ("deit-small+", r"a \+ without an overlay behind it; known: smmix, "),
        (
            "deit-small+quickstart",
            r"unknown overlay 'quickstart'; 'quickstart' is a recipe, and one is enough; known",
        ),
        ("transmix", r"'transmix' names no recipe: an overlay changes .* as in deit-small\+transmix"),
        ("smmix+transmix", r"'smmix\+transmix' names no recipe: .* as in deit-small\+smmix"),
        ("+smmix", r"'\+smmix' names no recipe: .* as in deit-small\+smmix"),
        ("quikstart+smmix", r"unknown recipe 'quikstart'; did you mean 'quickstart'\?; known: .* behind a \+"),
    ],
)
def test_wrong_names_of_overlays(name, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", r"unknown recipe key 'epoch' in .*one.yaml; did you mean 'epochs'\?"),
        ("epochs: three", r"epochs.*Got value: three in .*one.yaml"),
        ("- lr", r"one.yaml must hold keys with values"),
    ],
)
def test_wrong_overlays_are_named(overlays, text, message):
    overlays(one=text)
    with pytest.raises(ValueError, match=message):
        load_recipe("quickstart+one")
