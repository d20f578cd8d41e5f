"""What a step of each method may cost beside CutMix's, counted and not timed, so that no slow machine fails it.

Matrix products (FLOPs), kernels started, and waits for the device. A `meta` tensor has a shape and no content:
whatever would make the host wait for a GPU's (`item`, `nonzero`, a copy to the CPU) cannot be done with one. What
is copied to a device is waited for too, unless told not to be: `Copies` looks for that.
"""

import pytest
import timm
import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

import attnmix
from attnmix.benchmark.flops import count_flops
from attnmix.benchmark.waits import count_waits
from attnmix.methods import co_mixup, method_options, puzzlemix
from attnmix.mixing import tokens
from tests.conftest import tiny_vit

HTM, VTM = {"vertical": None}, {"horizontal": None}
CHEAP = {"consistency": False, "block": 5}


def make_step(name, model, *, size, batch=16, device="cpu", **options):
    """A forward and backward pass of pasting; the optimizer's part is the same for all."""
    known = method_options(name, options)
    forced = {"mixup_prob": 0.0, attnmix.METHODS[name].teacher_option: "self"}
    if name == "tokenmixup":
        forced["tau"] = float("inf")
    options = {**{option: value for option, value in forced.items() if option in known}, **options}
    task = attnmix.MixTask(model, attnmix.create_method(name, num_classes=model.num_classes, **options))
    images = torch.empty(batch, 3, *size, device=device).uniform_()
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    return lambda: task(images, labels)["loss"].backward()


@pytest.fixture
def nobody_waits(monkeypatch):
    """Assignment without looking at the gains, which is where HTM has to wait: counts how often it does."""
    waits = []

    def match(gain, easy):
        waits.append(1)
        return torch.arange(len(easy), device=easy.device)

    monkeypatch.setattr(tokens, "match_partners", match)
    return waits


@pytest.fixture
def nothing_is_cut(monkeypatch):
    """Masks without looking at the saliency, which is where graph cuts have to wait: counts how often they do."""
    cuts = []

    def cut_levels(lost, *_, **__):
        cuts.append(1)
        return torch.zeros_like(lost, dtype=torch.uint8)

    def choose(self, saliency, places):
        cuts.append(1)
        return torch.zeros(len(saliency), dtype=torch.int64, device="meta"), torch.zeros_like(saliency).long()

    monkeypatch.setattr(puzzlemix, "optimal_levels", cut_levels)
    monkeypatch.setattr(co_mixup.CoMixup, "chosen_on_cpu", choose)
    return cuts


# --- Waits for the device


class Copies(TorchFunctionMode):
    """Fails on a copy from the CPU to the device that would be waited for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        to_device = isinstance(result, torch.Tensor) and result.device.type == "meta"
        if func is torch.tensor or func is torch.as_tensor:
            assert not to_device, "made on the host, and copied"
        elif func is torch.Tensor.to and args[0].device.type == "cpu":
            assert not to_device or kwargs.get("non_blocking"), "a copy that is waited for"
        return result


@pytest.mark.parametrize(
    "copy", [lambda: torch.zeros(2).to("meta"), lambda: torch.tensor([1.0], device="meta")], ids=["to", "tensor"]
)
def test_copies_that_are_waited_for_are_found(copy):
    with pytest.raises(AssertionError), Copies():
        copy()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {}),
        ("mixup", {}),
        ("cutmix", {}),
        ("cutmix", {"mode": "elem"}),
        ("transmix", {}),
        ("transmix", {"attention": "image-rollout"}),
        ("transmix", {"attention": "class-rollout"}),
        ("tl-align", {}),
        ("tl-align", {"box": "pixel"}),
        ("smmix", {}),
        ("smmix", {"consistency": False, "block": 0}),
        ("smmix", {"label": "tl-align", "source": "random"}),
        ("tokenmixup", VTM),
        ("tokenmixup", {"tokens": "random"}),
        *[(name, {}) for name in ("cutout", "resizemix", "gridmix", "fmix", "manifold-mixup", "attentivemix")],
        *[(name, {}) for name in ("automix", "mixpro", "mergemix", "tokenmix", "token-labeling", "relabel")],
        ("saliencymix", {"saliency": "spectral-residual"}),
        ("fmix", {"mode": "elem", "max_soft": 0.2}),
        ("resizemix", {"mode": "elem", "label": "tl-align"}),
        ("mergemix", {"match": "tokens", "label": "rescaled"}),
        ("tokenmix", {"mode": "elem"}),
    ],
)
def test_the_host_waits_for_nothing_in_a_step(name, options):
    model = timm.create_model("test_vit", num_classes=5).to("meta")
    step = make_step(name, model, size=(160, 160), batch=4, device="meta", **options)
    with Copies():
        step()


@pytest.mark.parametrize("options", [HTM, {}, {"samples": "random"}], ids=["HTM", "both", "random samples"])
def test_htm_waits_once_for_its_assignment_and_for_nothing_else(options, nobody_waits):
    model = timm.create_model("test_vit", num_classes=5).to("meta")
    make_step("tokenmixup", model, size=(160, 160), batch=4, device="meta", **options)()
    assert nobody_waits == [1]


def test_the_assignment_itself_is_one_wait():
    gain, easy = torch.rand(4, 4), torch.tensor([True, False, True, True])
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        tokens.match_partners(gain, easy)
    fetched = [event for event in seen.key_averages() if event.key in ("aten::nonzero", "aten::item")]
    assert not fetched
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        tokens.match_partners(gain.to("meta"), easy.to("meta"))


@pytest.mark.parametrize("name", ["puzzlemix", "co-mixup"])
def test_a_graph_cut_is_what_is_waited_for_and_nothing_else(name, nothing_is_cut):
    model = timm.create_model("test_vit", num_classes=5).to("meta")
    step = make_step(name, model, size=(160, 160), batch=4, device="meta")
    with Copies():
        step()
    assert nothing_is_cut == [1]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options", "waits"),
    [
        *[(name, {}, 0) for name in ("none", "cutmix", "transmix", "tl-align", "smmix")],
        ("smmix", CHEAP, 0),
        ("tokenmixup", VTM, 0),
        ("tokenmixup", HTM, 1),
        *[(name, {}, 0) for name in ("resizemix", "gridmix", "fmix", "manifold-mixup", "automix", "mergemix")],
        *[(name, {}, 0) for name in ("attentivemix", "mixpro", "tokenmix", "token-labeling", "relabel")],
        ("puzzlemix", {}, 1),
        ("co-mixup", {}, 1),
    ],
)
def test_a_gpu_is_waited_for_as_often_as_said(name, options, waits):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = timm.create_model("deit_tiny_patch16_224").cuda()
    step = make_step(name, model, size=(224, 224), device="cuda", **options)
    step()
    assert count_waits(step) == waits


# --- Arithmetic

# What DeiT-T at 224 pixels may compute, as a share of CutMix's step, where no attention carries labels (GPU):
# a forward is a third; TL-Align a second Q K^T in each block; HTM one block's projections; VTM a few more keys.
AT_MOST = [
    ("none", {}, 1.0),
    ("transmix", {}, 1.0001),
    ("smmix", {}, 1.339),
    ("smmix", CHEAP, 1.16),
    ("tl-align", {}, 1.025),
    ("tokenmixup", HTM, 1.0065),
    ("tokenmixup", VTM, 1.0015),
    ("tokenmixup", {}, 1.0075),
    *[(name, {}, 1.0002) for name in ("cutout", "resizemix", "fmix", "manifold-mixup", "mixpro")],
    ("saliencymix", {"saliency": "spectral-residual"}, 1.0002),
    ("gridmix", {}, 1.003),
    # a clean forward, up to the block that is read or whole; the teacher here is the model itself
    *[(name, {}, 1.32) for name in ("attentivemix", "mergemix")],
    *[(name, {}, 1.35) for name in ("tokenmix", "relabel")],
    ("token-labeling", {}, 1.38),
    # a forward, and half a backward: to the pixels, not to the weights
    *[(name, {}, 1.73) for name in ("puzzlemix", "co-mixup")],
    # another forward and backward for the clean images, and those of the moving average
    ("automix", {}, 2.91),
]


@pytest.fixture(scope="module")
def deit():
    with torch.device("meta"):
        return timm.create_model("deit_tiny_patch16_224")


@pytest.fixture(scope="module")
def plain_flops(deit):
    return count_flops(make_step("cutmix", deit, size=(224, 224), batch=2, device="meta"))


@pytest.mark.parametrize(("name", "options", "limit"), AT_MOST)
def test_a_step_computes_no_more_than_its_method_needs(
    deit, plain_flops, name, options, limit, nobody_waits, nothing_is_cut
):
    ours = count_flops(make_step(name, deit, size=(224, 224), batch=2, device="meta", **options))
    assert 1 <= ours / plain_flops <= limit


def test_on_the_cpu_labels_ride_in_the_attention_that_runs_anyway():
    model, size = tiny_vit(), (16, 24)
    plain, ours = (count_flops(make_step(name, model, size=size)) for name in ("cutmix", "tl-align"))
    tokens, heads, depth = model.pos_embed.shape[1], model.blocks[0].attn.num_heads, len(model.blocks)
    one_column = 2 * 2 * 16 * heads * tokens * tokens  # of Q K^T and of P V, a multiply and an add each
    assert ours - plain == depth * one_column


# --- Kernels

NOT_KERNELS = {  # views and allocations
    f"aten::{name}"
    for name in (
        *(
            "as_strided",
            "view",
            "_unsafe_view",
            "reshape",
            "_reshape_alias",
            "t",
            "transpose",
            "permute",
            "expand",
        ),
        *(
            "expand_as",
            "unsqueeze",
            "squeeze",
            "select",
            "slice",
            "narrow",
            "unbind",
            "unflatten",
            "flatten",
            "detach",
        ),
        *("detach_", "alias", "empty", "empty_like", "empty_strided", "new_empty_strided", "new_empty", "split"),
        *("lift_fresh", "resolve_conj", "resolve_neg", "chunk", "broadcast_to", "numpy_T", "view_as", "T", "mT"),
    )
}


def count_kernels(step):
    """Operations that call no other: what a GPU would be given to do."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    leaves = [event for event in seen.events() if event.name.startswith("aten::") and not event.cpu_children]
    return sum(event.name not in NOT_KERNELS for event in leaves)


# On a model of three blocks. Beside their forwards, methods start a number of small kernels that does not grow
# with the model; TL-Align alone has a few in each block.
MORE_KERNELS = [
    ("none", {}, 0),
    ("transmix", {}, 30),
    ("tl-align", {}, 45),
    ("smmix", {}, 200),
    ("smmix", {"consistency": False, "block": 1}, 165),
    ("tokenmixup", {"horizontal": 1, **HTM}, 145),
    ("tokenmixup", {"vertical": 1, **VTM}, 65),
    ("tokenmixup", {"horizontal": 1, "vertical": 1}, 200),
]


@pytest.fixture(scope="module")
def plain_kernels():
    return {depth: count_kernels(make_step("cutmix", tiny_vit(depth=depth), size=(16, 24))) for depth in (3, 5)}


@pytest.mark.parametrize(("name", "options", "limit"), MORE_KERNELS)
def test_a_step_starts_few_kernels_more_than_cutmixs(plain_kernels, name, options, limit):
    ours = count_kernels(make_step(name, tiny_vit(), size=(16, 24), **options))
    assert ours - plain_kernels[3] <= limit


@pytest.mark.parametrize(("name", "each"), [("transmix", 0), ("tl-align", 12)])
def test_more_blocks_start_few_kernels_more(plain_kernels, name, each):
    more = [count_kernels(make_step(name, tiny_vit(depth=depth), size=(16, 24))) for depth in plain_kernels]
    plain = list(plain_kernels.values())
    assert (more[1] - plain[1]) - (more[0] - plain[0]) <= 2 * each
