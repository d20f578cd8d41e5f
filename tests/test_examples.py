"""Every example runs; the loops learn, and what they save is a plain model."""

import contextlib
import functools
import importlib.util
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

import attnmix
from attnmix.data import DigitsInScenes

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCS = Path(__file__).parent.parent / "docs" / "drop_in.md"
LOOPS = ("plain_loop", "timm_loop", "huggingface_trainer", "lightning_trainer", "accelerate_loop")
LINE = re.compile(r"^epoch (\d+) loss ([\d.]+) accuracy ([\d.]+) %", re.MULTILINE)
# what a run of two epochs of four steps leaves to go on from, and how it is named to `main`
CHECKPOINTS = {
    "timm_loop": ["{folder}/checkpoint-0.pth.tar", "{folder}/checkpoint-1.pth.tar"],
    "huggingface_trainer": ["{folder}/checkpoint-4", "{folder}/checkpoint-8"],
    "lightning_trainer": ["{folder}/epoch=0.ckpt", "{folder}/epoch=1.ckpt"],
    "accelerate_loop": [1, 2],
}


@functools.cache
def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, folder, **options):
    """The task, and (epoch, loss, accuracy) of each line that was printed."""
    where = {"weights": f"{folder}/model.safetensors"} if name == "plain_loop" else {"folder": str(folder)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        task = load(name).main(**where, **options)
    found = LINE.findall(printed.getvalue())
    return task, [(int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in found]


@functools.cache
def learnt(name):
    folder = tempfile.TemporaryDirectory()
    _, lines = run(name, folder.name, epochs=6, train_count=600, test_count=301)
    return folder, lines


def saved_model(name, folder):
    """What the example saved, in a model that knows nothing of attnmix."""
    if name == "huggingface_trainer":
        return AutoModelForImageClassification.from_pretrained(f"{folder}/model")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **load(name).VIT)
    if name == "timm_loop":
        timm.models.load_checkpoint(model, f"{folder}/last.pth.tar", use_ema=False)
    else:
        model.load_state_dict(load_file(f"{folder}/model.safetensors"))
    return model


@torch.inference_mode()
def accuracy_of(model, *, test_count):
    data = DigitsInScenes("test", test_count=test_count, size=32, clutter=0, scale=(0.9, 1.0))
    output = model.eval()((data.images.float() / 255 - 0.5) / 0.5)
    return 100 * (getattr(output, "logits", output).argmax(dim=1) == data.labels).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_learns_and_saves_a_plain_model(name):
    folder, lines = learnt(name)
    assert [epoch for epoch, _, _ in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1][1] < lines[0][1] - 0.2
    assert lines[-1][2] > 22  # by chance 10, and 5 standard deviations of 301 images above it are 19
    assert accuracy_of(saved_model(name, folder.name), test_count=301) == pytest.approx(lines[-1][2], abs=0.06)


@pytest.mark.slow
def test_frameworks_take_the_plain_loops_steps():
    wanted = learnt("plain_loop")[1]
    for name in ("lightning_trainer", "accelerate_loop"):
        assert learnt(name)[1] == [pytest.approx(line, abs=0.5) for line in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_resumed_run_goes_on(name, tmp_path):
    options = {"epochs": 2, "train_count": 100, "test_count": 20}
    first, lines = run(name, tmp_path, **options)
    middle, end = (
        place.format(folder=tmp_path) if isinstance(place, str) else place for place in CHECKPOINTS[name]
    )
    resumed, again = run(name, tmp_path, **options, resume=end)
    assert [line[0] for line in again] in ([], [1, 2])  # nothing was left to do; the Trainer lists what was done
    weights, wanted = resumed.get_eval_model().state_dict(), first.get_eval_model().state_dict()
    assert all(weights[key].equal(wanted[key]) for key in wanted)
    resumed, again = run(name, tmp_path, **options, resume=middle)
    assert again[-1][0] == 2
    assert len(again) == 1 or again[0] == lines[0]
    # as many draws as in the run that went through: its boxes, not those of the first epoch again
    assert resumed.method.generator.get_state().equal(first.method.generator.get_state())


WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import accelerate_loop, timm_loop
for loop in (timm_loop, accelerate_loop):
    loop.main(epochs=2, train_count=100, test_count=21, folder=f"{sys.argv[2]}/{loop.__name__}")
"""


@pytest.mark.slow
def test_loops_run_in_two_processes(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    loops = ("timm_loop", "accelerate_loop")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(worker), str(EXAMPLES), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = LINE.findall(done.stdout)
    assert [epoch for epoch, _, _ in lines] == ["1", "2"] * len(loops)  # one of the two tells
    for name, (_, _, accuracy) in zip(loops, lines[1::2], strict=True):
        # of 21 images, which two do not divide by, none counts twice
        assert float(accuracy) == pytest.approx(
            accuracy_of(saved_model(name, tmp_path / name), test_count=21), abs=0.06
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "model_options"),
    [
        ("every_method", {}, {}),
        # tracing takes the time, and every block is traced alike
        ("compiled_bfloat16", {"backend": "aot_eager"}, {"depth": 4}),
    ],
)
def test_every_method_trains_a_step(name, options, model_options, capsys, monkeypatch):
    example = load(name)
    monkeypatch.setattr(timm, "create_model", functools.partial(timm.create_model, **model_options))
    example.main(**options)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(getattr(example, "NAMES", attnmix.METHODS))
    assert all(0 < float(line.split()[2]) < 20 for line in lines)


@pytest.mark.parametrize("name", LOOPS)
def test_an_example_shows_the_two_places_that_change(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert [text.count(f"# changed, {number} of 2: ") for number in (1, 2)] == [1, 1]


def blocks(language):
    """(the example named last before it, its lines) of each block of docs/drop_in.md."""
    found, text = [], DOCS.read_text()
    for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        names = re.findall(r"`examples/(\w+)\.py`", text[: block.start()])
        found.append((names[-1], block.group(1).splitlines()))
    return found


def test_the_page_of_examples_shows_their_lines():
    shown = blocks("python")
    assert [name for name, _ in shown] == list(LOOPS)
    for name, lines in shown:
        rest = iter((EXAMPLES / f"{name}.py").read_text().splitlines())
        for line in filter(str.strip, lines):
            assert line.strip() == "..." or line.strip() in map(str.strip, rest), f"{name}: {line}"


def test_the_patch_of_timms_script_makes_a_task(make_vit):
    """Its added lines, with what timm's main() has in scope there."""
    ((_, lines),) = blocks("diff")
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    indent = min(len(line) - len(line.lstrip()) for line in added[1:])
    source = "\n".join([added[0], *(line[indent:] for line in added[1:])])
    scope = {
        "args": SimpleNamespace(num_classes=5, smoothing=0.2, seed=7, rank=0),
        "device": torch.device("cpu"),
        "model": make_vit(),
        "model_dtype": None,
        "utils": timm.utils,
    }
    exec(source, scope)
    task = scope["task"]
    assert isinstance(task, timm.task.TrainingTask)
    assert (task.method.smoothing, task.method.generator.initial_seed()) == (0.2, 7)
    assert task(torch.randn(4, 3, 16, 24), torch.arange(4))["loss"].isfinite()
