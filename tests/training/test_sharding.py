"""FSDP2 on two processes: weights in parts, the same run."""

import json

import pytest
import timm
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from attnmix.cli import main
from attnmix.training import save_recipe, train
from attnmix.training.checkpoint import load_checkpoint
from attnmix.training.sharding import in_parts, is_sharded, optimizer_in_parts, shard, whole
from attnmix.training.soundness import unsound_weight
from tests.methods.test_engines import make_task
from tests.training.test_resuming import BUSY

EXACT = 1e-5  # float32 sums in another order


def run(nursery, recipe, out, *typed):
    save_recipe(recipe, out.with_suffix(".yaml"))
    assert nursery.ranks(2, main, ["train", out.with_suffix(".yaml"), "--out", out, *typed]) == [0, 0]
    return json.loads((out / "result.json").read_text())


def close(one, other):
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name].float(), other[name].float(), atol=EXACT) for name in one)


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_whole_also_resumed_as_another(nursery, tiny, tmp_path):
    recipe = tiny(**{**BUSY, "clip_grad": 0.5, "nonfinite": "skip", "schedule": {"sched": "constant"}})
    wanted = run(nursery, recipe, tmp_path / "whole")
    run(nursery, recipe, tmp_path / "parts", "--fsdp", "full_shard", "--epochs", "2")
    kept = load_checkpoint(tmp_path / "parts" / "checkpoint.pt")
    assert not any(isinstance(value, DTensor) for value in kept["trainable"].values())
    more = ["--fsdp", "shard_grad_op", "--grad_checkpointing", "true", "--resume"]
    found = run(nursery, recipe, tmp_path / "parts", *more)
    for before, after in zip(wanted["history"], found["history"], strict=True):
        for name in ("train_loss", "eval_loss", "ema_loss", "eval_top1", "lr"):
            assert before[name] == pytest.approx(after[name], abs=EXACT), name
    assert found["confusion"] == wanted["confusion"]
    one, other = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("whole", "parts"))
    assert close(one["trainable"], other["trainable"])
    assert close(one["ema"], other["ema"])
    for number, kept in one["optimizer"]["state"].items():
        assert close(kept, other["optimizer"]["state"][number])
    exported = timm.create_model(f"local-dir:{tmp_path / 'parts' / 'model'}", pretrained=True)
    assert all(torch.equal(weight, other["ema"][name]) for name, weight in exported.state_dict().items())


def test_on_one_process_it_changes_nothing_and_says_so(tiny, tmp_path, capsys):
    plain = train(tiny(epochs=1), tmp_path / "plain", progress=False)
    asked = train(tiny(epochs=1, fsdp="full_shard"), tmp_path / "asked")
    assert "note: fsdp full_shard parts nothing, as there is one process" in capsys.readouterr().out
    assert asked.confusion == plain.confusion
    assert asked.history[0]["train_loss"] == plain.history[0]["train_loss"]


def parts():
    """What one process of two finds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    task = make_task("token-labeling")
    before = {name: value.clone() for name, value in task.get_trainable_module().state_dict().items()}
    task.setup_ema(decay=0.9)
    assert not is_sharded(task)
    shard(task, keep_gathered=False)
    assert is_sharded(task)
    module = task.get_trainable_module()
    weights = dict(module.named_parameters())
    assert all(isinstance(weight, DTensor) for weight in weights.values())
    local, all_of_it = (sum(map(count, weights.values())) for count in (local_size, torch.Tensor.numel))
    assert 0.4 < local / all_of_it < 0.6
    assert all(isinstance(weight, DTensor) for weight in task.get_eval_model(ema=True).parameters())

    gathered = whole(module.state_dict(), keep=rank == 0)
    if rank == 0:
        assert all(torch.equal(before[name], value) for name, value in gathered.items())
    else:
        assert all(value is None or isinstance(value, torch.Tensor) for value in gathered.values())
    module.load_state_dict(in_parts({name: value + 1 for name, value in before.items()}, module.state_dict()))
    assert all(torch.equal(before[n] + 1, value) for n, value in whole(module.state_dict()).items())

    # what an optimizer keeps once of a weight stays as it is
    weight = next(iter(weights.values()))
    optimizer = torch.optim.AdamW([weight])
    kept = {"step": torch.tensor(3.0), "exp_avg": torch.rand(weight.shape)}
    state = optimizer_in_parts({"state": {0: kept}, "param_groups": [{"params": [0]}]}, optimizer)["state"][0]
    assert torch.equal(state["exp_avg"].full_tensor(), kept["exp_avg"])
    assert not isinstance(state["step"], DTensor)

    assert unsound_weight(module) is None
    name = "model.pos_embed"
    if rank == 0:  # its part is the larger one
        with torch.no_grad():
            weights[name].to_local().fill_(float("nan"))
    assert unsound_weight(module) == name  # in both
    dist.destroy_process_group()


def local_size(weight):
    return weight.to_local().numel()


@pytest.mark.slow
def test_weights_are_parted_and_put_together(nursery):
    nursery.ranks(2, parts)


def test_what_is_whole_stays():
    module = nn.Linear(2, 3)
    state = {"a": [module.weight, 3], "b": {"c": None}}
    assert whole(state)["a"][0] is module.weight
    assert whole(state) == state
    assert in_parts(module.state_dict(), module.state_dict()).keys() == {"weight", "bias"}
