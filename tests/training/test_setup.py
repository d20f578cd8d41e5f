import math

import pytest
import timm
import torch
from torch import nn

from attnmix import MixTask, create_method
from attnmix.training.reading import load_recipe
from attnmix.training.setup import (
    create_accelerator,
    create_model,
    create_optimizer,
    create_scheduler,
    model_inputs,
)


def test_the_seed_decides_the_weights(tiny):
    torch.rand(3)
    first = create_model(tiny(seed=3), num_classes=4)
    torch.rand(5)
    again = create_model(tiny(seed=3), num_classes=4)
    other = create_model(tiny(seed=4), num_classes=4)
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_quickstart_has_xavier_linears_and_the_stated_size():
    model = create_model(load_recipe("quickstart"), num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(0.22e6, rel=0.03)
    assert model.patch_embed.grid_size == (6, 6)
    for layer in (m for name, m in model.named_modules() if isinstance(m, nn.Linear) and "qkv" not in name):
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert 0.95 * bound < layer.weight.abs().max() <= bound
    assert create_model(load_recipe("quickstart-long"), num_classes=10).patch_embed.grid_size == (8, 8)


def test_model_inputs_follow_the_options(tiny):
    inputs = model_inputs(tiny(model_options={"img_size": 24}))
    assert inputs["input_size"] == (3, 24, 24)
    assert inputs["mean"] == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model": "vit_tinny_patch16_224"},
            r"unknown model 'vit_tinny.*did you mean 'vit_tiny_patch16_224'\?",
        ),
        (
            {"model_options": {"patchsize": 4}},
            "model 'vit_tiny_patch16_224' cannot be made with model_options .*: .*patchsize",
        ),
        (
            {"model_options": {"embed_dim": 15}},
            "model 'vit_tiny.*' cannot be made with model_options .*'embed_dim': 15",
        ),
        (
            {"model": "vit_tiny_patch16_224.nope"},
            r"model 'vit_tiny_patch16_224.nope' cannot be made .*Invalid pretrained tag \(nope\)",
        ),
        ({"model_options": {"num_classes": 7}}, "num_classes cannot be set: the data set decides"),
        ({"init": "no/such.safetensors"}, "init: there is no file 'no/such.safetensors'"),
    ],
)
def test_wrong_models(tiny, overrides, message):
    with pytest.raises(ValueError, match=message):
        create_model(tiny(**overrides), num_classes=3)


def test_init_must_fit(tiny, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "w.safetensors"
    save_file({"head.weight": torch.zeros(3, 3)}, path)
    with pytest.raises(ValueError, match=r"(?s)does not fit vit_tiny_patch16_224: .*Missing key"):
        create_model(tiny(init=str(path)), num_classes=3)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"does not fit vit_tiny_patch16_224"):
        create_model(tiny(init=str(path)), num_classes=3)


def optimizer_of(recipe):
    model = create_model(recipe, num_classes=3)
    return model, create_optimizer(model, recipe)


def test_no_weight_decay_is_honoured(tiny):
    model, optimizer = optimizer_of(tiny(optimizer={"weight_decay": 0.3}))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(model.blocks[0].attn.qkv.weight)] == 0.3
    for spared in (model.pos_embed, model.cls_token, model.norm.weight, model.head.bias):
        assert decay[id(spared)] == 0
    assert len(decay) == len(list(model.parameters()))


def test_optimizer_options_arrive(tiny):
    _, optimizer = optimizer_of(tiny(optimizer={"betas": (0.8, 0.9), "eps": 1e-5}))
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.param_groups[0]["eps"] == 1e-5
    _, optimizer = optimizer_of(tiny(optimizer={"opt": "sgd", "momentum": 0.7}))
    assert optimizer.param_groups[0]["momentum"] == 0.7
    _, optimizer = optimizer_of(tiny(optimizer={"layer_decay": 0.5}))
    assert len({group["lr_scale"] for group in optimizer.param_groups}) == 4  # stem, two blocks, head


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "cait_xxs24_224", "beit_base_patch16_224"])
def test_layer_decay_follows_the_models_layers_and_spares_what_the_method_added(tiny, name):
    kind = tiny(model=name, optimizer={"layer_decay": 0.5})
    options = {"img_size": 32, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 3}
    model = timm.create_model(name, **options)
    alone = rate_factors(model, create_optimizer(model, kind))
    task = MixTask(model, create_method("smmix", num_classes=3, token_head=True))
    module = task.get_trainable_module()
    together = rate_factors(module, create_optimizer(module, kind))
    assert {f"model.{parameter}": factor for parameter, factor in alone.items()}.items() <= together.items()
    assert together["model.blocks.0.attn.qkv.weight"] < 1
    assert len(set(alone.values())) > 3
    added = [factor for parameter, factor in together.items() if parameter.startswith("method.")]
    assert added
    assert set(added) == {1.0}


def rate_factors(module, optimizer):
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {names[p]: group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("schedule", [{"warmup_epochs": 0}, {"warmup_epochs": 0, "sched": "constant"}])
def test_layer_decay_holds_from_the_first_update(tiny, schedule):
    recipe = tiny(lr=0.8, optimizer={"layer_decay": 0.5}, schedule=schedule)
    _, optimizer = optimizer_of(recipe)
    create_scheduler(optimizer, recipe, updates_per_epoch=4)
    assert sorted({round(group["lr"], 9) for group in optimizer.param_groups}) == [0.1, 0.2, 0.4, 0.8]


def test_wrong_optimizer(tiny):
    with pytest.raises(ValueError, match=r"optimizer {'opt': 'adamm'.* does not work"):
        optimizer_of(tiny(optimizer={"opt": "adamm"}))


def rates(recipe, updates_per_epoch=4):
    _, optimizer = optimizer_of(recipe)
    scheduler = create_scheduler(optimizer, recipe, updates_per_epoch=updates_per_epoch)
    found = []
    for update in range(recipe.epochs * updates_per_epoch):
        found.append(optimizer.param_groups[0]["lr"])
        scheduler.step_update(update + 1)
    return found


def test_schedule(tiny):
    options = {"warmup_epochs": 2, "warmup_lr": 0.1, "min_lr": 0.01}
    cosine = rates(tiny(epochs=6, lr=0.9, schedule=options))
    assert cosine[0] == 0.1
    assert cosine[4] == pytest.approx(0.5)  # half-way up
    # After 8 of 24 updates the cosine, which began with the warm-up, has a third of its way behind it.
    assert cosine[7] == pytest.approx(0.8)
    assert cosine[8] == pytest.approx(0.01 + 0.89 * (1 + math.cos(math.pi / 3)) / 2)
    assert 0.01 <= cosine[-1] < 0.02
    constant = rates(tiny(epochs=6, lr=0.9, schedule={**options, "sched": "constant"}))
    assert constant[:8] == pytest.approx(cosine[:8])
    assert constant[8:] == [0.9] * 16


def test_cool_down(tiny):
    """The cosine of four epochs, then two at its lowest: `epochs` counts both."""
    options = {"warmup_epochs": 1, "min_lr": 0.01}
    cooled = rates(tiny(epochs=6, lr=0.9, schedule={**options, "cooldown_epochs": 2}))
    assert cooled[:16] == pytest.approx(rates(tiny(epochs=4, lr=0.9, schedule=options)))
    assert cooled[15] > 0.01
    assert cooled[16:] == [0.01] * 8


def test_device_and_precision(tiny, tmp_path):
    accelerator = create_accelerator(tiny(device="cpu", precision="bf16"), tmp_path)
    assert accelerator.device.type == "cpu"
    assert accelerator.mixed_precision == "bf16"
    assert create_accelerator(tiny(device="cpu"), tmp_path).mixed_precision == "no"  # a second run, another one
    with pytest.raises(ValueError, match=r"precision is 'fp16', which needs a GPU"):
        create_accelerator(tiny(device="cpu", precision="fp16"), tmp_path)


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_there(tiny, tmp_path, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device is '{device}', but torch sees .* use auto or cpu"):
        create_accelerator(tiny(device=device), tmp_path)


def test_processes_that_would_each_train_alone_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)  # a device that processes cannot share
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started, but on device mps each would train alone"):
        create_accelerator(tiny(device="mps"), tmp_path)
