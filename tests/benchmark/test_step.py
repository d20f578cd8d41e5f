import ast
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import attnmix
from attnmix.benchmark import rounds, step
from attnmix.benchmark.step import bench_steps
from attnmix.benchmark.step_model import model_and_batch
from attnmix.benchmark.step_rows import ALL_ROWS, StepRow
from attnmix.benchmark.step_settings import StepSettings
from attnmix.benchmark.step_time import TrainingStep

QUICK = StepSettings(batch_size=2, image_size=(32, 48), rounds=3, warmup=0, device="cpu")


def by_label(found):
    return {row["method"]: row for row in found}


@pytest.fixture(scope="module")
def measured():
    return by_label(bench_steps(["test_vit"], ALL_ROWS, QUICK))


def test_every_row_is_measured_beside_cutmix(measured):
    assert list(measured) == [row.label for row in ALL_ROWS]
    for row in measured.values():
        assert row["note"] is None
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["images_per_second"] == 2 / row["seconds"]
    plain = measured["cutmix"]
    assert [plain[key] for key in ("ratio", "low", "high", "floor", "memory_ratio")] == [1] * 5


def test_the_floor_is_counted(measured):
    floors = {label: row["floor"] for label, row in measured.items()}
    assert floors["none"] == floors["mixup"] == floors["cutmix, idle tap"] == 1
    assert 1 < floors["transmix"] < 1.01
    assert 1 < floors["tl-align"] < 1.05
    assert 1.3 < floors["smmix"] < 1.5  # a third more: one forward
    assert floors["smmix (mixup_prob=0.5)"] == pytest.approx((1 + floors["smmix"]) / 2)
    both = floors["tokenmixup"] - 1
    htm, vtm = floors["tokenmixup:vertical=null (HTM)"] - 1, floors["tokenmixup:horizontal=null (VTM)"] - 1
    assert 0 < vtm < both
    assert 0 < htm < both


def test_memory_is_that_of_the_dearest_kind_of_step(measured):
    assert measured["smmix (mixup_prob=0.5)"]["memory_bytes"] == measured["smmix"]["memory_bytes"]
    assert measured["none"]["memory_bytes"] < measured["cutmix"]["memory_bytes"]  # the mixed batch is new
    assert measured["tokenmixup"]["memory_ratio"] > 1


def test_kinds_are_timed_apart_and_weighed(monkeypatch):
    def seconds(action, device):
        draws = action.task.method.shares
        return 4.0 if action.task.method.__class__.__name__ == "SMMix" and draws["paste"] else 2.0

    monkeypatch.setattr(rounds, "_seconds", seconds)
    found = by_label(bench_steps(["test_vit"], [StepRow("a", "smmix", {"mixup_prob": 0.25})], QUICK))
    assert list(found) == ["cutmix", "a"]  # added, as all are compared with it
    assert found["a"]["ratio"] == 0.75 * 2 + 0.25
    assert found["a"]["images_per_second"] == 2 / 3.5


def test_what_a_model_cannot_is_noted_and_the_others_go_on():
    rows = [StepRow("t", "transmix"), StepRow("s", "smmix"), StepRow("b", "transmix", {"mixup_prob": 0.5})]
    found = by_label(bench_steps(["test_vit2"], rows, QUICK))
    assert found["s"]["ratio"] > 0
    for label in ("t", "b"):
        assert "no class token" in found[label]["note"]
        assert {value for key, value in found[label].items() if key not in ("model", "method", "note")} == {None}


def test_draws_and_threads_of_others_are_left_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    bench_steps(["test_vit"], [StepRow("none", "none")], QUICK)
    assert torch.get_rng_state().equal(state)
    assert torch.get_num_threads() == threads


def test_progress_reaches_its_end():
    told = []
    bench_steps(["test_vit"], ALL_ROWS[:3], QUICK, progress=lambda *now: told.append(now))
    assert told == [("test_vit", done, 6) for done in (0, 1, 2, 4, 5, 6)]


@pytest.mark.parametrize(
    ("models", "changes", "message"),
    [
        ([], {}, "no model named"),
        (["test_vit", "test_vitt"], {}, "unknown model 'test_vitt'; did you mean 'test_vit'"),
        (["test_resnet"], {}, "does not lay out its tokens"),
        (["test_vit"], {"image_size": (32, 40)}, "image width 40 is not a multiple of the patch"),
        (["vit_tiny_patch16_224.nobody"], {}, "cannot be made with .*Invalid pretrained tag"),
    ],
)
def test_wrong_models_and_sizes_end_before_any_is_measured(monkeypatch, models, changes, message):
    monkeypatch.setattr(step, "_bench_model", lambda *_: pytest.fail("was measured"))
    with pytest.raises(ValueError, match=message):
        bench_steps(models, ALL_ROWS, replace(QUICK, **changes))


def test_settings_reach_the_step(monkeypatch):
    seen = []
    forward = TrainingStep.forward

    def spy(step):
        seen.append((step.images, step.autocast))
        return forward(step)

    pinned = []
    monkeypatch.setattr(TrainingStep, "forward", spy)
    monkeypatch.setattr(step, "pinned_threads", lambda threads: pinned.append(threads) or nullcontext())
    settings = replace(QUICK, batch_size=3, dtype="bfloat16", threads=2, channels_last=True)
    bench_steps(["test_vit"], ALL_ROWS[2:3], settings)
    assert pinned == [2]
    for images, autocast in seen:
        assert images.shape == (3, 3, 32, 48)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert autocast == torch.bfloat16
    assert len(seen) == 1 + 1 + 3  # FLOPs, memory, rounds
    seen.clear()
    bench_steps(["test_vit"], ALL_ROWS[2:3], replace(settings, rounds=4, warmup=2))
    assert len(seen) == 1 + 1 + 6


def test_compile_compiles_each_task_after_its_flops_are_counted(monkeypatch):
    done = []
    monkeypatch.setattr(step, "count_flops", lambda action: done.append("count") or 1)
    allowed = []
    monkeypatch.setattr(
        step.MixTask,
        "compile",
        lambda task: done.append("compile") or allowed.append(torch._dynamo.config.recompile_limit),
    )
    with torch._dynamo.config.patch(recompile_limit=8):  # monkeypatch would leave torch without the setting
        bench_steps(["test_vit"], ALL_ROWS[1:3], replace(QUICK, compile=True, warmup=1))
        assert torch._dynamo.config.recompile_limit == 8
    assert done == ["count", "compile"] * 2
    assert allowed == [step.RECOMPILES] * 2


def test_model_and_batch_are_the_seeds_and_the_size_the_models_own():
    model, images, labels = model_and_batch("test_vit", replace(QUICK, image_size=None))
    assert images.shape == (2, 3, 160, 160)
    assert model.training
    again, same, classes = model_and_batch("test_vit", replace(QUICK, image_size=None))
    assert torch.equal(images, same)
    assert torch.equal(labels, classes)
    assert torch.equal(model.head.weight, again.head.weight)
    _, other, _ = model_and_batch("test_vit", replace(QUICK, image_size=None, seed=1))
    assert not torch.equal(images, other)


def test_a_model_that_takes_no_image_size_is_made_without():
    model, images, _ = model_and_batch("pvt_v2_b0", replace(QUICK, image_size=(64, 64)))
    assert model(images).shape == (2, 1000)


def test_stochastic_depth_is_off():
    model, _, _ = model_and_batch("swin_s3_tiny_224", replace(QUICK, image_size=None))
    assert not any(getattr(module, "drop_prob", 0) for module in model.modules())


def test_a_script_needs_nothing_to_draw_with():
    source = Path(attnmix.__file__).parent
    waiting, seen, foreign = ["step", "step_table", "results", "machine"], set(), set()
    waiting = [f"attnmix.benchmark.{name}" for name in waiting]
    while waiting:
        module = waiting.pop()
        file = source.joinpath(*module.split(".")[1:])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if module in seen or not file.is_file():  # a name out of a module is no file
            continue
        seen.add(module)
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            waiting += [name for name in names if name.startswith("attnmix.")]
            foreign |= {name.partition(".")[0] for name in names if not name.startswith("attnmix")}
    assert "attnmix.methods.smmix" in seen
    assert foreign - set(sys.stdlib_module_names) <= {"torch", "timm", "numpy", "scipy"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_is_what_was_allocated():
    found = by_label(bench_steps(["test_vit"], ALL_ROWS, replace(QUICK, device="cuda")))
    assert all(np.isfinite(row["ratio"]) for row in found.values())
    assert found["cutmix"]["memory_bytes"] > 2**20
