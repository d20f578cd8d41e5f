"""Two processes on the CPU, as torchrun starts them."""

import json
import subprocess
import sys

import pytest

from attnmix.training.checkpoint import load_checkpoint


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "attnmix", "train", "quickstart", "--method=smmix", "--out", str(tmp_path)]
    command += ["--model_options={img_size: 16, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}"]
    command += ["--data_options={train_count: 20, test_count: 9}", "--batch_size=4", "--epochs=2"]
    command += [
        "--device=cpu",
        "--threads=1",
        "--ema=0.9",
        "--accumulation_steps=2",
        "--method_options.mixup_prob=0.5",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top-1 ") == 1  # one of the two tells
    result = json.loads((tmp_path / "result.json").read_text())
    assert sum(map(sum, result["confusion"])) == 9  # no image twice, though 9 does not divide by 2
    assert len(load_checkpoint(tmp_path / "checkpoint.pt")["per_process"]) == 2
