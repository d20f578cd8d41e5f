"""Pushing against a hub that is none: what is asked of it, and what never is."""

import types

import huggingface_hub
import pytest
import timm
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from attnmix.cli import main
from attnmix.training.export import export_model

OPTIONS = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 2}
FILES = ["config.json", "model.safetensors", "README.md"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, with much that is nobody's business."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    model = timm.create_model("vit_tiny_patch16_224", **OPTIONS)
    export_model(model, run / "model", class_names=["a", "b"], crop_pct=1.0, card="---\ntags: [x]\n---\n")
    for name in ("checkpoint.pt", "recipe.yaml", "metrics.jsonl", "model/notes.txt"):
        (run / name).write_text("private")
    return run


def refusal(kind, status, message=""):
    request = types.SimpleNamespace(method="POST", url="https://hub")
    response = types.SimpleNamespace(status_code=status, headers={}, request=request)
    return kind("long\nstory", response=response, server_message=message)


@pytest.fixture
def hub(monkeypatch):
    """A hub that notes what is asked of it: hub.calls; hub.private says what is there already (None: nothing)."""
    hub = types.SimpleNamespace(calls=[], private=None, fails={})

    class FakeApi:
        endpoint = "https://hub"

        def __getattr__(self, name):
            def call(*args, **options):
                hub.calls.append((name, args, options))
                if name in hub.fails:
                    raise hub.fails[name]
                if name == "model_info" and hub.private is None:
                    raise refusal(RepositoryNotFoundError, 404)
                return types.SimpleNamespace(private=hub.private)

            return call

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    return hub


def asked(hub):
    return [name for name, _, _ in hub.calls]


@pytest.mark.parametrize("inside", ["", "model"])
def test_pushes_the_three_files_and_nothing_else(hub, finished, capsys, inside):
    assert main(["push", str(finished / inside), "me/mine", "--yes", "--message", "hello"]) == 0
    assert asked(hub) == ["model_info", "create_repo", "upload_folder"]
    assert hub.calls[1][1:] == (("me/mine",), {"private": False, "exist_ok": False})
    assert hub.calls[2][2] == {
        "repo_id": "me/mine",
        "folder_path": finished / "model",
        "allow_patterns": FILES,
        "commit_message": "hello",
    }
    said = capsys.readouterr().out
    assert all(f"  {name}  " in said for name in FILES)
    assert "to https://hub/me/mine (new, public: everyone can read it)" in said
    assert "hf_secret" not in said


def test_the_patterns_let_nothing_else_through(finished):
    from huggingface_hub.utils import filter_repo_objects

    paths = [path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()]
    paths += ["README.md", "sub/config.json", "xconfig.json"]
    assert list(filter_repo_objects(paths, allow_patterns=FILES)) == ["README.md"]


def test_private_where_new(hub, finished, capsys):
    assert main(["push", str(finished), "me/mine", "--private", "--yes"]) == 0
    assert hub.calls[1][2]["private"] is True
    assert "new, private" in capsys.readouterr().out
    assert hub.calls[2][2]["commit_message"] == "Export of mine by attnmix"


def test_what_exists_is_written_to_but_never_made_public_unawares(hub, finished, capsys):
    hub.private = True
    assert main(["push", str(finished), "me/mine", "--private", "--yes"]) == 0
    assert asked(hub) == ["model_info", "upload_folder"]
    assert "exists, private: its files of these names are replaced" in capsys.readouterr().out
    hub.private = False
    hub.calls.clear()
    assert main(["push", str(finished), "me/mine", "--private", "--yes"]) == 2
    assert asked(hub) == ["model_info"]
    assert "me/mine exists and is public, which --private does not change" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code", "pushed"), [("y", 0, True), ("Yes ", 0, True), ("", 1, False)])
def test_asks_first(hub, finished, capsys, monkeypatch, answer, code, pushed):
    def ask(prompt):
        assert "model.safetensors" in capsys.readouterr().out  # said before
        assert asked(hub) == ["model_info"]
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    assert main(["push", str(finished), "me/mine"]) == code
    assert ("upload_folder" in asked(hub)) is pushed
    assert ("nothing was pushed" in capsys.readouterr().out) is not pushed


def test_without_a_terminal_it_needs_yes(hub, finished, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert main(["push", str(finished), "me/mine"]) == 2
    assert "there is no terminal to ask on: add --yes" in capsys.readouterr().err
    assert not hub.calls


def test_without_a_token(hub, finished, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert main(["push", str(finished), "me/mine", "--yes"]) == 2
    assert "run `hf auth login`, or set HF_TOKEN" in capsys.readouterr().err
    assert not hub.calls


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine", "'mine' does not say whose it is: want USER/mine"),
        ("a/b/c", "'a/b/c' is no name on the hub: "),
        ("me/-x", "'me/-x' is no name on the hub: "),
    ],
)
def test_wrong_names(hub, finished, capsys, name, message):
    assert main(["push", str(finished), name, "--yes"]) == 2
    assert message in capsys.readouterr().err
    assert not hub.calls


def test_what_is_no_export(hub, tmp_path, capsys):
    assert main(["push", str(tmp_path / "gone"), "me/mine", "--yes"]) == 2
    assert "gone' is not there; expected the folder of a run or of its export" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")  # without weights
    assert main(["push", str(tmp_path), "me/mine", "--yes"]) == 2
    assert "holds no exported model (config.json and model.safetensors" in capsys.readouterr().err
    assert not hub.calls


def test_an_export_without_a_card(hub, tmp_path, capsys):
    for name in FILES[:2]:
        (tmp_path / name).write_text("x")
    assert main(["push", str(tmp_path), "me/mine", "--yes"]) == 0
    assert hub.calls[-1][2]["allow_patterns"] == FILES[:2]
    assert "no README.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "failure", "message"),
    [
        ("model_info", refusal(HfHubHTTPError, 401), "this token is not valid, or may not write to me/mine"),
        ("create_repo", refusal(HfHubHTTPError, 403), "this token is not valid, or may not write to me/mine"),
        ("create_repo", refusal(HfHubHTTPError, 409, "it exists"), "the hub refuses me/mine (409): it exists"),
        ("upload_folder", refusal(HfHubHTTPError, 500), "the hub refuses me/mine (500): long"),
        ("model_info", RuntimeError("no route\nto host"), "cannot be reached for me/mine: no route to host"),
        ("upload_folder", TimeoutError(), "the hub cannot be reached for me/mine: TimeoutError"),
        ("model_info", OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE is set: nothing can be pushed"),
    ],
)
def test_failures_are_one_sentence(hub, finished, capsys, call, failure, message):
    hub.fails[call] = failure
    assert main(["push", str(finished), "me/mine", "--yes"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert call == "upload_folder" or "upload_folder" not in asked(hub)
