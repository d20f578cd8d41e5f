import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import ResPostBlock
from torch import nn

from attnmix.evaluation.activation_maps import activation_maps
from attnmix.evaluation.subject import Subject
from tests.conftest import tiny_vit
from tests.evaluation.exams import tiny_subject

IMAGES = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))


def stretched(activations, gradients):
    """Selvaraju et al., eq. 1 and 2, channel by channel, on one image's [gh, gw, D]; then from 0 to 1."""
    total = torch.zeros(activations.shape[:2])
    for channel in range(activations.shape[2]):
        weight = gradients[..., channel].sum() / gradients[..., channel].numel()
        total += weight * activations[..., channel]
    positive = total.clamp(min=0)
    lifted = positive - positive.min()
    return lifted / lifted.max() if lifted.max() > 0 else lifted


@pytest.mark.parametrize(
    "options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}], ids=["class", "reg", "avg"]
)
def test_the_map_is_the_papers(options):
    subject = tiny_subject(**options)
    model = subject.model
    found = activation_maps(subject, IMAGES, torch.tensor([0, 3, 4]))
    assert found.shape == (3, 4, 6)
    for i, number in enumerate((0, 3, 4)):
        tokens = model._pos_embed(model.patch_embed(IMAGES[i : i + 1]))
        for block in model.blocks[:-1]:
            tokens = block(tokens)
        last = model.blocks[-1]
        normalised = last.norm1(tokens).detach().requires_grad_()
        tokens = tokens.detach() + last.attn(normalised)
        tokens = tokens + last.mlp(last.norm2(tokens))
        logit = model.forward_head(model.norm(tokens))[0, number]
        (gradient,) = torch.autograd.grad(logit, normalised)
        first = model.num_prefix_tokens
        wanted = stretched(normalised.detach()[0, first:].reshape(4, 6, -1), gradient[0, first:].reshape(4, 6, -1))
        torch.testing.assert_close(found[i], wanted, atol=1e-4, rtol=1e-4)


def test_swins_tokens_lie_on_a_grid_already():
    model = SwinTransformer(
        img_size=(24, 16), patch_size=2, depths=(2, 2), embed_dim=8, num_heads=(1, 2), window_size=4, num_classes=3
    )
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    subject = Subject("swin", model, [], (3, 24, 16), (0,) * 3, (1,) * 3, fresh=lambda: model)
    images, classes = torch.randn(4, 3, 24, 16), torch.tensor([0, 1, 2, 0])
    found = activation_maps(subject, images, classes)
    seen = []
    hook = model.layers[-1].blocks[-1].norm1.register_forward_hook(lambda module, args, out: seen.append(out))
    for i in range(4):
        gradient = torch.autograd.grad(model(images[i : i + 1])[0, classes[i]], seen[0])[0]
        wanted = stretched(seen.pop().detach()[0], gradient[0])
        torch.testing.assert_close(found[i], wanted, atol=1e-4, rtol=1e-4)
    hook.remove()
    assert found.amax(dim=(1, 2)).gt(0).any()


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("breaks", [False, True])
def test_the_model_is_given_back_as_it_was(monkeypatch, breaks):
    subject = tiny_subject(proj_drop_rate=0.5)
    model = subject.model.train()
    model.cls_token.requires_grad_(False)
    model.head.bias.grad = kept = torch.ones_like(model.head.bias)
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    if breaks:
        monkeypatch.setattr(model.head, "forward", lambda tokens: [][0])
        with pytest.raises(IndexError):  # which grad-cam's own context manager keeps to itself
            activation_maps(subject, IMAGES, torch.tensor([0, 1, 2]))
    else:
        with torch.no_grad():
            activation_maps(subject, IMAGES, torch.tensor([0, 1, 2]))
    assert torch.get_rng_state().equal(state)
    assert model.training
    assert model.blocks[0].training
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert model.head.bias.grad is kept
    assert kept.eq(1).all()
    assert all(parameter.grad is None for parameter in model.parameters() if parameter is not model.head.bias)
    assert hooks_of(model) == 0
    assert IMAGES.grad is None


def test_prefix_tokens_that_join_after_the_last_block_are_none_of_its_own():
    size = {"img_size": (32, 48), "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("cait_xxs24_224", num_classes=3, **size)
    subject = Subject("cait", model, [], (3, 32, 48), (0,) * 3, (1,) * 3, fresh=lambda: model)
    assert activation_maps(subject, torch.randn(2, 3, 32, 48), torch.tensor([0, 1])).shape == (2, 2, 3)


@pytest.mark.parametrize("number", [-1, 5])
def test_a_class_that_is_no_output(number):
    with pytest.raises(ValueError, match=rf"classes \[0, {number}\]|classes \[{number}, 0\].*outputs 0 to 4"):
        activation_maps(tiny_subject(), IMAGES[:2], torch.tensor([0, number]))


def test_models_without_such_a_layer():
    with pytest.raises(ValueError, match="ResPostBlock.*no norm before its attention"):
        activation_maps(tiny_subject(block_fn=ResPostBlock), IMAGES[:1], torch.tensor([0]))
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 5))
    subject = Subject("plain", network, [], (3, 16, 24), (0,) * 3, (1,) * 3, fresh=tiny_vit)
    with pytest.raises(ValueError, match="plain: Sequential does not lay out its tokens"):
        activation_maps(subject, IMAGES[:1], torch.tensor([0]))
