"""Parameters and multiply-adds of every model, against what the papers print."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnmix.models

# name: millions of parameters, billions of multiply-adds, at the model's own image size
PUBLISHED = {
    "pvt_tiny": (13.2, 1.9),
    "pvt_small": (24.5, 3.8),
    "pvt_medium": (44.2, 6.7),
    "pvt_large": (61.4, 9.8),
    "cct_7_3x1_32": (3.760, 0.947),
    "vit_lite_7_4_32": (3.717, 0.239),
    "ca_swin_tiny_patch4_window7_224": (28.3, 4.2),
    "ca_swin_small_patch4_window7_224": (49.6, 8.5),
}


def count(name: str) -> tuple[float, float, float]:
    """Millions of parameters, billions of multiply-adds, and how many of these are attention's products."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        for module in model.modules():
            if getattr(module, "fused_attn", False):
                module.fused_attn = False  # so that the two products are counted as what they are
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, *model.pretrained_cfg["input_size"]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    products = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    # the counter takes a multiplication and an addition for two
    return parameters / 1e6, counter.get_total_flops() / 2e9, products / 2e9


def test_every_model_is_listed_here():
    assert set(PUBLISHED) == set(attnmix.models.MODELS)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "_32" not in name])
def test_sizes_agree_with_the_papers(name):
    parameters, multiply_adds, _ = count(name)
    # half of the last digit the papers print; multiply-adds within 2 %, as their counters differ in small terms
    assert parameters == pytest.approx(PUBLISHED[name][0], abs=0.05)
    assert multiply_adds == pytest.approx(PUBLISHED[name][1], rel=0.02)


@pytest.mark.parametrize("name", ["cct_7_3x1_32", "vit_lite_7_4_32"])
def test_sizes_agree_with_the_compact_transformers_repository(name):
    parameters, multiply_adds, products = count(name)
    assert parameters == pytest.approx(PUBLISHED[name][0], abs=0.0005)
    # its counter saw modules alone, not the two products of attention; half of its last digit otherwise
    assert multiply_adds - products == pytest.approx(PUBLISHED[name][1], abs=0.0005)


@pytest.mark.parametrize(("size", "depth"), [("tiny", 12), ("small", 24)])
def test_ca_swin_has_no_more_parameters_than_swin_and_fewer_multiply_adds(size, depth):
    parameters, multiply_adds, _ = count(f"ca_swin_{size}_patch4_window7_224")
    swin_parameters, swin_multiply_adds, _ = count(f"swin_{size}_patch4_window7_224")
    assert swin_parameters - 0.002 < parameters <= swin_parameters
    # one of `depth` blocks is nearly free: "7 % fewer FLOPs" for the tiny one (section 4.5)
    saved = 1 - multiply_adds / swin_multiply_adds
    assert 0.7 / depth < saved < 1 / depth


def test_a_hundred_classes_add_one_row_each():
    model = timm.create_model("cct_7_3x1_32", num_classes=100)
    assert sum(p.numel() for p in model.parameters()) == 3_760_139 + 90 * 257
