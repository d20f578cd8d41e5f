import json
import subprocess
import sys

import pytest
import torch
import yaml

from attnmix import cli
from attnmix.training import assembly, loop

TINY = [
    "--model_options={img_size: 16, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}",
    "--data_options={train_count: 24, test_count: 10}",
    "--batch_size=8",
    "--epochs=2",
    "--device=cpu",
    "--threads=1",
    "--schedule.warmup_epochs=1",
]


def train(*words):
    return cli.main(["train", "quickstart", *TINY, *words])


def error(capsys):
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("attnmix: error: ")
    return captured.err


def test_train_end_to_end_in_its_own_process(tmp_path):
    """The command as typed, without a terminal: lines, not a bar."""
    command = [sys.executable, "-m", "attnmix", "train", "quickstart", *TINY, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.partition("  ")[0] for line in lines[:2]] == ["epoch 1/2", "epoch 2/2"]
    assert lines[2].startswith("top-1 ")
    assert "create_model" in lines[3]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_options_reach_the_recipe_below_and_above_its_name(tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    words = [
        "--method=smmix",
        "--method_options.mixup_prob",
        "0.25",
        "--optimizer.weight_decay=0.2",
        "--seed=5",
    ]
    assert cli.main(["train", "--lr", "1e-3", "quickstart", *TINY, *words, *out]) == 0
    written = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert written["lr"] == 0.001
    assert written["method"] == "smmix"
    assert written["method_options"] == {"mixup_prob": 0.25}
    assert written["optimizer"]["weight_decay"] == 0.2
    assert written["seed"] == 5
    assert written["clip_grad"] == 5.0  # the recipe's own


def test_resume_and_its_errors(tmp_path, capsys):
    out = f"--out={tmp_path / 'run'}"
    assert train(out, "--resume") == 2
    assert "nothing to resume: there is no checkpoint at" in error(capsys)
    assert train(out) == 0
    capsys.readouterr()
    assert train(out) == 2
    assert "already holds a run: add --resume to go on with it, or choose another --out" in error(capsys)
    assert train(out, "--resume", "--lr=1") == 2
    assert "lr was 0.002 and is now 1.0" in error(capsys)
    assert train(out, "--resume", "--epochs=3") == 0
    history = json.loads((tmp_path / "run" / "result.json").read_text())["history"]
    assert [entry["epoch"] for entry in history] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epoch=3"], "unknown option '--epoch'; did you mean '--epochs'?"),
        (["--batch-size", "3"], "unknown option '--batch-size'; did you mean '--batch_size'?"),
        (["--weight_decay=3"], "unknown option '--weight_decay'; did you mean '--optimizer.weight_decay'?"),
        (["--optimizer.wd=3"], "unknown option '--optimizer.wd'"),
        (["--epochs=three"], "error: epochs must be a whole number. Got value: three"),
        (["--epochs=0"], "epochs is 0, but must be 1 or more"),
        (["--precision=bf17"], "bf17"),
        (["--method=smmx"], "smmix"),
        (["--method_options.smoothin=0.1"], "smoothing"),
        (["--model=vit_tinny_patch16_224"], "did you mean 'vit_tiny_patch16_224'?"),
        (["--model_options.patchsize=4"], "patchsize"),
        (["--data=no/such/folder"], "no/such/folder"),
        (["--data_options.train_counts=3"], "train_count"),
        (["--eval_split=tests"], "tests"),
        (["--optimizer.opt=adamm"], "adamm"),
        (["--init=no.safetensors"], "there is no file 'no.safetensors'"),
        (["--model_options.img_size=20"], "20"),
        (["--model_options.num_classes=3"], "the data set decides the number of classes"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, capsys, words, message):
    assert train(f"--out={tmp_path / 'run'}", *words) == 2
    assert message in error(capsys)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?; known: train, "),
        (["train", "quikstart", "--out=x"], "unknown recipe 'quikstart'; did you mean 'quickstart'?"),
        (["train", "quickstart"], "out"),
        (["train"], "recipe"),
    ],
)
def test_wrong_commands(capsys, words, message):
    assert cli.main(words) == 2
    assert message in error(capsys)


def test_an_unknown_key_in_a_file(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("epoch: 3\n")
    assert cli.main(["train", str(tmp_path / "mine.yaml"), "--out=x"]) == 2
    assert "unknown recipe key 'epoch' in " in error(capsys)


def test_debug_shows_where_an_error_came_from(monkeypatch):
    with pytest.raises(ValueError, match="unknown recipe"):
        cli.main(["train", "nope", "--out=x", "--debug"])
    monkeypatch.setenv("ATTNMIX_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown recipe"):
        cli.main(["train", "nope", "--out=x"])


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    save = loop.save_run

    def interrupted(*args, **kwargs):
        save(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_run", interrupted)
        assert train(f"--out={tmp_path}") == 130
    assert (
        "interrupted; the same command with --resume goes on from the last checkpoint" in capsys.readouterr().err
    )
    assert train(f"--out={tmp_path}", "--resume") == 0

    monkeypatch.setattr(assembly, "create_model", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert train(f"--out={tmp_path / 'early'}") == 130
    assert "interrupted; no checkpoint yet: start again" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_one_line(tmp_path, capsys):
    assert train(f"--out={tmp_path}", "--lr=1e30", "--clip_grad=null", "--schedule.warmup_epochs=0") == 2
    assert "the loss is nan in epoch 1, step " in error(capsys)


def test_diverged_weights_leave_the_last_good_checkpoint(tmp_path, capsys):
    words = [f"--out={tmp_path}", "--batch_size=24", "--clip_grad=null"]  # one step an epoch: its loss is fine
    assert train(*words, "--lr=1e30", "--schedule.warmup_lr=1e-6", "--epochs=3") == 2
    assert "after epoch 2: the checkpoint in" in error(capsys)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epoch"] == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_one_line(tmp_path, capsys, workers):
    for split in ("train", "val"):
        for index in range(5):
            path = tmp_path / "images" / split / "cat" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("no image at all")
    words = [f"--data={tmp_path / 'images'}", "--eval_split=val", f"--loader.workers={workers}"]
    assert train(f"--out={tmp_path / 'run'}", *words, "--data_options={}") == 2
    line = error(capsys)
    assert line.startswith("attnmix: error: 4 of 5 images cannot be read")
    assert "Traceback" not in line


def test_only_the_first_process_tells(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert train(f"--out={tmp_path}", "--lr=0") == 2
    assert capsys.readouterr().err == ""
    with monkeypatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")  # the first of another node, whose disk may lack what ours has
        assert train(f"--out={tmp_path}", "--lr=0") == 2
        assert "lr is 0" in error(capsys)
    monkeypatch.setattr(cli, "_run", lambda words: (_ for _ in ()).throw(FloatingPointError("the loss is nan")))
    assert train(f"--out={tmp_path}") == 2  # which may be this process's alone
    assert "the loss is nan" in error(capsys)
    monkeypatch.setattr(cli, "_run", lambda words: (_ for _ in ()).throw(MemoryError("batch_size 8 does not fit")))
    assert train(f"--out={tmp_path}") == 2  # nor need another's GPU be as full
    assert "batch_size 8 does not fit" in error(capsys)
    monkeypatch.setattr(cli, "_run", lambda words: (_ for _ in ()).throw(KeyboardInterrupt))
    assert train(f"--out={tmp_path}") == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["compare", "evaluate", "maps", "bench data"])
def test_other_commands_are_of_one_process(capsys, monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main([*name.split(), "quickstart"]) == 2
    assert f"attnmix {name} runs in one process, not in 2: start it without torchrun" in error(capsys)
    assert cli.main([*name.split(), "--help"]) == 0


def test_help(capsys):
    assert cli.main([]) == 0
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"\n  {command} " in text
    assert cli.main(["train", "--help"]) == 0
    general = capsys.readouterr().out
    assert "attnmix train quickstart --method smmix --out runs/smmix" in general
    assert "Peak learning rate, as it is" in " ".join(general.split())
    assert cli.main(["train", "quickstart", "--help"]) == 0
    assert "float, default: 0.002" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("attnmix ")
