"""Every method under torch.compile, autocast, gradient checkpointing and two processes: the eager step's loss."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import attnmix
from attnmix.training.sharding import shard, whole
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.methods.settings import NAMES, options_for


def make_task(name, model=None, **options):
    method = attnmix.create_method(name, num_classes=NUM_CLASSES, **options_for(name, tiny_vit, **options))
    return attnmix.MixTask(model or tiny_vit(), method)


def make_batch(batch=4):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, 16, 24, generator=generator), torch.arange(batch) % NUM_CLASSES


def gradients(task):
    return {name: parameter.grad for name, parameter in task.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_model_gives_the_eager_step(name, precision):
    eager, compiled = make_task(name), make_task(name)
    compiled.compile(backend="aot_eager")
    images, labels = make_batch()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    tolerance = 0.02 if precision == "bfloat16" else 1e-5
    for _ in range(3):
        with autocast:
            ours, wanted = compiled(images, labels), eager(images, labels)
        assert ours["loss"].item() == pytest.approx(wanted["loss"].item(), rel=tolerance)
        assert torch.allclose(ours["target"], wanted["target"], atol=tolerance)
        for task, out in ((compiled, ours), (eager, wanted)):
            task.zero_grad()
            out["loss"].backward()
        if precision == "float32":
            for one, two in zip(gradients(compiled).values(), gradients(eager).values(), strict=True):
                assert torch.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_gives_the_same_step_or_says_why_not(name):
    model = tiny_vit()
    model.set_grad_checkpointing(True)
    if name in ("tokenmixup", "manifold-mixup"):
        with pytest.raises(ValueError, match="checkpoints gradients.*switch gradient checkpointing off"):
            make_task(name, model)
        return
    plain, saving = make_task(name), make_task(name, model)
    images, labels = make_batch()
    outs = [task(images, labels) for task in (plain, saving)]
    assert outs[0]["loss"].item() == pytest.approx(outs[1]["loss"].item(), abs=1e-6)
    for out in outs:
        out["loss"].backward()
    for one, two in zip(gradients(plain).values(), gradients(saving).values(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def one_process(folder):
    """Of two: losses and gradients of a step by every method, to a file of its rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    images, labels = make_batch(8)
    mine = slice(4 * rank, 4 * rank + 4)
    found = {}
    for name in NAMES:
        task = make_task(name, mode="batch")
        step = DistributedDataParallel(task)
        losses = []
        for _ in range(2):
            step.zero_grad()
            out = step(images[mine], labels[mine])
            out["loss"].backward()
            losses.append(out["loss"].item())
        found[name] = losses, {key: value.clone() for key, value in gradients(task).items()}

        parted = make_task(name, mode="batch")
        shard(parted, keep_gathered=False)
        for wanted in losses:
            parted.zero_grad()
            out = parted(images[mine], labels[mine])
            out["loss"].backward()
            assert out["loss"].item() == pytest.approx(wanted, abs=1e-6), name
        for key, value in whole(gradients(parted)).items():
            assert torch.allclose(value, found[name][1][key], atol=1e-6), (name, key)
    torch.save(found, f"{folder}/{rank}.pt")
    del step  # freed after the group, it may wait for ever
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_mean_of_two_single_ones_also_in_parts(nursery, tmp_path):
    nursery.ranks(2, one_process, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    images, labels = make_batch(8)
    for name in NAMES:
        singles = []
        for rank in range(2):
            task = make_task(name, mode="batch")
            task.method.draw_as(rank)  # boxes are each process's own
            losses = []
            for _ in range(2):
                task.zero_grad()
                out = task(images[4 * rank : 4 * rank + 4], labels[4 * rank : 4 * rank + 4])
                out["loss"].backward()
                losses.append(out["loss"].item())
            singles.append(copy.deepcopy(gradients(task)))
            assert ranks[rank][name][0] == pytest.approx(losses, abs=1e-5), name
        for key, ours in ranks[0][name][1].items():
            assert ours.equal(ranks[1][name][1][key])
            assert torch.allclose(ours, (singles[0][key] + singles[1][key]) / 2, atol=1e-5), (name, key)
