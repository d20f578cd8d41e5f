import dataclasses

import pytest
import timm
import torch
from timm.models import save_for_hf

from attnmix.commands.sources import find_sources
from attnmix.commands.subjects import open_subject
from attnmix.training import load_recipe, train

CPU = torch.device("cpu")
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one epoch, with a moving average."""
    recipe = dataclasses.replace(
        load_recipe("quickstart"),
        model_options=TINY,
        data_options={"train_count": 64, "test_count": 20},
        method="transmix",
        epochs=1,
        ema=0.9,
        threads=1,
    )
    folder = tmp_path_factory.mktemp("runs") / "transmix-seed0"
    train(recipe, folder, progress=False)
    return folder


def opened(word, **options):
    (source,) = find_sources([str(word)])
    return open_subject(source, device=CPU, **options)


def logits(subject):
    with torch.no_grad():
        return subject.logits(torch.ones(1, *subject.input_size))


def test_a_run_its_export_and_its_checkpoint_are_the_same_model(run):
    whole = opened(run)
    assert whole.label == "transmix-seed0"
    assert whole.method == "transmix"
    assert whole.class_names == [str(digit) for digit in range(10)]
    assert whole.input_size == (3, 32, 32)
    for word in (run / "model", run / "model" / "model.safetensors", run / "checkpoint.pt"):
        other = opened(word)
        assert torch.allclose(logits(other), logits(whole), atol=1e-6)
        assert other.label == "transmix-seed0"
        assert (other.method, list(other.class_names)) == ("transmix", whole.class_names)
        assert other.resizing == whole.resizing


def test_a_checkpoint_without_average_gives_its_plain_weights(run, tmp_path):
    recipe = dataclasses.replace(load_recipe(run / "recipe.yaml"), ema=None)
    train(recipe, tmp_path / "plain", progress=False)
    assert torch.allclose(logits(opened(tmp_path / "plain" / "checkpoint.pt")), logits(opened(tmp_path / "plain")))


def test_fresh_weights_are_others_and_the_same_each_time(run):
    subject = opened(run)
    before = torch.get_rng_state()
    fresh = subject.fresh()
    assert torch.equal(torch.get_rng_state(), before)
    assert not fresh.training
    with torch.no_grad():
        images = torch.ones(1, 3, 32, 32)
        assert torch.equal(fresh(images), subject.fresh()(images))
        assert not torch.allclose(fresh(images), subject.model(images))


def test_a_folder_of_runs_is_all_of_them(run, tmp_path):
    for name in ("cutmix-seed0", "none-seed0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for part in ("model", "recipe.yaml"):
            (tmp_path / "runs" / name / part).symlink_to(run / part)
    found = find_sources([str(tmp_path)])
    assert [source.label for source in found] == ["cutmix", "none"]  # one seed tells nothing
    assert [source.label for source in find_sources([str(tmp_path / "runs")])] == ["cutmix", "none"]
    with pytest.raises(ValueError, match="holds 2 runs: one label cannot name them all"):
        find_sources([f"mine={tmp_path}"])


def test_labels(run):
    assert [source.label for source in find_sources([f"mine={run}"])] == ["mine"]
    assert find_sources(["x=vit_tiny_patch16_224"])[0].label == "x"
    with pytest.raises(ValueError, match="two models would be called 'transmix-seed0': name them"):
        find_sources([str(run), str(run / "model")])


def test_a_timm_name_without_published_weights():
    subject = opened("vit_tiny_patch16_224", pretrained=False, model_options={**TINY, "num_classes": 1000})
    assert subject.label == "vit_tiny_patch16_224"
    assert subject.class_names[0] == "n01440764"
    assert subject.method is None


def test_a_timm_name_at_a_file_of_weights(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, **TINY)
    file = tmp_path / "mine.pth"
    torch.save(model.state_dict(), file)
    subject = opened(f"vit_tiny_patch16_224@{file}", model_options={**TINY, "num_classes": 7})
    assert subject.label == "mine"
    with torch.no_grad():
        assert torch.equal(logits(subject), model.eval()(torch.ones(1, 3, 32, 32)))
    with pytest.raises(ValueError, match="mine.pth does not fit vit_tiny_patch16_224"):
        opened(f"vit_tiny_patch16_224@{file}", model_options={**TINY, "num_classes": 8})


def test_files_that_could_run_code_are_not_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="evil.pth does not fit"):
        opened(f"vit_tiny_patch16_224@{tmp_path / 'evil.pth'}")


def test_fingerprints_tell_weights_and_sizes_apart(run):
    plain = {"pretrained": False, "model_options": TINY}
    subject = opened("vit_tiny_patch16_224", **plain)
    assert opened("vit_tiny_patch16_224", **plain).fingerprint == subject.fingerprint
    assert opened("vit_tiny_patch16_224", seed=1, **plain).fingerprint != subject.fingerprint


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        (
            "vit_tinny_patch16_224",
            ValueError,
            "unknown model 'vit_tinny_patch16_224'; did you mean 'vit_tiny_patch16_224'",
        ),
        ("runs/nowhere", FileNotFoundError, "'runs/nowhere' is not there; expected a run"),
        ("weights.safetensors", FileNotFoundError, "is not there"),
        ("vit_tiny_patch16_224@nowhere.pth", FileNotFoundError, "there is no file 'nowhere.pth'"),
    ],
)
def test_what_is_not_there(word, error, message):
    with pytest.raises(error, match=message):
        find_sources([word])


def test_an_empty_folder_and_a_lone_file(tmp_path):
    with pytest.raises(ValueError, match="holds neither a model"):
        find_sources([str(tmp_path)])
    (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="does not say which model it is of: type TIMM_NAME@"):
        find_sources([str(tmp_path / "w.safetensors")])


def test_an_export_whose_weights_are_of_another_model(tmp_path):
    save_for_hf(
        timm.create_model("vit_tiny_patch16_224", num_classes=5, **TINY), str(tmp_path), safe_serialization=True
    )
    save_for_hf(
        timm.create_model("vit_tiny_patch16_224", num_classes=5, **{**TINY, "depth": 3}),
        str(tmp_path / "b"),
        safe_serialization=True,
    )
    (tmp_path / "b" / "model.safetensors").replace(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="no model can be made of the config.json and .*RuntimeError"):
        opened(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no model can be made of the config.json .*JSONDecodeError"):
        opened(tmp_path)


def test_published_weights_that_cannot_be_had(monkeypatch):
    monkeypatch.setattr(timm.models._builder, "load_pretrained", _no_network)
    with pytest.raises(
        ValueError, match="cannot be had; without network give a file.*--pretrained false.*no route"
    ):
        opened("vit_tiny_patch16_224")


def test_a_checkpoint_says_its_data_and_a_damaged_one_its_name(run, tmp_path):
    (source,) = find_sources([str(run / "checkpoint.pt")])
    assert (source.recipe.data, source.recipe.eval_split) == ("digits-in-scenes", "test")
    (tmp_path / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="checkpoint.pt"):
        find_sources([str(tmp_path)])


def test_an_empty_label():
    with pytest.raises(ValueError, match="'=vit_tiny_patch16_224' has an empty label"):
        find_sources(["=vit_tiny_patch16_224"])


def test_an_option_the_model_lacks():
    with pytest.raises(ValueError, match="cannot be made with model_options {'dept': 3}"):
        opened("vit_tiny_patch16_224", pretrained=False, model_options={"dept": 3})


def _no_network(*args, **kwargs):
    raise OSError("no route to host")
