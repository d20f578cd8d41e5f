import json
import shlex

import pytest
import torch

import attnmix
from attnmix.benchmark import step
from attnmix.benchmark.step_rows import ALL_ROWS
from attnmix.cli import main
from attnmix.commands.bench_step import parse_rows, parse_size

QUICK = ["--models", "test_vit", "--rounds", "3", "--warmup", "0", "--batch_size", "2", "--image_size", "32"]


def bench(*words):
    return main(["bench", "step", *QUICK, "--device", "cpu", *words])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "results"
    words = ["--models", "test_vit,test_vit2", "--methods", "transmix,idle-tap", "--out", str(out)]
    assert bench(*words) == 0
    return out


def test_it_writes_what_it_found_and_on_what(written):
    assert sorted(path.name for path in written.iterdir()) == [
        "step-cpu-float32.json", "step-cpu-float32.md", "step-cpu-float32.png",
    ]  # fmt: skip
    results = json.loads((written / "step-cpu-float32.json").read_text())
    rows = [(row["model"], row["method"]) for row in results["rows"]]
    labels = ["cutmix", "cutmix, idle tap", "transmix"]
    assert rows == [(model, label) for model in ("test_vit", "test_vit2") for label in labels]
    settings = results["settings"]
    assert settings["models"] == ["test_vit", "test_vit2"]
    assert (settings["batch_size"], settings["image_size"], settings["rounds"]) == (2, [32, 32], 3)
    assert settings["machine"]["threads"] == 1
    assert str(written) not in json.dumps(results)
    page = (written / "step-cpu-float32.md").read_text()
    assert "| test_vit | cutmix | 1.000 | 1.000–1.000 | 1.000 |" in page
    assert "| test_vit2 | transmix | – |" in page
    assert "transmix on test_vit2: VisionTransformer classifies by no class token" in page


def test_the_command_it_wrote_down_measures_the_same_again(written, capsys):
    settings = json.loads((written / "step-cpu-float32.json").read_text())["settings"]
    assert settings["command"].startswith(
        "attnmix bench step --models test_vit,test_vit2 --methods transmix,idle-tap"
    )
    assert main([*shlex.split(settings["command"])[1:], "--models", "test_vit"]) == 0
    assert "idle tap" in capsys.readouterr().out


def test_it_prints_the_table_and_without_out_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert bench("--methods", "smmix:mixup_prob=0.5") == 0
    text = capsys.readouterr().out
    assert "smmix (mixup_prob=0.5)" in text
    assert "ratio to CutMix" in text
    assert "Floor: FLOPs" in text
    assert list(tmp_path.iterdir()) == []


def test_options_reach_the_settings(monkeypatch):
    seen = []
    monkeypatch.setattr(step, "bench_steps", lambda models, rows, settings, progress: seen.append(settings) or [])
    words = ["--image_size", "64,32", "--threads", "2", "--dtype", "float16", "--compile", "--channels_last",
             "--seed", "4", "--warmup", "5"]  # fmt: skip
    assert bench(*words) == 0
    settings = seen[0]
    assert settings.image_size == (64, 32)
    assert (settings.threads, settings.dtype, settings.seed, settings.warmup) == (2, "float16", 4, 5)
    assert settings.compile
    assert settings.channels_last
    assert settings.stem == "step-cpu-float16-compile-channels-last"


def test_the_name_of_the_files_says_dtype_and_compilation(monkeypatch, tmp_path):
    monkeypatch.setattr(step, "bench_steps", lambda *_, **__: [])
    assert bench("--dtype", "bfloat16", "--compile", "--warmup", "1", "--out", str(tmp_path)) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {"step-cpu-bfloat16-compile"}


def test_interrupted_it_leaves_nothing_behind(monkeypatch, tmp_path, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "bench_steps", interrupted)
    assert bench("--out", str(tmp_path / "out")) == 130
    assert not (tmp_path / "out").exists()
    assert "interrupted" in capsys.readouterr().err


def test_too_little_memory_is_said(monkeypatch, capsys):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    monkeypatch.setattr(step, "bench_steps", full)
    assert bench() == 2
    assert "batch_size 2 does not fit into cpu's memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "test_vitt"], "unknown model 'test_vitt'; did you mean 'test_vit'"),
        (["--models", ","], "no model named"),
        (["--rounds", "2"], "rounds is 2, but must be 3 or more"),
        (["--batch_size", "1"], "batch_size is 1, but must be 2 or more"),
        (["--image_size", "40"], "image height 40 is not a multiple of the patch"),
        (["--image_size", "32x32"], "image_size is '32x32': want a side"),
        (["--device", "cuda:77"], "but torch sees"),
        (["--threads", "0"], "threads is 0, but must be 1 or more"),
        (["--dtype", "int8"], "dtype is 'int8', but must be one of float32"),
        (["--methods", "smix"], 'no method "smix"; did you mean "smmix"'),
        (["--methods", "cutmix,cutmix"], "cutmix is named twice"),
        (["--methods", ""], "no method named"),
        (["--round", "3"], "unknown option '--round'; did you mean '--rounds'"),
        (["--batch-size", "3"], "unknown option '--batch-size'; did you mean '--batch_size'"),
    ],
)
def test_wrong_words_end_in_one_line(tmp_path, capsys, words, message):
    assert bench("--out", str(tmp_path / "out"), *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_methods_as_they_are_typed():
    assert parse_rows("all") == list(ALL_ROWS)
    rows = parse_rows("smmix:side_ratio=[0.5,0.5]:fine=false, idle-tap,tokenmixup:vertical=null")
    assert [(row.label, row.method) for row in rows] == [
        ("cutmix, idle tap", "idle-tap"),
        ("smmix (side_ratio=[0.5, 0.5], fine=False)", "smmix"),
        ("tokenmixup (vertical=None)", "tokenmixup"),
    ]
    assert rows[1].options == {"side_ratio": [0.5, 0.5], "fine": False}
    assert [row.method for row in parse_rows("idle-tap")] == ["idle-tap"]
    others = {row.method: row.options for row in parse_rows("others")}
    assert set(others) == set(attnmix.METHODS) - {row.method for row in ALL_ROWS}
    for name, kind in attnmix.METHODS.items():
        assert others.get(name, {}) == ({} if kind.teacher_option is None else {kind.teacher_option: "self"})
    more = parse_rows("all,smmix:consistency=false")
    assert more[:-1] == list(ALL_ROWS)
    assert more[-1].options == {"consistency": False}


@pytest.mark.parametrize(
    "typed",
    [
        "all,cutmix",
        "transmix,all",
        "all,tokenmixup:vertical=null",
        "idle-tap,idle-tap",
        "all,all",
        "others,others",
    ],
)
def test_a_row_is_named_once(typed):
    with pytest.raises(ValueError, match="twice"):
        parse_rows(typed)


def test_sizes_as_they_are_typed():
    assert [parse_size(typed) for typed in (None, "224", 224, "224,160")] == [
        None,
        (224, 224),
        (224, 224),
        (224, 160),
    ]
    for wrong in ("", "0", "-3", "1,2,3", "a"):
        with pytest.raises(ValueError, match="want a side in pixels"):
            parse_size(wrong)
