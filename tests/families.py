"""Every model family that attnmix trains, tiny, and what every method makes of each.

`python -m tests.families docs/models.md` writes the page; `tests/test_families.py` holds it to what runs.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from torch import nn

import attnmix
from attnmix.methods import method_options

CLASSES = 4


class Family(NamedTuple):
    """A model of a family: its name in the table, how to make a tiny one, and the size of its images."""

    name: str
    make: Callable[[], nn.Module]
    size: tuple[int, int]


def _timm(name: str, *, size: tuple[int, int] = (32, 48), **options: object) -> Family:
    options = {"img_size": size, "num_classes": CLASSES, **options}
    return Family(name, lambda: timm.create_model(name, **options), size)


def _transformers(name: str, **options: object) -> Family:
    import transformers

    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(image_size=32, num_labels=CLASSES, **options)
        return getattr(transformers, f"{name}ForImageClassification")(config)

    return Family(f"transformers {name}ForImageClassification", make, (32, 32))


VIT = {"patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
HF = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "patch_size": 8,
}
PYRAMID = {"depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}


def families() -> list[Family]:
    """All of them."""
    return [
        _timm("deit_tiny_patch16_224", **VIT),
        _timm("deit_tiny_distilled_patch16_224", **VIT),
        _timm("vit_tiny_patch16_224", class_token=False, global_pool="avg", **VIT)._replace(
            name="vit_tiny_patch16_224, no class token"
        ),
        _timm("vit_medium_patch16_reg4_gap_256", **VIT),
        _timm("vit_small_patch14_reg4_dinov2", **VIT),
        _timm("vit_base_patch16_siglip_224", **VIT),
        _timm("beit_base_patch16_224", **VIT),
        _timm("eva02_tiny_patch14_224", **VIT),
        _timm("cait_xxs24_224", **VIT),
        _timm("xcit_tiny_12_p16_224", size=(32, 32), **{**VIT, "patch_size": 16}),
        _timm("pvt_v2_b0", size=(64, 96), embed_dims=(8, 8, 16, 16), **PYRAMID)._replace(
            make=lambda: timm.create_model("pvt_v2_b0", num_classes=CLASSES, embed_dims=(8, 8, 16, 16), **PYRAMID)
        ),
        _timm(
            "swin_tiny_patch4_window7_224",
            size=(56, 56),
            embed_dim=8,
            depths=(2, 2),
            num_heads=(1, 2),
            window_size=7,
        ),
        _timm("pvt_tiny", size=(64, 96), embed_dims=(8, 8, 16, 16), **PYRAMID),
        _timm("cct_7_3x1_32", size=(16, 16), embed_dim=24, depth=3, num_heads=2),
        _timm("vit_lite_7_4_32", embed_dim=24, depth=3, num_heads=2),
        _timm(
            "ca_swin_tiny_patch4_window7_224",
            size=(56, 56),
            embed_dim=8,
            depths=(2, 2),
            num_heads=(1, 2),
            window_size=7,
        ),
        _transformers("ViT", **HF),
        _transformers("DeiT", **HF),
        _transformers("Dinov2", **{**HF, "mlp_ratio": 2}),
        _transformers("Swin", embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4, patch_size=4),
        _transformers(
            "Pvt",
            hidden_sizes=[8, 8, 16, 16],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2],
            patch_sizes=[4, 2, 2, 2],
        ),
    ]


# Every method as it is, and the ways out that its refusals name.
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in attnmix.METHODS},
    "gridmix": ("gridmix", {"grid": 1}),  # some of these tiny models have a single final token
    "mixpro, attention=image": ("mixpro", {"attention": "image"}),
    "mergemix, attention=image:match=tokens": ("mergemix", {"attention": "image", "match": "tokens"}),
    "transmix, attention=image": ("transmix", {"attention": "image"}),
    "tl-align, class_blocks_only": ("tl-align", {"class_blocks_only": True}),
    "tokenmixup, horizontal alone": ("tokenmixup", {"vertical": None}),
    "tokenmixup, vertical alone": ("tokenmixup", {"horizontal": None}),
}


def outcome(family: Family, name: str, options: dict[str, object]) -> str:
    """`works`, after a whole training step with every gradient, or why the task cannot be made."""
    torch.manual_seed(0)
    model = family.make()
    # a fresh model of timm's gives every token nearly the same attention
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    kind = attnmix.METHODS[name]
    pasting = {"mixup_prob": 0.0} if "mixup_prob" in method_options(name, options) else {}
    teacher = {} if kind.teacher_option is None else {kind.teacher_option: "self"}
    try:
        method = attnmix.create_method(name, num_classes=CLASSES, **pasting, **teacher, **options)
        task = attnmix.MixTask(model, method)
    except ValueError as error:
        return str(error).replace(type(model).__name__, "the model")
    images, labels = torch.randn(4, 3, *family.size), torch.arange(4) % CLASSES
    before = images.clone()
    out = task(images, labels)
    out["loss"].backward()
    assert images.equal(before)
    assert out["loss"].isfinite()
    assert out["output"].shape == out["target"].shape == (4, CLASSES)
    assert torch.allclose(out["target"].sum(dim=1), torch.ones(4), atol=1e-5)
    assert torch.allclose(sum(out["losses"].values()), out["loss"])
    missing = [
        n for n, p in task.named_parameters() if p.requires_grad and p.grad is None and "mask_token" not in n
    ]
    assert not missing, f"{family.name}, {name}: no gradient for {missing}"
    return "works"


def rows() -> Iterator[tuple[str, str, str]]:
    """(family, method, outcome) for each of both."""
    for family in families():
        for label, (name, options) in METHODS.items():
            if name in attnmix.METHODS:
                yield family.name, label, outcome(family, name, options)


def page() -> str:
    """docs/models.md."""
    found: dict[str, dict[str, str]] = {}
    for family, method, result in rows():
        found.setdefault(family, {})[method] = result
    methods = list(next(iter(found.values())))
    everywhere = [method for method in methods if all(results[method] == "works" for results in found.values())]
    methods = [method for method in methods if method not in everywhere]
    lines = [
        "# Which method works on which model",
        "",
        "Written by `python -m tests.families docs/models.md` from what ran: a tiny model of each family, one",
        "whole training step of each method, gradients of all parameters; `tests/test_families.py` fails where",
        "this page and what runs differ. A number stands for a refusal when the task is made, with its reason",
        "below: nothing is ever silently replaced by something else. Methods that learn from a teacher had the",
        "model itself as theirs.",
        "",
        f"On every model here: {'; '.join(everywhere)}.",
        "",
        "| model | " + " | ".join(methods) + " |",
        "|---|" + "---|" * len(methods),
    ]
    reasons: list[str] = []
    for family, results in found.items():
        cells = []
        for result in (results[method] for method in methods):
            if result == "works":
                cells.append("works")
                continue
            if result not in reasons:
                reasons.append(result)
            cells.append(f"({reasons.index(result) + 1})")
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines += ["", "## Refusals", ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
