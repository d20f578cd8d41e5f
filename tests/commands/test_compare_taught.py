"""A comparison of methods that learn from a teacher, from maps of one, or parameters of their own."""

import shutil
import sys

import pytest
import torch
import yaml

import attnmix
from attnmix.cli import main
from attnmix.commands.sources import find_sources
from attnmix.commands.subjects import open_subject
from attnmix.commands.trained import learnt_beside, trained_model, what_its_method_learnt
from attnmix.evaluation.pasting import with_what_it_learnt
from attnmix.training import load_recipe
from tests.commands.test_compare import SCENES, compare, read


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """One comparison that several tests look at."""
    out = tmp_path_factory.mktemp("taught")
    assert compare(out, "--methods", "relabel,automix:block=1,none", "--jobs", "2") == 0
    return out


def recipe_of(out, run):
    return yaml.safe_load((out / "runs" / run / "recipe.yaml").read_text())


@pytest.mark.slow
def test_the_run_without_mixing_teaches(taught):
    results = read(taught)
    assert results["methods"] == ["relabel", "automix (block=1)", "none"]
    options = recipe_of(taught, "relabel-seed0")["method_options"]
    assert options["teacher"] == str(taught / "runs" / "none-seed0" / "model")
    assert "teacher" not in recipe_of(taught, "automix-block=1-seed0")["method_options"]
    assert (taught / "figures" / "pairs.png").is_file()


@pytest.mark.slow
def test_pictures_and_labels_are_those_of_the_trained_mix_block(taught):
    run = taught / "runs" / "automix-block=1-seed0"
    model = trained_model(run)
    fresh, learnt = (attnmix.create_method("automix", num_classes=10, block=1) for _ in range(2))
    found = what_its_method_learnt(run, load_recipe(run / "recipe.yaml"))
    with_what_it_learnt(learnt, model, found)
    saved = torch.load(run / "checkpoint.pt", weights_only=True)["trainable"]
    attnmix.MixTask(model, fresh)
    parameters = dict(learnt.named_parameters())
    assert parameters
    for name, parameter in parameters.items():
        assert parameter.equal(saved[f"method.{name}"])
    assert not all(parameter.equal(parameters[name]) for name, parameter in fresh.named_parameters())
    weights = str(run / "model" / "model.safetensors")
    assert learnt_beside(weights, "automix").keys() == found.keys()
    assert learnt_beside(weights, "gridmix") == learnt_beside(None, "automix") == {}
    (source,) = find_sources([str(run)])
    assert open_subject(source, device=torch.device("cpu")).method_learnt.keys() == found.keys()
    other = attnmix.create_method("gridmix", num_classes=10)  # of other parameters: left as it is
    attnmix.MixTask(model, other)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with_what_it_learnt(other, model, found)
    assert all(value.equal(before[name]) for name, value in other.state_dict().items())


@pytest.mark.slow
def test_with_label_maps_those_who_take_them_ask_no_teacher(taught, tmp_path, capsys):
    maps, out = tmp_path / "maps", tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    shutil.copytree(taught / "runs" / "none-seed0", out / "runs" / "none-seed0")
    settings = SCENES[SCENES.index("--data_options.train_count") : SCENES.index("--batch_size")]
    teacher = str(taught / "runs" / "none-seed0")
    assert (
        main(["maps", "quickstart", *settings, "--teacher", teacher, "--out", str(maps), "--device", "cpu"]) == 0
    )
    assert compare(out, "--methods", "none,relabel", "--label_maps", str(maps)) == 0
    assert recipe_of(out, "relabel-seed0")["label_maps"] == str(maps)
    assert "teacher" not in recipe_of(out, "relabel-seed0")["method_options"]
    assert recipe_of(out, "none-seed0")["label_maps"] is None
    assert "1 of 2 runs are done already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("cutmix,tokenmix", "tokenmix learns from a teacher: name a model or the folder of a run"),
        ("cutmix,attentivemix", "attentivemix:provider=path/to/run, or compare with none too"),
        ("cutmix,tokenmixup", "tokenmixup: vertical is 2, but VisionTransformer has 2 blocks"),
        ("cutmix,automix:block=7", "automix (block=7): block is 7, but VisionTransformer has 2 blocks"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_trained(tmp_path, capsys, methods, message):
    assert compare(tmp_path / "out", "--methods", methods) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_said_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "maxflow", None)
    assert compare(tmp_path / "out", "--methods", "cutmix,puzzlemix") == 2
    error = capsys.readouterr().err
    assert "puzzlemix: " in error
    assert 'pip install "attnmix[puzzlemix]"' in error
    assert not (tmp_path / "out").exists()
