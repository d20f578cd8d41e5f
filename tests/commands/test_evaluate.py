"""The command `attnmix evaluate`, on runs of the embedded data and on a folder of JPEGs with synset names."""

import csv
import dataclasses
import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from attnmix.cli import main
from attnmix.evaluation import label_content
from attnmix.evaluation.questions import QUESTIONS
from attnmix.training import load_recipe, train

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
SYNSETS = ("n01440764", "n01443537", "n02123045")


@pytest.fixture(scope="module", autouse=True)
def _quick_labels():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_content, "DRAWS", 4)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two runs of an epoch each."""
    folder = tmp_path_factory.mktemp("compared")
    for method in ("transmix", "none"):
        recipe = dataclasses.replace(
            load_recipe("quickstart"),
            model_options=TINY,
            data_options={"train_count": 64, "test_count": 40},
            method=method,
            epochs=1,
            threads=1,
        )
        train(recipe, folder / "runs" / f"{method}-seed0", progress=False)
    return folder


@pytest.fixture(scope="module")
def evaluated(runs, tmp_path_factory):
    """Everything asked of both runs."""
    out = tmp_path_factory.mktemp("evaluated")
    words = ["evaluate", str(runs), "--limit", "12", "--shifted", "off=digits-in-scenes@off-centre"]
    assert main([*words, "--out", str(out)]) == 0
    return words, out


def results(out):
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def table(out, name):
    with open(out / "tables" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_question_is_answered_for_every_run(evaluated):
    _, out = evaluated
    found = results(out)
    assert [model["label"] for model in found["models"]] == ["none", "transmix"]  # in the order of METHODS
    assert found["models"][1]["method"] == "transmix"
    assert "| accuracy: top-1 % |" in (out / "summary.md").read_text(encoding="utf-8")
    for name in QUESTIONS:
        entry = found["questions"][name]
        if name == "outliers":
            assert all("--outliers" in reason for reason in entry["left_out"].values())
            continue
        assert list(entry["answers"]) == ["none", "transmix"], name
        for answer in entry["answers"].values():
            assert answer["tables"], name
            assert answer["images"] > 0
            assert answer["skipped"] == []


@pytest.mark.slow
def test_answers_are_tables_figures_and_a_page(evaluated):
    _, out = evaluated
    sets = table(out, "shift-sets")
    assert [row["model"] for row in sets] == ["none", "transmix"]
    assert {row["set"] for row in sets} == {"off"}
    for name in ("occlusion", "shuffle", "localisation", "label-content", "pictures-unmixed"):
        with Image.open(out / "figures" / f"{name}.png") as image:
            assert image.size[0] > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "transmix" in page
    assert 'src="http' not in page


@pytest.mark.slow
def test_the_accuracy_is_that_of_the_training_run(runs, tmp_path):
    assert (
        main(["evaluate", str(runs / "runs" / "none-seed0"), "--suite", "accuracy", "--out", str(tmp_path)]) == 0
    )
    answer = results(tmp_path)["questions"]["accuracy"]["answers"]["none-seed0"]
    trained = json.loads((runs / "runs" / "none-seed0" / "result.json").read_text(encoding="utf-8"))
    assert answer["images"] == 40
    assert answer["values"]["top-1 %"] == pytest.approx(trained["top1"])
    per_class = answer["tables"]["classes"]
    counts = np.array(trained["confusion"])
    right = [100 * counts[i, i] / counts[i].sum() for i in range(10)]
    assert [row["top-1 %"] for row in per_class] == pytest.approx(right)


@pytest.mark.slow
def test_the_same_command_asks_nothing_twice(evaluated, capsys):
    words, out = evaluated
    before = {path: path.stat().st_mtime_ns for path in (out / "answers").rglob("*.*")}
    first = results(out)["questions"]
    assert main([*words, "--out", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "answers").rglob("*.*")} == before
    assert results(out)["questions"] == first


@pytest.mark.slow
def test_a_lost_answer_alone_is_asked_again_and_is_the_same(evaluated):
    words, out = evaluated
    first = results(out)["questions"]["occlusion"]["answers"]["none"]["tables"]
    (out / "answers" / "none" / "occlusion.json").unlink()
    assert main([*words, "--suite", "occlusion", "--batch_size", "5", "--out", str(out)]) == 0
    found = results(out)["questions"]
    assert found["occlusion"]["answers"]["none"]["tables"] == first
    assert "attack" in found  # answered before, with the same settings


@pytest.mark.slow
def test_other_settings_do_not_overwrite(evaluated, capsys):
    _, out = evaluated
    words = ["evaluate", *map(str, [results(out)["command"].split()[2]]), "--limit", "5", "--out", str(out)]
    assert main(words) == 2
    assert "made with limit 12, not 5: set it back, choose another --out" in capsys.readouterr().err


# ------------------------------------------------------------------ a folder of JPEGs, any timm model


def save_jpeg(path, seed, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def save_xml(path, name, size, box):
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = name
    of_image = ElementTree.SubElement(root, "size")
    for key, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
        ElementTree.SubElement(of_image, key).text = str(value)
    entry = ElementTree.SubElement(root, "object")
    ElementTree.SubElement(entry, "name").text = "thing"
    bounds = ElementTree.SubElement(entry, "bndbox")
    for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
        ElementTree.SubElement(bounds, key).text = str(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path)


@pytest.fixture
def imagenet(tmp_path):
    """val/SYNSET/*.JPEG with boxes in xml/, six images named as ImageNet's validation images are."""
    number = 0
    for synset in SYNSETS:
        for _ in range(2):
            number += 1
            name = f"ILSVRC2012_val_{number:08}"
            size = (90 + number, 70)
            save_jpeg(tmp_path / "val" / synset / f"{name}.JPEG", number, size)
            save_xml(tmp_path / "xml" / f"{name}.xml", name, size, (10, 5, 60, 50))
    for synset in SYNSETS[:2]:
        save_jpeg(tmp_path / "renditions" / synset / "a.jpg", 50, (64, 64))
    save_jpeg(tmp_path / "others" / "n99999999" / "a.jpg", 60, (64, 64))
    return tmp_path


def small(name, *more):
    options = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "patch_size": 8}
    return ["evaluate", name, "--pretrained", "false", "--model_options", json.dumps(options), *more]


@pytest.mark.slow
def test_a_folder_of_synsets_and_any_timm_model(imagenet, tmp_path, capsys):
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--annotations", str(imagenet / "xml"))
    words += ["--shifted", f"R={imagenet / 'renditions'}", "--outliers", str(imagenet / "others")]
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 0, capsys.readouterr().err
    found = results(out)["questions"]
    label = "vit_tiny_patch16_224"
    # boxes are no masks
    assert {name for name, entry in found.items() if not entry["answers"]} == {"segmentation", "label-content"}
    assert "ReaL top-1 %" in found["accuracy"]["answers"][label]["values"]
    assert [row["class"] for row in found["accuracy"]["answers"][label]["tables"]["classes"]] == list(SYNSETS)
    assert found["shift"]["answers"][label]["tables"]["sets"][0]["classes"] == 2
    assert found["outliers"]["answers"][label]["tables"]["detection"][0]["outliers"] == 1
    assert found["localisation"]["answers"][label]["tables"]["scores"][0]["images"] == 6


@pytest.mark.slow
def test_a_network_without_attention_is_asked_what_can_be(imagenet, tmp_path, capsys):
    words = [
        "evaluate",
        "resnet10t",
        "--pretrained",
        "false",
        "--data",
        str(imagenet),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*words, "--suite", "accuracy,shuffle,occlusion"]) == 0
    found = results(tmp_path / "o")["questions"]
    assert {row["patches"] for row in found["occlusion"]["answers"]["resnet10t"]["tables"]["drops"]} == {"random"}
    assert main([*words, "--suite", "regions"]) == 2
    assert "regions cannot be asked: " in capsys.readouterr().err


def test_an_unreadable_image_is_listed_and_a_second_of_six_ends_it(imagenet, tmp_path, capsys):
    broken = sorted((imagenet / "val").rglob("*.JPEG"))
    broken[0].write_bytes(b"no image")
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--suite", "accuracy,noise")
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    answer = results(tmp_path / "a")["questions"]["accuracy"]["answers"]["vit_tiny_patch16_224"]
    assert answer["images"] == 5
    assert answer["skipped"] == [str(broken[0])]
    broken[1].write_bytes(b"no image")
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "b")]) == 2
    assert "2 of 6 images cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "acuracy"], "unknown question 'acuracy'; did you mean 'accuracy'"),
        (["--suite", ","], "names no question"),
        (["--limit", "0"], "limit is 0, but must be 1 or more"),
        (["--batch_size", "0"], "batch_size is 0"),
        (["--suite", "localisation"], "localisation cannot be asked: give boxes: --annotations"),
        (["--suite", "shift"], "shift cannot be asked: .*--shifted"),
        (["--annotations", "nowhere.json"], "nowhere.json"),
        (["--split", "test"], "no split 'test'"),
        (["--device", "gpu"], "device is 'gpu'"),
        (["--shifted", "a=x,a=y"], "shifted names 'a' twice"),
    ],
)
def test_wrong_commands_say_what_would_be_right(imagenet, tmp_path, capsys, words, message):
    import re

    assert main(small("vit_tiny_patch16_224", "--data", str(imagenet), *words, "--out", str(tmp_path / "o"))) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "o").exists()


def test_a_class_that_the_model_lacks_is_named(imagenet, tmp_path, capsys):
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--out", str(tmp_path / "o"))
    save_jpeg(imagenet / "val" / "n99999999" / "x.jpg", 1, (40, 40))
    assert main(words) == 2
    assert "n99999999" in capsys.readouterr().err


def test_a_model_of_another_class_count(imagenet, tmp_path, capsys):
    options = json.dumps({**TINY, "num_classes": 7})
    words = ["evaluate", "vit_tiny_patch16_224", "--pretrained", "false", "--model_options", options]
    assert main([*words, "--data", str(imagenet), "--out", str(tmp_path / "o")]) == 2
    error = capsys.readouterr().err
    assert "7" in error
    assert "3" in error


def test_data_has_to_be_said_for_a_timm_model(capsys):
    assert main(small("vit_tiny_patch16_224")) == 2
    assert "--data is needed" in capsys.readouterr().err


# ------------------------------------------------------------------ what each option changes


def tables(out, question):
    """The tables of the only model's answer."""
    (answer,) = results(out)["questions"][question]["answers"].values()
    return answer["tables"]


def test_the_seed_draws_other_boxes_and_data_options_reach_the_data(runs, tmp_path):
    run = str(runs / "runs" / "none-seed0")
    for seed in ("0", "1"):
        assert main(["evaluate", run, "--suite", "regions", "--seed", seed, "--out", str(tmp_path / seed)]) == 0
    assert tables(tmp_path / "0", "regions") != tables(tmp_path / "1", "regions")
    words = ["evaluate", run, "--suite", "accuracy", "--data_options", "{test_count: 7}"]
    assert main([*words, "--out", str(tmp_path / "few")]) == 0
    assert sum(row["images"] for row in tables(tmp_path / "few", "accuracy")["classes"]) == 7


def test_another_model_may_say_what_is_salient(runs, tmp_path, capsys):
    words = ["evaluate", str(runs / "runs" / "none-seed0"), "--suite", "occlusion", "--limit", "6"]
    words += ["--out", str(tmp_path / "out")]
    saliency = ["--saliency", f"other={runs / 'runs' / 'transmix-seed0'}"]
    assert main([*words, *saliency]) == 0
    (answer,) = results(tmp_path / "out")["questions"]["occlusion"]["answers"].values()
    assert "the last attention of other looks at" in " ".join(answer["notes"])
    assert main(words) == 2  # its own attention is another question
    assert "made with contents of saliency" in capsys.readouterr().err


def test_voc_and_its_splits(imagenet, tmp_path):
    root = tmp_path / "VOC2012"
    for number, split in enumerate(("val", "val", "train")):
        save_jpeg(root / "JPEGImages" / f"{number}.jpg", number, (60, 50))
        mask = np.zeros((50, 60), dtype=np.uint8)
        mask[10:30, 20:50] = 7
        mask[30, 20:50] = 255  # void
        (root / "SegmentationClass").mkdir(exist_ok=True)
        Image.fromarray(mask).convert("P").save(root / "SegmentationClass" / f"{number}.png")
        listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        with listed.open("a") as file:
            file.write(f"{number}\n")
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--suite", "segmentation", "--voc", str(root))
    for split, count in (("val", 2), ("train", 1)):
        assert main([*words, "--voc_split", split, "--out", str(tmp_path / f"of-{split}")]) == 0
        assert [row["images"] for row in tables(tmp_path / f"of-{split}", "segmentation")["scores"]] == [count] * 5


def test_weights_that_are_not_finite_fail_what_they_spoil_and_nothing_else(runs, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(runs / "runs" / "none-seed0", broken)
    file = broken / "model" / "model.safetensors"
    weights = load_file(file)
    weights["head.bias"][3] = float("nan")
    save_file(weights, file)
    words = ["evaluate", str(broken), f"whole={runs / 'runs' / 'none-seed0'}", "--limit", "8"]
    words += ["--suite", "accuracy,noise,occlusion,pictures", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "4 of 8 questions failed, the first accuracy of broken: " in error
    found = results(tmp_path / "out")["questions"]
    assert {name: list(entry["answers"]) for name, entry in found.items()} == {name: ["whole"] for name in found}
    assert all("finite" in entry["left_out"]["broken"] for entry in found.values())


def test_answers_about_other_images_are_not_given_again(imagenet, tmp_path, capsys):
    words = small("vit_tiny_patch16_224", "--suite", "accuracy", "--out", str(tmp_path / "out"))
    assert main([*words, "--data", str(imagenet)]) == 0
    assert main([*words, "--data", f"{imagenet}/val/"]) == 0  # the same images by another path
    assert "1 answers had been kept" in capsys.readouterr().out
    next((imagenet / "val").rglob("*.JPEG")).unlink()
    assert main([*words, "--data", str(imagenet)]) == 2
    assert "made with contents of data '6 images of 3 classes" in capsys.readouterr().err


def test_out_that_is_a_file(imagenet, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--out", str(tmp_path / "file"))
    assert main(words) == 2
    assert "which is a file: want a folder" in capsys.readouterr().err


def test_an_interrupted_evaluation_keeps_its_answers_and_says_so(imagenet, tmp_path, capsys, monkeypatch):
    def interrupted(exam):
        raise KeyboardInterrupt

    broken_off = dataclasses.replace(QUESTIONS["noise"], ask=interrupted)
    words = small("vit_tiny_patch16_224", "--data", str(imagenet), "--suite", "accuracy,noise")
    with monkeypatch.context() as patch:
        patch.setitem(QUESTIONS, "noise", broken_off)
        assert main([*words, "--out", str(tmp_path / "o")]) == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().out.split())
    assert list(results(tmp_path / "o")["questions"]) == ["accuracy"]
    assert main([*words, "--out", str(tmp_path / "o")]) == 0
    assert "1 answers had been kept" in capsys.readouterr().out


def test_what_was_not_asked_is_told_once_for_each_reason():
    from attnmix.commands.evaluate import left_out_by_reason

    left_out = {"regions": {"a": "a CNN", "b": "a CNN"}, "mixed": {"a": "a CNN"}, "shift": {"b": "no sets"}}
    assert left_out_by_reason(left_out) == {"a CNN": "regions (a, b), mixed (a)", "no sets": "shift (b)"}


def test_questions_are_listed(capsys):
    assert main(["list", "questions"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in QUESTIONS)
