"""Values carried beside the forward: the same as from a tap after it, on every family."""

import math

import pytest
import torch

from attnmix.attention.trace import Companion, Journey
from attnmix.backbone import BackboneView
from tests.backbone.families import FAMILIES, build, images

TRACEABLE = [name for name in FAMILIES if name != "xcit"]


def start(view, size):
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(2, math.prod(view.token_grid_size(size)), generator=generator)
    return view.flow(size), values, values.mean(dim=1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", TRACEABLE)
def test_a_companion_finds_what_a_tap_finds_afterwards(name, fused):
    view, size = BackboneView(build(name, fused=fused)), FAMILIES[name].size
    pictures, begin = images(name, size), start(view, size)
    with view.open_tap(None) as tap:
        plain = view(pictures)
    with Companion(Journey(*begin)) as journey:
        output = view(pictures)
    torch.testing.assert_close(output, plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(journey.values, Journey(*begin).follow(tap.attend), atol=1e-6, rtol=0)
    assert not journey.values.requires_grad
    assert output.requires_grad


@pytest.mark.parametrize("options", [{"residual": False}, {"class_blocks_only": True}])
def test_the_options_are_the_traces(options):
    view, size = BackboneView(build("cait")), FAMILIES["cait"].size
    begin = start(view, size)
    with view.open_tap(None) as tap, Companion(Journey(*begin, **options)) as journey:
        view(images("cait", size))
    found = view.readout(journey.values)
    assert found.allclose(view.readout(Journey(*begin, **options).follow(tap.attend)), atol=1e-6)
    assert not found.allclose(view.readout(Journey(*begin).follow(tap.attend)), atol=1e-4)


def test_channels_may_be_passed_over():
    view, size = BackboneView(build("xcit")), FAMILIES["xcit"].size
    with Companion(Journey(*start(view, size), class_blocks_only=True)) as journey:
        view(images("xcit", size))
    assert view.readout(journey.values).shape == (2,)
    with pytest.raises(ValueError, match="mixes channels"), Companion(Journey(*start(view, size))):
        view(images("xcit", size))


def test_other_attention_than_the_flow_says_is_an_error_and_leaves_nothing_behind():
    view, size = BackboneView(build("vit")), FAMILIES["vit"].size
    flow, values, joining = start(view, size)
    pictures = images("vit", size)

    def follow(steps, forwards):
        with Companion(Journey(steps, values, joining)):
            for _ in range(forwards):
                view(pictures)

    with pytest.raises(RuntimeError, match="made 0 attention calls of a kind that can be read, not 2"):
        follow(flow, 0)
    with pytest.raises(RuntimeError, match="more attention calls than the 2"):
        follow(flow, 2)
    wide = view.flow((size[0], 2 * size[1]))
    with pytest.raises(ValueError, match=r"attention call 1 went from \d+ to \d+ tokens, but \d+ and \d+ were"):
        follow(wide, 1)
    assert torch._C._len_torch_function_stack() == 0
