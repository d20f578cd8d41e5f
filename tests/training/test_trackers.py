"""Trackers against stand-ins for the packages: what they are told, and what happens when they fail."""

import json
import logging
import sys
import time
import types

import pytest
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnmix.training import train
from attnmix.training.setup import create_accelerator
from attnmix.training.trackers import check_trackers, tracked_values, tracking

ENTRY = {"epoch": 1, "lr": 0.1, "train_loss": 2.0}
VARIABLES = ("WANDB_PROJECT", "WANDB_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def wandb(monkeypatch):
    """A wandb that notes its runs: wandb.runs, each with options, config, logged and ended."""
    module = types.ModuleType("wandb")
    module.runs = []
    module.fails = lambda step: False

    class Run:
        def __init__(self, options):
            self.options, self.config, self.logged, self.ended = options, {}, {}, None

        def log(self, values, step):
            if module.fails(step):
                raise ConnectionError(f"no network in epoch {step}")
            self.logged[step] = values

        def finish(self, exit_code=0):
            self.ended = exit_code

    def init(**options):
        module.runs.append(Run(options))
        return module.runs[-1]

    module.init = init
    module.config = types.SimpleNamespace(update=lambda values, **_: module.runs[-1].config.update(values))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    """An MLflow of which each address remembers its runs: mlflow.stores[uri][run_id]."""
    module = types.ModuleType("mlflow")
    module.stores, module.uri, module.active = {}, None, None

    def set_tracking_uri(uri):
        module.uri = uri
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # as it does, for its own subprocesses
        module.stores.setdefault(uri, {})

    def start_run(run_id=None, experiment_id=None, run_name=None, **_):
        runs = module.stores[module.uri]
        if run_id is not None and run_id not in runs:
            raise RuntimeError(f"Run '{run_id}' not found")
        run_id = run_id or f"id{sum(map(len, module.stores.values()))}"
        fresh = {"experiment": experiment_id, "name": run_name, "params": {}, "logged": {}}
        module.active = runs.setdefault(run_id, fresh)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def log_params(params):
        for name, value in params.items():
            if module.active["params"].setdefault(name, str(value)) != str(value):
                raise RuntimeError(f"Changing param values is not allowed: {name}")

    def create_experiment(name, artifact_location, tags):
        return name, artifact_location

    module.set_tracking_uri, module.start_run, module.log_params = set_tracking_uri, start_run, log_params
    module.search_experiments = lambda **_: []
    module.create_experiment = create_experiment
    module.log_metrics = lambda metrics, step: module.active["logged"].update({step: metrics})
    module.end_run = lambda status="FINISHED": module.active.update(status=status)
    limits = types.SimpleNamespace(MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100)
    module.utils = types.SimpleNamespace(validation=limits)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


@pytest.fixture
def follow(tiny):
    """follow(out, trackers=[...], first_epoch=0, epochs=1): as the loop follows a run."""

    def run(out, *, trackers, first_epoch=0, epochs=1, resumed=None, **overrides):
        recipe = tiny(trackers=trackers, **overrides)
        accelerator = Accelerator(cpu=True, project_dir=str(out))
        resumed = first_epoch > 0 if resumed is None else resumed
        with tracking(accelerator, recipe, out, first_epoch=first_epoch, resumed=resumed) as track:
            for epoch in range(first_epoch + 1, first_epoch + epochs + 1):
                track({**ENTRY, "epoch": epoch})

    return run


def curve(out, name="train_loss"):
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


# ------------------------------------------------------------------ which


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["wandbb"], r"unknown tracker 'wandbb'; did you mean 'wandb'\?; known: tensorboard, wandb, mlflow"),
        (["tensorboard", "TB"], r"unknown tracker 'TB'; known: .*, and \[\] is none"),
    ],
)
def test_unknown_trackers(names, message):
    with pytest.raises(ValueError, match=message):
        check_trackers(names)


@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_package_that_is_not_installed(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"tracker '{name}' needs the package {name}: pip install {name}"):
        check_trackers([name])


def test_a_folder_of_the_packages_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "wandb" / "offline-run").mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="tracker 'wandb' needs the package wandb"):
        check_trackers(["wandb"])
    sys.modules.pop("wandb", None)


def test_a_broken_package(tmp_path, monkeypatch):
    (tmp_path / "mlflow.py").write_text("import no_such_package_at_all")
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="tracker 'mlflow' cannot be imported: No module named 'no_such_package"):
        check_trackers(["mlflow"])


def test_trackers_are_checked_before_anything_is_set_up(tiny, tmp_path):
    with pytest.raises(ValueError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        create_accelerator(tiny(trackers=["tensorbord"]), tmp_path)


# ------------------------------------------------------------------ what they are told


def test_tensorboard_has_its_curves_in_the_runs_folder(follow, tmp_path):
    follow(tmp_path, trackers=["tensorboard"], epochs=3)
    assert curve(tmp_path) == [(1, 2.0), (2, 2.0), (3, 2.0)]
    # a run of hyperparameters would be a second one beside the curves
    assert all(path.name.startswith("events.out.tfevents") for path in (tmp_path / "tensorboard").rglob("*"))
    time.sleep(1.1)  # files are read in the order of their names, which tell seconds
    follow(tmp_path, trackers=["tensorboard"], first_epoch=1)  # it stopped after the checkpoint of epoch 1
    assert curve(tmp_path) == [(1, 2.0), (2, 2.0)]
    assert not (tmp_path / "trackers.json").exists()


def test_no_trackers(follow, tmp_path):
    follow(tmp_path, trackers=[])
    assert not (tmp_path / "tensorboard").exists()


def test_each_tracker_once(follow, tmp_path, wandb):
    follow(tmp_path, trackers=["wandb", "tensorboard", "wandb"])
    assert len(wandb.runs) == 1
    assert curve(tmp_path) == [(1, 2.0)]


def test_wandb(follow, tmp_path, wandb, monkeypatch):
    follow(tmp_path / "mine", trackers=["wandb"], epochs=2)
    (run,) = wandb.runs
    options = {"project": "attnmix", "name": "mine", "resume": "allow", "dir": str(tmp_path / "mine")}
    assert options.items() <= run.options.items()
    assert run.logged == {step: {"lr": 0.1, "train_loss": 2.0} for step in (1, 2)}
    assert run.config["optimizer.opt"] == "adamw"
    assert run.ended == 0
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    monkeypatch.setenv("WANDB_RUN_ID", "agents-choice")
    follow(tmp_path / "mine", trackers=["wandb"])
    assert (wandb.runs[1].options["project"], wandb.runs[1].options["id"]) == ("ours", "agents-choice")


def test_a_resumed_run_goes_on_in_wandbs_and_a_new_one_does_not(follow, tmp_path, wandb):
    follow(tmp_path, trackers=["wandb"], epochs=2)
    follow(tmp_path, trackers=[], first_epoch=2)  # a while without
    follow(tmp_path, trackers=["wandb"], first_epoch=3, epochs=1, lr=0.5)
    follow(tmp_path, trackers=["wandb"])
    first, resumed, new = (run.options["id"] for run in wandb.runs)
    assert first == resumed != new
    assert wandb.runs[1].config["lr"] == 0.5
    follow(tmp_path, trackers=["wandb"], resumed=True)  # stopped within its first epoch
    assert wandb.runs[3].options["id"] == new


def test_mlflow(follow, tmp_path, mlflow):
    out = tmp_path / "mine"
    follow(out, trackers=["mlflow"], epochs=2)
    follow(out, trackers=["mlflow"], first_epoch=2, lr=0.5)  # MLflow would refuse the other lr
    store = f"sqlite:///{(out / 'mlflow.db').as_posix()}"
    (run,) = mlflow.stores[store].values()
    assert run["experiment"] == ("attnmix", (out / "mlflow").as_uri())
    assert (run["name"], run["status"], list(run["logged"])) == ("mine", "FINISHED", [1, 2, 3])
    assert run["params"]["schedule.sched"] == "cosine"
    follow(tmp_path / "other", trackers=["mlflow"])  # has a store of its own, whatever MLflow remembers
    assert list(mlflow.stores) == [store, f"sqlite:///{(tmp_path / 'other' / 'mlflow.db').as_posix()}"]


def test_mlflow_at_an_address(follow, tmp_path, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ours")
    follow(tmp_path, trackers=["mlflow"])
    assert list(mlflow.stores) == ["http://ours"]
    assert next(iter(mlflow.stores["http://ours"].values()))["experiment"] == ("attnmix", None)


def test_only_the_main_process_tracks(tiny, tmp_path, wandb):
    other = types.SimpleNamespace(is_main_process=False)
    recipe = tiny(trackers=["wandb", "tensorboard"])
    with tracking(other, recipe, tmp_path / "out", first_epoch=0, resumed=False) as track:
        track(ENTRY)
    assert wandb.runs == []
    assert not (tmp_path / "out").exists()


def test_the_recipe_is_flat_and_plain(tiny):
    values = tracked_values(tiny(method_options={"prob": 0.5, "nested": {"a": [1, 2]}}))
    assert all(value is None or isinstance(value, (bool, int, float, str)) for value in values.values())
    assert values["method_options.prob"] == 0.5
    assert values["method_options.nested.a"] == "[1, 2]"
    assert values["schedule.warmup_epochs"] == 1
    assert values["trackers"] == "['tensorboard']"


# ------------------------------------------------------------------ what may go wrong


def test_a_tracker_that_does_not_start(follow, tmp_path, wandb, mlflow):
    def refuse(**_):
        raise RuntimeError("No API key\nconfigured")

    wandb.init = refuse
    message = r"tracker 'wandb' does not start: No API key configured; --trackers '\[\]' goes without"
    with pytest.raises(ValueError, match=message):
        follow(tmp_path, trackers=["mlflow", "wandb"])
    assert mlflow.active["status"] == "FAILED"
    (tmp_path / "trackers.json").write_text(json.dumps({"mlflow": "gone"}))
    with pytest.raises(ValueError, match=r"'mlflow' does not start \(its run gone is named in .*trackers.json\)"):
        follow(tmp_path, trackers=["mlflow"], first_epoch=1)


def test_a_tracker_that_fails_does_not_end_the_run(follow, tmp_path, wandb, caplog):
    wandb.fails = lambda step: step in (2, 3)
    with caplog.at_level(logging.WARNING):
        follow(tmp_path, trackers=["wandb", "tensorboard"], epochs=5)
    assert list(wandb.runs[0].logged) == [1, 4, 5]  # the network came back
    assert [step for step, _ in curve(tmp_path)] == [1, 2, 3, 4, 5]
    (record,) = caplog.records
    assert "tracker wandb fails, the training goes on" in record.getMessage()
    assert "no network in epoch 2" in record.getMessage()


def test_a_tracker_that_keeps_failing_is_left_out(follow, tmp_path, wandb, caplog):
    tried = []
    wandb.fails = lambda step: tried.append(step) or True
    with caplog.at_level(logging.WARNING):
        follow(tmp_path, trackers=["wandb"], epochs=6)
    assert tried == [1, 2, 3]
    assert "failed 3 times and is left out" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_tracker_that_does_not_end(follow, tmp_path, wandb, caplog):
    def init(**_):
        def finish():
            raise ConnectionError("gone")

        return types.SimpleNamespace(log=lambda values, step: None, finish=finish)

    wandb.init = init
    wandb.config.update = lambda values, **_: None
    follow(tmp_path, trackers=["wandb"])
    assert "tracker wandb did not end well: gone" in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "status"), [(FloatingPointError("nan"), 1, "FAILED"), (KeyboardInterrupt(), 255, "KILLED")]
)
def test_trackers_are_told_how_it_ended(tiny, tmp_path, wandb, mlflow, error, code, status):
    accelerator = Accelerator(cpu=True, project_dir=str(tmp_path))
    recipe = tiny(trackers=["wandb", "mlflow", "tensorboard"])
    with (
        pytest.raises(type(error)),
        tracking(accelerator, recipe, tmp_path, first_epoch=0, resumed=False),
    ):
        raise error
    assert (wandb.runs[0].ended, mlflow.active["status"]) == (code, status)


# ------------------------------------------------------------------ in a run


def test_a_run_and_what_resumes_it(tiny, tmp_path, wandb):
    train(tiny(trackers=["wandb"]), tmp_path, progress=False)
    assert not (tmp_path / "tensorboard").exists()
    result = train(tiny(trackers=["tensorboard", "wandb"], epochs=3), tmp_path, resume=True, progress=False)
    first, second = wandb.runs
    assert first.options["id"] == second.options["id"]
    assert [*first.logged, *second.logged] == [1, 2, 3]
    assert second.logged[3] == {name: value for name, value in result.history[2].items() if name != "epoch"}
    assert (first.ended, second.ended) == (0, 0)
    assert [step for step, _ in curve(tmp_path)] == [3]
