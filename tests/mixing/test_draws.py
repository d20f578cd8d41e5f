import pytest
import torch
from scipy import stats

from attnmix.mixing import Blend, Keep, MixSampler, Paste, boxes_to_mask


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_keep_returns_the_images_themselves():
    images = torch.rand(3, 3, 4, 5)
    mixed = Keep().apply(images)
    assert mixed.images is images
    assert mixed.source_index.tolist() == [0, 1, 2]
    assert mixed.source_weight.tolist() == [0, 0, 0]
    assert not mixed.source_mask.any()


def test_blend_weighs_each_image_with_its_own_weight():
    images = torch.rand(3, 1, 2, 2)
    mixed = Blend(torch.tensor([2, 1, 0]), torch.tensor([0.25, 0.5, 1.0])).apply(images)
    assert torch.allclose(mixed.images[0], 0.75 * images[0] + 0.25 * images[2])
    assert mixed.images[1].equal(images[1])
    assert mixed.images[2].equal(images[0])
    assert mixed.source_mask is None


def test_paste_moves_the_window_and_leaves_the_rest():
    images = torch.rand(2, 3, 6, 8)
    box = torch.tensor([[1, 2, 3, 4], [0, 5, 2, 3]])
    offset = torch.tensor([[2, -2], [4, -5]])
    mixed = Paste(torch.tensor([1, 0]), box, offset).apply(images)
    for i, (top, left, height, width) in enumerate(box.tolist()):
        row, column = top + int(offset[i, 0]), left + int(offset[i, 1])
        wanted = images[i].clone()
        wanted[:, top : top + height, left : left + width] = images[
            1 - i, :, row : row + height, column : column + width
        ]
        assert mixed.images[i].equal(wanted)
    assert mixed.source_mask.equal(boxes_to_mask(box, (6, 8)))
    assert mixed.source_weight.tolist() == [12 / 48, 6 / 48]


def test_the_same_record_twice_gives_the_same_and_moves_masks_alike():
    images = torch.rand(4, 3, 8, 8)
    draw = MixSampler(mode="elem").paste(4, (8, 8), generator())
    first, second = draw.apply(images), draw.apply(images)
    assert first.images.equal(second.images)
    assert draw.apply(images[:, :1]).images.equal(first.images[:, :1])


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_modes_share_draws_as_timm_does(mode, batch):
    sampler = MixSampler(mode=mode)
    weight = sampler.blend(batch, generator()).source_weight
    box = sampler.paste(batch, (64, 64), generator()).box
    assert weight.shape == (batch,)
    assert box.shape == (batch, 4)
    distinct = {"batch": 1, "pair": (batch + 1) // 2, "elem": batch}[mode]
    assert len(weight.unique()) == distinct
    if mode == "pair":
        assert weight.equal(weight.flip(0))
        assert box.equal(box.flip(0))


def test_pairings():
    def partners(pairing, batch=5):
        return MixSampler(pairing=pairing).partners(batch, generator()).tolist()

    assert partners("flip") == [4, 3, 2, 1, 0]
    assert partners("roll") == [4, 0, 1, 2, 3]
    assert sorted(partners("shuffle")) == [0, 1, 2, 3, 4]
    assert partners("shuffle", 20) != list(range(20))


@pytest.mark.parametrize(("prob", "mixup_prob"), [(1.0, 0.0), (1.0, 1.0), (0.3, 0.5), (0.0, 0.5)])
def test_kinds_are_drawn_as_often_as_asked(prob, mixup_prob):
    sampler, source = MixSampler(prob=prob, mixup_prob=mixup_prob), generator()
    kinds = [sampler.kind(source) for _ in range(4000)]
    assert kinds.count("keep") / 4000 == pytest.approx(1 - prob, abs=0.03)
    assert kinds.count("blend") / 4000 == pytest.approx(prob * mixup_prob, abs=0.03)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_weights_are_beta_distributed(alpha):
    sampler = MixSampler(mixup_alpha=alpha, cutmix_alpha=alpha, mode="elem")
    drawn = sampler.blend(2000, generator()).source_weight
    assert stats.kstest(drawn.numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.01
    areas = sampler.paste(2000, (512, 512), generator()).box[:, 2:].prod(dim=1) / 512**2
    # clipping only takes away: never above the drawn share, below it on average
    assert areas.mean() < 0.5


def test_draws_depend_on_the_seed_alone():
    sampler = MixSampler(prob=0.8, mixup_prob=0.5, mode="elem", pairing="shuffle")
    images = torch.rand(4, 3, 8, 8)

    def run(seed):
        source = generator(seed)
        torch.rand(7)  # the global generator plays no part
        return torch.cat([sampler.draw(4, (8, 8), source).apply(images).images for _ in range(10)])

    assert run(0).equal(run(0))
    assert not run(0).equal(run(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prob": 1.5}, "prob is 1.5"),
        ({"mixup_prob": -0.1}, "mixup_prob is -0.1"),
        ({"mixup_alpha": 0.0}, "mixup_alpha is 0.0"),
        ({"cutmix_alpha": float("nan")}, "cutmix_alpha is nan"),
        ({"mode": "half"}, 'mode is "half", but must be one of batch, pair, elem'),
        ({"pairing": "next"}, 'pairing is "next", but must be one of flip, roll, shuffle'),
        ({"mode": "pair", "pairing": "roll"}, 'mode "pair" needs pairing "flip", not "roll"'),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        MixSampler(**options)
