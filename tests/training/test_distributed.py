"""Two processes on the CPU, as torchrun starts them."""

import dataclasses
import gc
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.nn.parallel import DistributedDataParallel

import attnmix
from attnmix.training import load_recipe, loop, resuming, save_recipe, train
from attnmix.training.checkpoint import load_checkpoint
from attnmix.training.stopping import Stopped


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "attnmix", "train", "quickstart", "--method=smmix", "--out", str(tmp_path)]
    command += ["--model_options={img_size: 16, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}"]
    command += ["--data_options={train_count: 20, test_count: 9}", "--batch_size=4", "--epochs=2"]
    command += [
        "--threads=1",  # and no --device: what is at hand, the CPU in tests
        "--ema=0.9",
        "--accumulation_steps=2",
        "--method_options.mixup_prob=0.5",
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top-1 ") == 1  # one of the two tells
    result = json.loads((tmp_path / "result.json").read_text())
    assert sum(map(sum, result["confusion"])) == 9  # no image twice, though 9 does not divide by 2
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    first, second = saved["per_process"]
    assert not torch.equal(first["rng"]["torch"], second["rng"]["torch"])  # other dropout on each
    assert saved["num_processes"] == 2


@pytest.mark.slow
def test_two_nodes_train_what_two_processes_of_one_do(nursery, tiny, tmp_path):
    """Each node has a torchrun of its own, which knows the other by an address; both see the folder."""
    save_recipe(tiny(method="cutmix"), tmp_path / "recipe.yaml")
    train_it = ["-m", "attnmix", "train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "nodes")]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{get_free_port()}", *train_it]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    nodes = [subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet) for _ in range(2)]
    told = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert sum(text.count("top-1 ") for text in told) == 1  # one of the two tells
    nursery.ranks(2, trained_weights, tmp_path / "recipe.yaml", tmp_path / "processes")
    found, wanted = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("nodes", "processes"))
    assert found["num_processes"] == 2
    assert all(torch.equal(found["trainable"][name], value) for name, value in wanted["trainable"].items())


def trained_weights(recipe, out):
    """Train, in a process that does nothing else; a digest of the weights at its end."""
    made = []

    class Watched(attnmix.MixTask):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    attnmix.MixTask = Watched
    train(load_recipe(recipe), out, progress=False)
    digest = hashlib.sha256()
    for parameter in made[0].get_trainable_module().parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"aug_repeats": 3, "augment": {"no_aug": False, "re_prob": 0.5}}])
def test_both_processes_end_with_the_same_weights(nursery, tiny, tmp_path, more):
    options = {"mixup_prob": 0.5, "token_head": True}
    save_recipe(tiny(method="smmix", method_options=options, **more), tmp_path / "recipe.yaml")
    first, second = nursery.ranks(2, trained_weights, tmp_path / "recipe.yaml", tmp_path / "run")
    assert first == second


def wrappers_at_the_end(recipe, out, stop):
    """Train, to a second step where told to `stop`; as the group ended, how many wrappers, and was all saved?"""
    found, steps = [], []
    destroy, save = dist.destroy_process_group, resuming.save_checkpoint

    def slowly(path, state):
        time.sleep(1)
        save(path, state)

    class Stopping(attnmix.MixTask):
        def forward(self, *args, **options):
            steps.append(1)
            if len(steps) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(*args, **options)

    def counted(group=None):
        found.append(sum(type(thing) is DistributedDataParallel for thing in gc.get_objects()))
        found.append((Path(out) / "checkpoint.pt").is_file())
        destroy(group)

    resuming.save_checkpoint = slowly
    dist.destroy_process_group = counted
    if stop:
        attnmix.MixTask = Stopping
    try:
        train(load_recipe(recipe), out, progress=False)
        return [*found, "ended"]
    except Stopped:
        return [*found, "stopped"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_the_group_ends_after_distributed_data_parallel(nursery, tiny, tmp_path, stop):
    """Else a process may never end: the wrapper would free the group, and wait for threads that wait for it."""
    save_recipe(tiny(epochs=3), tmp_path / "recipe.yaml")
    for found in nursery.ranks(2, wrappers_at_the_end, tmp_path / "recipe.yaml", tmp_path / "run", stop):
        assert found == [0, True, "stopped" if stop else "ended"]


def skipping(recipe, out):
    """Train with NaN for the second process's loss wherever a region is pasted; the first epoch's numbers."""

    class Spoilt(attnmix.MixTask):
        def forward(self, images, labels):
            result = super().forward(images, labels)
            is_bad = dist.get_rank() == 1 and "fine" in result["losses"]
            return {**result, "loss": result["loss"] * (math.nan if is_bad else 1)}

    attnmix.MixTask = Spoilt
    return train(load_recipe(recipe), out, progress=False).history[0]


@pytest.mark.slow
def test_updates_that_one_process_spoils_are_skipped_by_both(nursery, tiny, tmp_path):
    options = {"mixup_prob": 0.5, "seed": 1}
    recipe = tiny(method="smmix", method_options=options, nonfinite="skip", data_options={"train_count": 80})
    save_recipe(recipe, tmp_path / "recipe.yaml")
    first, second = nursery.ranks(2, skipping, tmp_path / "recipe.yaml", tmp_path / "run")
    assert first["train_loss"] == second["train_loss"]
    assert math.isfinite(first["loss_fine"])  # of the first process's images
    assert 0 < first["skipped_updates"] < 5


def evaluated_buffers(recipe, out):
    """Train; the sum of the buffers of each evaluation's model."""
    found, evaluate = [], loop.evaluate_accuracy

    def noted(model, *args):
        found.append(sum(buffer.double().sum().item() for buffer in model.buffers()))
        return evaluate(model, *args)

    loop.evaluate_accuracy = noted
    train(load_recipe(recipe), out, progress=False)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", ["no", "full_shard"])
def test_both_processes_evaluate_with_one_statistic_of_batchnorm(nursery, tiny, tmp_path, fsdp):
    small = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    recipe = dataclasses.replace(tiny(ema=0.5, fsdp=fsdp), model="xcit_nano_12_p8_224", model_options=small)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    first, second = nursery.ranks(2, evaluated_buffers, tmp_path / "recipe.yaml", tmp_path / "run")
    assert first == second
    assert len(set(first)) == 4  # the model's and its average's, twice
