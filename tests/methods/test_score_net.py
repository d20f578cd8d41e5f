import pytest
import torch
from torch import nn

from attnmix.methods.score_net import ScoreNet, difficulty, easy_samples
from tests import references


@pytest.mark.parametrize("pool", ["class", "attention", "mean"])
def test_scorenet_pools_as_told(pool):
    net = ScoreNet(4, 3, pool=pool, prefix=2, generator=torch.Generator())
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    tokens = torch.randn(2, 7, 4)
    images = tokens[:, 2:]
    if pool == "class":
        pooled = tokens[:, 0]
    elif pool == "mean":
        pooled = images.sum(dim=1) / 5
    else:
        weights = (images @ net.attend.weight[0] + net.attend.bias).exp()
        pooled = (images * (weights / weights.sum(dim=1, keepdim=True))[..., None]).sum(dim=1)
    assert torch.allclose(net(tokens), pooled @ net.classify.weight.T + net.classify.bias, atol=1e-5)


def test_scorenet_reads_a_grid_as_it_reads_a_sequence():
    for pool in ("attention", "mean"):
        net = ScoreNet(4, 3, pool=pool, prefix=0, generator=torch.Generator())
        tokens = torch.randn(2, 3, 5, 4)
        assert torch.allclose(net(tokens), net(tokens.flatten(1, 2)), atol=1e-6)


def test_first_weights_are_the_generators_alone():
    state = torch.get_rng_state()
    nets = [
        ScoreNet(4, 3, pool="attention", prefix=0, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    weights = [nn.utils.parameters_to_vector(net.parameters()) for net in nets]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert torch.get_rng_state().equal(state)


def test_difficulty_is_each_samples_own_error_in_full_precision():
    logits, label = torch.randn(3, 4), torch.rand(3, 4).softmax(dim=1)
    wanted = torch.stack([references.cross_entropy(logits[i], label[i]) for i in range(3)])
    assert torch.allclose(difficulty(logits, label), wanted, atol=1e-6)
    assert difficulty(logits.bfloat16(), label).dtype == torch.float32


def test_difficulty_scale_and_tau_decide_who_is_easy():
    difficulty = torch.tensor([1.0, 2.0, 3.0, torch.nan])
    assert easy_samples(difficulty, tau=0.2, scale=0.1).tolist() == [True, True, False, False]
    assert easy_samples(difficulty, tau=2.0).tolist() == [True, True, False, False]
    assert not easy_samples(difficulty, tau=0.0).any()
    assert easy_samples(difficulty, tau=float("inf")).tolist() == [True, True, True, False]
