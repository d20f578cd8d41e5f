import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnmix.attention import AttentionTap
from attnmix.attention.intervene import changed_tokens, peek, shared_memory
from attnmix.attention.quantities import probabilities
from tests.attention.reference import FAMILIES, build, hooked_attention, images

SEQUENCES = ("vit", "vit_avg", "deit_distilled", "dinov2_reg", "registers_only")


def peek_at(model, number, batch):
    """What `peek` finds when block `number` is about to run, and whether the model went on as ever."""
    found = []
    handle = model.blocks[number].register_forward_pre_hook(
        lambda block, args, kwargs: found.append(peek(block, args, kwargs)), with_kwargs=True
    )
    output = model(batch)
    handle.remove()
    return found[0], output


def heads(block, tokens):
    """Query, key and value `[B, H, M, D]` of a timm ViT block by its modules."""
    batch, count, _ = tokens.shape
    qkv = block.attn.qkv(block.norm1(tokens))
    return qkv.reshape(batch, count, 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def inputs_of(model, batch):
    """The input of every block, by ordinary hooks."""
    found = []
    handles = [block.register_forward_pre_hook(lambda _, args: found.append(args[0])) for block in model.blocks]
    model(batch)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_peek_sees_the_attention_that_the_block_then_makes(family, fused):
    model, batch = build(family, fused=fused), images()
    wanted = hooked_attention(build(family, fused=False), batch)
    plain = model(batch)
    for number in range(3):
        caught, output = peek_at(model, number, batch)
        assert torch.allclose(probabilities(caught.call), wanted[number], atol=1e-5)
        assert output.equal(plain)


def test_peek_draws_nothing_and_runs_no_hook():
    model = build("vit", attn_drop_rate=0.5, proj_drop_rate=0.5, drop_path_rate=0.5).train()
    tokens = torch.randn(2, 17, 32)
    block = model.blocks[2]
    block.register_forward_pre_hook(lambda *_: 1 / 0)
    block.register_forward_hook(lambda *_: 1 / 0)
    block.attn.proj.register_forward_hook(lambda *_: 1 / 0)
    state = torch.get_rng_state()
    peek(block, (tokens,))
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_an_open_tap_does_not_see_a_peek(fused):
    model, batch = build("vit", fused=fused), images()
    with AttentionTap(model, blocks=None) as alone:
        model(batch)
    with AttentionTap(model, blocks=None) as tap:
        peek_at(model, 1, batch)
    for number in range(3):
        assert tap.probabilities(number).equal(alone.probabilities(number))
    with pytest.raises(ValueError, match="none of the 3"):
        tap.probabilities(3)


def test_peeked_keys_and_values_carry_their_gradient_and_the_call_does_not():
    block, tokens = build("vit").blocks[1], torch.randn(2, 5, 32, requires_grad=True)
    caught = peek(block, (tokens,))
    _, key, value = heads(block, tokens)
    assert torch.allclose(caught.key, key, atol=1e-6)
    assert torch.allclose(caught.value, value, atol=1e-6)
    assert not caught.call.query.requires_grad
    assert not caught.call.key.requires_grad
    ours = torch.autograd.grad(caught.value.square().sum(), [tokens, block.norm1.weight])
    theirs = torch.autograd.grad(value.square().sum(), [tokens, block.norm1.weight])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
    with torch.no_grad():
        assert not peek(block, (tokens,)).value.requires_grad


def test_peek_at_what_has_no_attention_is_an_error():
    with pytest.raises(RuntimeError, match="Linear has no attention"):
        peek(nn.Linear(2, 2), (torch.ones(1, 2),))


def test_an_error_inside_a_peeked_block_stays_that_error():
    block = build("vit").blocks[0]
    with pytest.raises(RuntimeError, match="normalized_shape"):
        peek(block, (torch.randn(1, 4, 31),))
    assert torch._C._len_torch_function_stack() == 0


def test_changed_tokens_are_what_the_block_runs_on_for_that_while_only():
    model, batch = build("vit"), images()
    plain, inputs = model(batch), inputs_of(model, batch)
    with changed_tokens(model.blocks[1], lambda args, kwargs: args[0].flip(0)):
        assert not model(batch).equal(plain)
    with changed_tokens(model.blocks[1], lambda args, kwargs: inputs[1]):
        assert model(batch.flip(0)).equal(plain)
    assert model(batch).equal(plain)
    with pytest.raises(ZeroDivisionError), changed_tokens(model.blocks[1], lambda args, kwargs: 1 / 0):
        model(batch)
    assert not model.blocks[1]._forward_pre_hooks


@pytest.mark.parametrize("family", SEQUENCES)
def test_memory_is_attended_to_as_explicit_cross_attention_does(family):
    model, batch = build(family).train(), images()
    seen = []

    def select(number, tokens, call):
        seen.append((number, tokens, call))
        return tokens[:, [number + 6, 3]]

    with shared_memory(model.blocks, select):
        output = model(batch)
    inputs = inputs_of(model, batch)
    wanted = hooked_attention(build(family, fused=False), batch)
    assert [number for number, _, _ in seen] == [0, 1]
    for number, tokens, call in seen:
        assert torch.allclose(tokens, inputs[number], atol=1e-6)
        assert torch.allclose(probabilities(call), wanted[number], atol=1e-5)

    block = model.blocks[2]
    memory = torch.cat([inputs[0][:, [6, 3]], inputs[1][:, [7, 3]]], dim=1)
    query, _, _ = heads(block, inputs[2])
    _, key, value = heads(block, torch.cat([inputs[2], memory], dim=1))
    attention = (query @ key.transpose(-2, -1) / 16**0.5).softmax(dim=-1)
    attended = (attention @ value).transpose(1, 2).flatten(2)
    tokens = inputs[2] + block.ls1(block.attn.proj(attended))
    tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
    explicit = model.forward_head(model.norm(tokens))
    explicit = explicit if isinstance(explicit, torch.Tensor) else torch.stack(explicit).mean(dim=0)
    output = output if isinstance(output, torch.Tensor) else torch.stack(output).mean(dim=0)
    assert torch.allclose(output, explicit, atol=1e-4)
    parameters = [model.patch_embed.proj.weight, block.attn.qkv.weight, block.norm1.weight]
    ours = torch.autograd.grad(output.square().sum(), parameters)
    theirs = torch.autograd.grad(explicit.square().sum(), parameters)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_tap_opened_inside_sees_each_call_as_the_model_made_it(block):
    model, batch = build("vit"), images()
    memory = shared_memory(model.blocks, lambda number, tokens, call: tokens[:, :4])
    with memory, AttentionTap(model, blocks=None) as tap:
        model(batch)
    with AttentionTap(model, blocks=None) as alone:
        model(batch)
    assert tap.probabilities(block).equal(alone.probabilities(block))


def test_memory_without_listening_gets_no_call():
    model = build("vit")
    calls = []
    with shared_memory(
        model.blocks, lambda number, tokens, call: calls.append(call) or tokens[:, :1], listen=False
    ):
        model(images())
    assert calls == [None, None]


def test_an_unfused_block_before_the_last_is_heard_too():
    model = build("vit")
    model.blocks[0].attn.fused_attn = False
    wanted = hooked_attention(build("vit", fused=False), images())[0]
    found = []
    with shared_memory(model.blocks, lambda n, tokens, call: found.append(call) or tokens[:, :1]):
        model(images())
    assert torch.allclose(probabilities(found[0]), wanted, atol=1e-5)


class Masked(nn.Module):
    """A block whose attention has a mask, or that has none."""

    def __init__(self, attends=True):
        super().__init__()
        self.attends = attends

    def forward(self, x):
        if not self.attends:
            return x
        q = x[:, None]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=q.new_zeros(q.shape[2], q.shape[2]))[:, 0]


def test_what_cannot_take_memory_is_named_and_nothing_stays_behind():
    model, batch = build("vit"), images()
    model.blocks[2].attn.fused_attn = False

    def select(number, tokens, call):
        return tokens[:, :2]

    with (
        pytest.raises(ValueError, match="Block spells its attention out.*fused attention"),
        shared_memory(model.blocks, select),
    ):
        model(batch)
    blocks = nn.Sequential(*build("vit").blocks, Masked())
    with (
        pytest.raises(ValueError, match="with a mask or a bias cannot attend to memory"),
        shared_memory(list(blocks), select),
    ):
        blocks(torch.randn(2, 17, 32))
    blocks = nn.Sequential(Masked(attends=False), *build("vit").blocks)
    with (
        pytest.raises(RuntimeError, match="a block has no attention of a kind"),
        shared_memory(list(blocks), select),
    ):
        blocks(torch.randn(2, 17, 32))
    for module in (*model.modules(), *blocks.modules()):
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert torch._C._len_torch_function_stack() == 0


class Fickle(nn.Module):
    """Attends the first time it runs, and never again."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        q = x[:, None]
        return F.scaled_dot_product_attention(q, q, q)[:, 0] if self.runs == 1 else x


def test_a_block_that_attends_in_a_peek_only_is_an_error():
    blocks = nn.Sequential(build("vit").blocks[0], Fickle())
    memory = shared_memory(list(blocks), lambda number, tokens, call: tokens[:, :2])
    with pytest.raises(RuntimeError, match="Fickle made no fused attention call to add keys to"), memory:
        blocks(torch.randn(2, 17, 32))
