import copy

import pytest
import torch
import torch._dynamo
from timm.models.resnet import resnet18
from timm.models.vision_transformer import VisionTransformer
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from attnmix.attention import AttentionTap
from attnmix.attention import call as call_module

from .reference import FAMILIES, POOLED, SIZES, build, hooked_attention, images

WITH_CLASS_TOKEN = [name for name, (_, _, has) in FAMILIES.items() if has]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def close(result, expected, atol=1e-6):
    assert not result.requires_grad
    torch.testing.assert_close(result, expected, atol=atol, rtol=0)


def tapped(model, blocks=None, batch=None, **options):
    with AttentionTap(model, blocks, **options) as tap:
        model(images() if batch is None else batch)
    return tap


def rows_to_one(scores):
    return scores / scores.sum(1, keepdim=True)


# --- Every quantity against hooks on the unfused model


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_of_every_block(family, fused):
    expected = hooked_attention(build(family, fused=False), images())
    tap = tapped(build(family, fused=fused))
    assert len(tap._recorder.shapes) == len(expected) >= 3
    for block, matrix in enumerate(expected):
        close(tap.probabilities(block), matrix)
        close(tap.probabilities(block - len(expected)), matrix)


@pytest.mark.parametrize("family", FAMILIES)
def test_image_attention(family):
    expected = hooked_attention(build(family, fused=False), images())
    tap = tapped(build(family))
    for block, matrix in enumerate(expected):
        rows = matrix.mean(1)
        if rows.shape[1] > 1:
            rows = rows[:, -16:]
        close(tap.image_attention(block), rows[:, :, -16:].mean(1))
    close(tap.image_rollout(), torch.stack([tap.image_attention(i) for i in range(len(expected))]).mean(0))


@pytest.mark.parametrize("family", sorted({*WITH_CLASS_TOKEN, *POOLED}))
def test_class_attention(family):
    expected = hooked_attention(build(family, fused=False), images())[-1]
    for fused in (True, False):
        result = tapped(build(family, fused=fused), (-1,)).class_attention()
        assert result.dtype == torch.float32
        close(result, rows_to_one(expected.mean(1)[:, 0, -16:]))


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "dinov2_reg", "beit", "eva02"])
def test_class_rollout(family):
    product = None
    for matrix in hooked_attention(build(family, fused=False), images()):
        product = matrix.mean(1) if product is None else matrix.mean(1) @ product
    close(tapped(build(family)).class_rollout(), rows_to_one(product[:, 0, -16:]))


def test_class_rollout_of_pooled_models():
    first, second, third, pool = (p.mean(1) for p in hooked_attention(build("siglip", fused=False), images()))
    close(tapped(build("siglip")).class_rollout(), rows_to_one((pool @ third @ second @ first)[:, 0]))
    for family in ("cait", "map_prefix"):
        close(tapped(build(family)).class_rollout().sum(1), torch.ones(2))


def test_attend_is_the_head_mean_matrix_times_values():
    values = torch.rand(2, 17)
    tap = tapped(build("vit"))
    for block in range(3):
        expected = (tap.probabilities(block).mean(1) @ values[..., None])[..., 0]
        close(tap.attend(values, block), expected)


def test_chunk_size_changes_nothing(monkeypatch):
    tap = tapped(build("vit"))
    whole = tap.image_attention(), tap.class_rollout(), tap.image_rollout(), tap.attend(torch.ones(2, 17))
    monkeypatch.setattr(call_module, "rows_at_once", lambda *_: 1)
    by_row = tap.image_attention(), tap.class_rollout(), tap.image_rollout(), tap.attend(torch.ones(2, 17))
    for one, other in zip(whole, by_row, strict=True):
        close(one, other)


# --- Ways of running the model


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_attention_is_read_before_dropout(fused):
    expected = hooked_attention(build("vit", fused=False), images())
    model = build("vit", fused=fused, attn_drop_rate=0.5).train()
    close(tapped(model, (0,)).probabilities(0), expected[0])


@pytest.mark.parametrize("family", ["vit", "beit", "cait"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_bitwise_those_without_a_tap(family, checkpointing):
    model = build(family, attn_drop_rate=0.1, drop_path_rate=0.1).train()
    model.set_grad_checkpointing(checkpointing)

    def gradients(tap):
        model.zero_grad()
        torch.manual_seed(5)
        if tap is None:
            loss = model(images()).square().sum()
        else:
            with tap:
                loss = model(images()).square().sum()
                tap.image_attention()
        loss.backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    for plain, with_tap in zip(gradients(None), gradients(AttentionTap(model)), strict=True):
        assert (plain is None and with_tap is None) or torch.equal(plain, with_tap)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_the_second_run_of_gradient_checkpointing_is_not_counted(backward, reentrant, monkeypatch):
    """A function mode does not see inside backward, which is one call to it; this holds PyTorch to that."""
    monkeypatch.setattr("timm.models._manipulate.use_reentrant_ckpt", lambda: reentrant)
    model = build("vit").train()
    model.set_grad_checkpointing()
    with AttentionTap(model, None) as tap:
        backward(model(images()).sum())
    assert len(tap._recorder.shapes) == 3
    close(tap.probabilities(0), hooked_attention(build("vit", fused=False), images())[0])


def test_bfloat16_autocast():
    expected = tapped(build("vit"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tap = tapped(build("vit"))
        results = tap.class_attention(), tap.image_attention(), tap.probabilities(), tap.class_rollout()
    wanted = (
        expected.class_attention(),
        expected.image_attention(),
        expected.probabilities(),
        expected.class_rollout(),
    )
    for result, value in zip(results, wanted, strict=True):
        assert result.dtype == torch.float32
        assert result.isfinite().all()
        close(result, value, atol=0.05)
    close(tap.class_attention().sum(1), torch.ones(2))


def test_inference_mode():
    with torch.inference_mode():
        tap = tapped(build("vit"))
    close(tap.class_attention(), tapped(build("vit")).class_attention())


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("blocks", [(-1,), (0, -2), None], ids=str)
def test_compiled_model_is_compiled_once(blocks, fused, fresh_dynamo):
    model = build("vit", fused=fused).train()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for step in range(4):
        batch = images() + step
        tap = tapped(compiled, blocks, batch)  # a new tap at each step
        assert counter.frame_count == 1
        block = -1 if blocks is None else blocks[0]
        close(tap.probabilities(block), tapped(model, None, batch).probabilities(block))


def test_compiled_model_sees_each_tap_for_itself(fresh_dynamo):
    counter = CompileCounter()
    compiled = torch.compile(build("vit"), backend=counter, fullgraph=True)
    for _ in range(2):
        compiled(images())
        assert sorted(tapped(compiled, (-1,))._recorder.calls) == [2]
        assert sorted(tapped(compiled, None)._recorder.calls) == [0, 1, 2]
    assert counter.frame_count == 3


def test_compiled_gradients(fresh_dynamo):
    model = build("vit").train()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=CompileCounterWithBackend("aot_eager"), fullgraph=True)
    with AttentionTap(compiled) as tap:
        loss = compiled(images()).square().sum()
    loss.backward()
    twin(images()).square().sum().backward()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    close(tap.class_attention(), tapped(twin).class_attention())


@pytest.mark.slow
def test_inductor(fresh_dynamo):
    model = build("vit").train()
    tap = tapped(torch.compile(model, fullgraph=True))
    close(tap.class_attention(), tapped(model).class_attention())


def test_wrapped_model_is_looked_through(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = build("dinov2_reg")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        close(tapped(wrapped).class_attention(), tapped(model).class_attention())
    finally:
        torch.distributed.destroy_process_group()
    assert tapped(torch.compile(model, backend="eager")).class_attention().shape == (2, 16)


def test_two_taps_and_reading_while_open():
    model = build("vit")
    with AttentionTap(model, None) as outer:
        with AttentionTap(model) as inner:
            model(images())
        close(inner.class_attention(), outer.class_attention())
        inner.image_attention()
        inner.probabilities()
        assert len(outer._recorder.shapes) == 3


def test_a_tap_can_be_used_again():
    model = build("vit")
    tap = AttentionTap(model)
    for batch in (images(), images() + 1):
        with tap:
            model(batch)
        close(tap.class_attention(), tapped(model, batch=batch).class_attention())


# --- Options


def test_num_prefix_tokens():
    model = build("vit")
    matrix = tapped(model).probabilities().mean(1)
    close(tapped(model, num_prefix_tokens=3).image_attention(), matrix[:, 3:, 3:].mean(1))
    close(tapped(model, num_prefix_tokens=0).image_attention(), matrix.mean(1))


def test_blocks():
    model = build("vit")
    whole = tapped(model)
    with AttentionTap(model) as default:
        model(images())
    assert sorted(default._recorder.calls) == [2]
    for block in (0, 1, -1, -3):
        tap = tapped(model, (block,))
        assert len(tap._recorder.calls) == 1
        close(tap.class_attention(block), whole.class_attention(block))
        close(tap.class_attention(block % 3), whole.class_attention(block))
    assert not torch.allclose(whole.class_attention(0), whole.class_attention(1))


# --- Errors, and the model afterwards


@pytest.mark.parametrize("family", ["vit_avg", "registers_only"])
def test_no_class_token(family):
    tap = tapped(build(family))
    for quantity in (tap.class_attention, tap.class_rollout):
        with pytest.raises(ValueError, match="VisionTransformer has no class token: use image_attention"):
            quantity()
    assert tap.image_attention().shape == (2, 16)


def test_block_without_class_token():
    with pytest.raises(ValueError, match="block 0 of Cait has no class token: use image_attention"):
        tapped(build("cait")).class_attention(0)


def test_no_attention_caught():
    model = resnet18(num_classes=3)
    with pytest.raises(RuntimeError, match=r"caught no attention in ResNet: .* convnet.* compiled function"):
        tapped(model)


@pytest.mark.parametrize("block", [3, -4])
def test_block_out_of_range(block):
    tap = tapped(build("vit"), (-1,))
    with pytest.raises(ValueError, match=f"block {block} is none of the 3 of VisionTransformer: -3 to 2"):
        tap.class_attention(block)


@pytest.mark.parametrize("block", [0, -2])
def test_block_not_kept(block):
    tap = tapped(build("vit"), (-1,))
    with pytest.raises(ValueError, match=rf"block {block} of VisionTransformer was not kept: .* 3 blocks, \[2\]"):
        tap.class_attention(block)


def test_rollout_needs_every_block():
    tap = tapped(build("vit"), (0, 1, 2))
    for quantity in (tap.class_rollout, tap.image_rollout):
        with pytest.raises(ValueError, match=f"{quantity.__name__} needs every block"):
            quantity()


def test_no_blocks():
    with pytest.raises(ValueError, match="blocks is empty"):
        AttentionTap(build("vit"), ())


def state_of(model):
    return [
        (name, sorted(vars(module)), [len(v) for k, v in sorted(vars(module).items()) if k.endswith("hooks")])
        for name, module in model.named_modules()
    ]


def fail_inside(tap, body):
    with tap:
        body()
        raise KeyError("mine")


def test_nothing_is_left_on_the_model():
    model = VisionTransformer(**SIZES)
    before = state_of(model)
    tapped(model).class_rollout()
    assert state_of(model) == before
    assert torch._C._len_torch_function_stack() == 0
    for body in (
        lambda: model(images()),
        lambda: None,
    ):  # an error after and before any attention: still that error
        with pytest.raises(KeyError, match="mine"):
            fail_inside(AttentionTap(model), body)
    assert state_of(model) == before
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_a_stopping_tap_runs_the_model_no_further_than_it_looks(fused):
    model = build("vit", fused=fused)
    whole, ran = tapped(model), []
    for number, block in enumerate(model.blocks):
        block.mlp.register_forward_hook(lambda *_, number=number: ran.append(number))
    with AttentionTap(model, (1,), stop=True) as tap:
        model(images())
        pytest.fail("the forward went on")
    assert ran == [0]
    close(tap.probabilities(1), whole.probabilities(1), atol=0)
    close(tap.attend(torch.ones(2, 17), 1), whole.attend(torch.ones(2, 17), 1), atol=0)
    for read in (tap.image_attention, tap.class_attention):
        with pytest.raises(ValueError, match="does not see the blocks behind.*use probabilities, or do not stop"):
            read(1)
    with pytest.raises(ValueError, match="block is -1, but a tap that stops counts blocks from 0"):
        tap.probabilities()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("blocks", [None, (-1,), (0, -1)])
def test_a_stopping_tap_wants_to_know_where(blocks):
    with pytest.raises(ValueError, match="stop needs blocks counted from 0, got"):
        AttentionTap(build("vit"), blocks, stop=True)


def test_a_stopping_tap_lets_other_errors_pass():
    with pytest.raises(ZeroDivisionError), AttentionTap(build("vit"), (0,), stop=True):
        1 / 0  # noqa: B018


def test_a_stopping_tap_stops_for_itself_and_for_no_tap_inside():
    reached = []
    with AttentionTap(build("vit"), (0,), stop=True) as outer:
        with AttentionTap(build("vit"), (2,)) as inner:
            build("vit")(images())
        reached.append(1)
    assert not reached
    assert outer.probabilities(0).shape[0] == 2
    assert not inner._recorder.calls
