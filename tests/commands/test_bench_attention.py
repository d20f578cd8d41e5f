import json

import pytest
import torch
from PIL import Image

from attnmix.benchmark import attention
from attnmix.benchmark.attention import QUANTITIES, WHOLE, AttentionCost
from attnmix.cli import main
from attnmix.commands.bench_attention import parse_tokens

QUICK = ["--rounds", "3", "--width", "8", "--device", "cpu"]


def found(tmp_path, *words, stem="attention-cpu-float32"):
    assert main(["bench", "attention", *QUICK, "--out", str(tmp_path), *words]) == 0
    return json.loads((tmp_path / f"{stem}.json").read_text())


def test_a_table_and_three_files(tmp_path, capsys):
    rows = found(tmp_path, "--tokens", "4,16")["rows"]
    assert [(row["tokens"], row["quantity"]) for row in rows] == [
        (n, name) for n in (4, 16) for name in QUANTITIES
    ]
    printed = capsys.readouterr().out
    for name in (*QUANTITIES, "3 at 4, 3 at 16 tokens"):
        assert name in " ".join(printed.split())
    paths = [tmp_path / f"attention-cpu-float32{ending}" for ending in (".json", ".md", ".png")]
    assert printed.split()[-3:] == [str(path) for path in paths]
    assert "| 16 | label propagation |" in paths[1].read_text()
    assert Image.open(paths[2]).width > 800


def test_without_out_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "attention", *QUICK, "--tokens", "4"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_what_needs_too_much_is_left_out_and_said(tmp_path, capsys):
    result = found(tmp_path, "--tokens", "4,64", "--max_gib", "0.00002")  # 21 KiB
    whole = [row for row in result["rows"] if row["quantity"] == WHOLE]
    assert [row["seconds"] is None for row in whole] == [False, True]
    assert "needs 0.000 GiB at 64 tokens and was left out" in " ".join(capsys.readouterr().out.split())


def test_the_options_reach_the_measurement(tmp_path, monkeypatch):
    seen = {}

    def fake(tokens, **options):
        seen.update(options, tokens=tokens, threads=torch.get_num_threads())
        return [AttentionCost(4, QUANTITIES[0], 1e-3, 1.0, 1.0, 1.0, 100, 3)]

    monkeypatch.setattr(attention, "measure_attention", fake)
    words = "--tokens 4,9 --heads 2 --width 6 --batch_size 5 --rounds 7 --seconds 2 --threads 2 --dtype bfloat16"
    result = found(tmp_path, *words.split(), "--max_gib", "1", stem="attention-cpu-bfloat16")
    expected = {
        "tokens": [4, 9],
        "heads": 2,
        "width": 6,
        "batch_size": 5,
        "rounds": 7,
        "seconds": 2.0,
        "threads": 2,
        "dtype": torch.bfloat16,
        "max_bytes": 2**30,
        "device": torch.device("cpu"),
    }
    assert {name: seen[name] for name in expected} == expected
    assert torch.get_num_threads() == 1  # given back
    assert result["settings"]["machine"]["threads"] == 2
    command = result["settings"]["command"]
    assert command.startswith("attnmix bench attention --tokens 4,9 --heads 2 --width 6")
    assert str(tmp_path) not in command


def test_memory_that_runs_out_is_advice(capsys, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(attention, "measure_attention", full)
    assert main(["bench", "attention", *QUICK]) == 2
    assert "does not fit on cpu: lower --max_gib, --batch_size or --tokens" in capsys.readouterr().err


def test_tokens_are_read():
    assert parse_tokens("49, 196") == [49, 196]
    assert parse_tokens("16") == [16]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens", "4,x"], "tokens '4,x': want whole numbers with commas between"),
        (["--tokens", "0"], "want 1 or more"),
        (["--tokens", "9,4"], "each number greater than the one before"),
        (["--rounds", "2"], "rounds is 2, but must be 3 or more"),
        (["--heads", "0"], "heads is 0, but must be 1 or more"),
        (["--width", "0"], "width is 0"),
        (["--batch_size", "0"], "batch_size is 0"),
        (["--threads", "0"], "threads is 0"),
        (["--seconds", "-1"], "seconds is -1.0, but must be 0 or more"),
        (["--max_gib", "-1"], "max_gib is -1.0, but must be 0 or more"),
        (["--dtype", "int8"], "dtype is 'int8', but must be one of float32, bfloat16, float16"),
        (["--device", "tpu"], "device is 'tpu', but must be auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "CUDA devices here"),
        (["--token", "4"], "did you mean '--tokens'"),
    ],
)
def test_wrong_words_are_named(capsys, words, message):
    assert main(["bench", "attention", *words]) == 2
    assert message in capsys.readouterr().err
