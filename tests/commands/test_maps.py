"""`attnmix maps`, and training with what it makes."""

import json

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

import attnmix
from attnmix import cli
from attnmix.commands import map_making
from attnmix.commands.map_making import score_all
from attnmix.data import DigitsInScenes
from attnmix.data.label_maps import LabelMapStore
from attnmix.data.transforms import evaluation_transform
from attnmix.methods.teacher import score_maps
from attnmix.training.export import export_model
from attnmix.training.setup import create_data, model_inputs

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
MODEL = "--model_options={img_size: 16, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}"
DATA = "--data_options={train_count: 20, test_count: 10}"
TRAINING = ["--epochs=1", "--schedule.warmup_epochs=0", "--threads=1"]


@pytest.fixture
def teacher(tmp_path):
    """A tiny teacher's folder: 32 pixels, a grid of 4 x 4, other weights than the student's."""
    return make_teacher(tmp_path / "teacher", DigitsInScenes.class_names)


def make_teacher(folder, class_names):
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **{**SIZES, "img_size": 32, "num_classes": len(class_names)})
    torch.nn.init.normal_(model.head.weight, std=0.5)
    export_model(model, folder, class_names=class_names, crop_pct=1.0)
    return folder


@pytest.fixture
def maps(tmp_path, teacher):
    """Run the command in this process: its exit code."""

    def run(*words, out=tmp_path / "maps", data=DATA):
        sizes = ["quickstart", MODEL, data, "--batch_size=8", "--device=cpu"]
        return cli.main(["maps", *sizes, f"--teacher={teacher}", f"--out={out}", *words])

    return run


def train(out, *words):
    sizes = ["quickstart", MODEL, DATA, "--batch_size=8", "--device=cpu"]
    return cli.main(["train", *sizes, *TRAINING, f"--out={out}", *words])


def error(capsys):
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("attnmix: error: ")
    return captured.err


def test_maps_are_the_teachers_scores_of_whole_images(tmp_path, teacher, maps, capsys):
    assert maps("--top=3") == 0
    written = capsys.readouterr().out
    assert "20 images, 4 x 4 cells, the best 3 of 10 classes in each, 3.84 kB" in written
    assert f"next: attnmix train quickstart --label_maps {tmp_path / 'maps'}" in written
    store = LabelMapStore(tmp_path / "maps")
    assert store.about.image_size == (32, 32)
    assert store.about.teacher == str(teacher)
    model = timm.create_model(f"local-dir:{teacher}", pretrained=True)
    norm = {"mean": model.pretrained_cfg["mean"], "std": model.pretrained_cfg["std"]}
    transform = evaluation_transform((3, 32, 32), **norm, crop_pct=1.0, crop_mode="squash")
    images = DigitsInScenes("train", size=16, train_count=20, transform=transform)
    right = 0
    for index in (0, 7, 8, 19):
        expected = score_maps(model, images[index][0][None])[0].topk(3, dim=0)
        classes, scores = store.read(index)
        assert torch.equal(classes, expected.indices)
        torch.testing.assert_close(scores, expected.values, atol=2e-3, rtol=2e-3)
    for index in range(20):
        mean = score_maps(model, images[index][0][None])[0].mean(dim=(1, 2))
        right += int(mean.argmax()) == images[index][1]
    share = f"the teacher's best class over the whole image is the label's in {5 * right:.1f} % of the images"
    assert f"{share} (chance 10.0 %)" in written


@pytest.mark.parametrize(("share", "warned"), [(0.21, False), (0.2, False), (0.19, True), (0.0, True)])
def test_a_teacher_no_better_than_chance_is_warned_of(maps, capsys, monkeypatch, share, warned):
    monkeypatch.setattr(map_making, "score_all", lambda *given: [score_all(*given), share][1])
    assert maps() == 0
    written = capsys.readouterr().out
    assert f"in {100 * share:.1f} % of the images (chance 10.0 %)" in written
    assert ("warning: that is hardly more than chance: is this teacher trained" in written) is warned


@pytest.mark.parametrize(("share", "warned"), [(0.8, False), (0.7, True)])
def test_of_two_classes_not_all_need_be_right(tmp_path, maps, capsys, monkeypatch, share, warned):
    root = folder_of_images(tmp_path / "images")
    (root / "val").rename(root / "test")
    monkeypatch.setattr(map_making, "score_all", lambda *given: [score_all(*given), share][1])
    assert maps(f"--data={root}", data="--data_options={}") == 0
    written = capsys.readouterr().out
    assert "(chance 50.0 %)" in written
    assert ("warning: that is hardly more" in written) is warned


def test_an_interrupted_command_goes_on(tmp_path, maps, capsys, monkeypatch):
    assert maps(out=tmp_path / "whole") == 0
    calls = []

    def interrupted(model, images):
        calls.append(len(images))
        if len(calls) == 3:  # the first looks for the grid
            raise KeyboardInterrupt
        return score_maps(model, images)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(map_making, "score_maps", interrupted)
        assert maps() == 130
    assert (
        f"8 of 20 images are done, in {tmp_path / 'maps.part'}: the same command goes on"
        in capsys.readouterr().out
    )
    assert train(tmp_path / "run", f"--label_maps={tmp_path / 'maps'}", "--method=relabel") == 2
    assert "maps.part is not finished" in error(capsys)
    assert maps("--top=2") == 2
    assert "maps.part was begun with top 5, not 2: give the same command again" in error(capsys)
    options = ["--teacher=resnet10t", "--teacher_options={pretrained: false, num_classes: 10}", "--image_size=128"]
    assert maps(*options) == 2
    assert "not 'resnet10t (pretrained=False, num_classes=10)': give the same command again" in error(capsys)
    assert maps("--batch_size=5") == 0
    assert "going on after 8 of 20 images" in capsys.readouterr().out
    for name in ("scores.npy", "classes.npy"):
        whole, again = (np.load(tmp_path / folder / name) for folder in ("whole", "maps"))
        np.testing.assert_allclose(again.astype(float), whole.astype(float), atol=2e-3)
    assert maps() == 2
    assert "maps is there already and holds label maps: choose another --out" in error(capsys)


@pytest.mark.parametrize("method", ["token-labeling", "tokenmix", "relabel"])
def test_training_with_maps(tmp_path, maps, method):
    assert maps() == 0
    run = tmp_path / "run"
    augment = ["--augment.no_aug=false", "--augment.hflip=0.5", "--aug_repeats=2"]
    assert train(run, f"--label_maps={tmp_path / 'maps'}", f"--method={method}", *augment) == 0
    assert yaml.safe_load((run / "recipe.yaml").read_text())["label_maps"] == str(tmp_path / "maps")
    assert json.loads((run / "result.json").read_text())["history"][0]["train_loss"] > 0
    resumed = [f"--label_maps={tmp_path / 'maps'}", f"--method={method}", *augment, "--resume", "--epochs=2"]
    assert train(run, *resumed) == 0


def test_maps_change_what_is_learnt(tmp_path, maps, teacher):
    """Two teachers, two runs: the maps do reach the loss."""
    losses = set()
    for name in ("maps", "others"):
        assert maps(out=tmp_path / name) == 0
        assert train(tmp_path / f"run-{name}", f"--label_maps={tmp_path / name}", "--method=relabel") == 0
        result = json.loads((tmp_path / f"run-{name}" / "result.json").read_text())
        losses.add(result["history"][0]["train_loss"])
        model = timm.create_model(f"local-dir:{teacher}", pretrained=True)
        torch.nn.init.normal_(model.head.weight, std=2.0)
        export_model(model, teacher, class_names=DigitsInScenes.class_names, crop_pct=1.0)
    assert len(losses) == 2


def test_the_evaluation_set_has_no_maps(tmp_path, maps, tiny_recipe):
    assert maps() == 0
    recipe = tiny_recipe(label_maps=str(tmp_path / "maps"))
    training, evaluation = create_data(recipe)
    assert isinstance(training[0][1], attnmix.mixing.LabelMaps)
    assert isinstance(evaluation[0][1], int)
    assert model_inputs(recipe)["input_size"] == (3, 16, 16)


@pytest.fixture
def tiny_recipe():
    def make(**options):
        from attnmix.training import load_recipe

        sizes = {"model_options": SIZES, "data_options": {"train_count": 20, "test_count": 10}}
        return load_recipe("quickstart", **sizes, **options)

    return make


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method=cutmix"], "label maps are given, but cutmix takes none: leave them out"),
        (
            ["--method=relabel", "--data_options={train_count: 21, test_count: 10}"],
            "has 21: make them for this data with `attnmix maps`, or train with the data_options (counts, seed)",
        ),
        (["--method=tokenmix", "--method_options.target=area"], "tokenmix looks at none with its options"),
        (
            ["--method=relabel", "--data_options={train_count: 20, seed: 1}"],
            "has other images, classes or another",
        ),
        (["--method=relabel", "--train_split=train-fit"], "or train on digits-in-scenes train"),
    ],
)
def test_training_refuses_what_does_not_fit(tmp_path, maps, capsys, words, message):
    assert maps() == 0
    capsys.readouterr()
    assert train(tmp_path / "run", f"--label_maps={tmp_path / 'maps'}", *words) == 2
    assert message in error(capsys)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_training_refuses_damaged_and_missing_maps(tmp_path, maps, capsys):
    assert maps() == 0
    (tmp_path / "maps" / "scores.npy").write_bytes(b"")
    capsys.readouterr()
    assert train(tmp_path / "run", f"--label_maps={tmp_path / 'maps'}", "--method=relabel") == 2
    assert "scores.npy is damaged or cut short" in error(capsys)
    assert train(tmp_path / "run", f"--label_maps={tmp_path / 'none'}", "--method=relabel") == 2
    assert "there is no maps.json; `attnmix maps` makes them" in error(capsys)
    assert train(tmp_path / "run", "--method=relabel") == 2
    assert "no score maps to learn from" in error(capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top=0"], "top is 0, but must be 1 or more"),
        (["--top=11"], "top is 11, but digits-in-scenes train has 10 classes"),
        (["--image_size=0"], "image_size is 0"),
        (["--image_size=48"], "the teacher VisionTransformer does not take these images"),
        (["--teacher=no_such_model"], "teacher 'no_such_model' is neither the folder of a run nor a model"),
        (["--teacher=./nowhere"], "nowhere"),
        (
            ["--teacher=resnet10t", "--teacher_options.pretrained=false"],
            "the teacher resnet10t (pretrained=False) does not know",
        ),
        (["--device=tpu"], "device is 'tpu'"),
        (["--train_split=trains"], "trains"),
        (["--epochs=3"], "unknown option '--epochs'"),
        (["--label_maps=x"], "unknown option '--label_maps'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, maps, capsys, words, message):
    assert maps(*words) == 2
    assert message in error(capsys)
    assert not (tmp_path / "maps").exists()
    assert not (tmp_path / "maps.part").exists()


def test_a_larger_image_gives_a_cnn_more_cells(tmp_path, maps):
    options = ["--teacher=resnet10t", "--teacher_options={pretrained: false, num_classes: 10}"]
    assert maps(*options, "--image_size=64", "--top=1") == 0
    assert LabelMapStore(tmp_path / "maps").about.grid == (2, 2)


def folder_of_images(root, count=3, size=20):
    for split in ("train", "val"):
        for shade, name in enumerate(("1", "0")):
            for index in range(count):
                path = root / split / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (size, 10 + size), (100 * shade, 40 * index, 0)).save(path)
    return root


def test_folders_with_some_of_the_teachers_classes(tmp_path, maps, capsys):
    """The data's class 0 is the folder "0", the teacher's is too; 8 others of the teacher's are left out."""
    root = folder_of_images(tmp_path / "images")
    (root / "train" / "1" / "1.png").write_text("no image at all")
    assert maps(f"--data={root}", "--eval_split=val", data="--data_options={}") == 2  # not this command's
    assert "unknown option '--eval_split'" in error(capsys)
    assert maps(f"--data={root}", "--train_split=train", data="--data_options={}") == 2
    assert "no split 'test'" in error(capsys)  # the recipe's evaluation split
    (root / "val").rename(root / "test")
    assert maps(f"--data={root}", data="--data_options={}") == 0
    assert "1 images could not be read: training passes them over" in capsys.readouterr().out
    store = LabelMapStore(tmp_path / "maps")
    assert store.about.class_names == ("0", "1")
    assert store.about.top == 2
    assert store.about.missing == (4,)
    assert int(store.read(0)[0].max()) == 1
    words = [f"--data={root}", "--data_options={}", "--method=relabel", f"--label_maps={tmp_path / 'maps'}"]
    assert train(tmp_path / "run", *words) == 0


def test_too_many_unreadable_images(tmp_path, maps, capsys):
    root = folder_of_images(tmp_path / "images", count=4)
    (root / "val").rename(root / "test")
    for path in sorted(root.glob("train/*/*.png"))[:4]:
        path.write_text("no image at all")
    assert maps(f"--data={root}", data="--data_options={}") == 2
    assert "4 of 8 images cannot be read" in error(capsys)


def test_help(capsys):
    assert cli.main(["maps", "--help"]) == 0
    text = capsys.readouterr().out
    assert "attnmix maps quickstart --teacher runs/none --out maps/quickstart" in text
    assert "--epochs" not in text
