import copy
import itertools
import math
import sys

import numpy as np
import pytest
import torch

import attnmix
from attnmix.methods import puzzlemix
from attnmix.methods.input_saliency import input_saliency
from attnmix.mixing import block_transport
from attnmix.mixing.block_transport import masked_transport, move_costs, take_blocks
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.settings import options_for

SIZE = (16, 24)


def make_task(model, **options):
    return attnmix.MixTask(model, attnmix.create_method("puzzlemix", num_classes=NUM_CLASSES, **options))


def make_batch(batch=4):
    return torch.randn(batch, 3, *SIZE), torch.arange(batch) % NUM_CLASSES


def slow_saliency(model, images, labels, smoothing=0.1):
    """Norm over the channels of each image's gradient of its own loss, one image at a time, by a copy."""
    model, maps = copy.deepcopy(model).eval(), []
    for image, label in zip(images, labels.tolist(), strict=True):
        pixels = image[None].clone().requires_grad_()
        wanted = references.smooth(label, NUM_CLASSES, smoothing)
        references.cross_entropy(model(pixels)[0], wanted).backward()
        maps.append((pixels.grad[0] ** 2).sum(dim=0).sqrt())
    return torch.stack(maps)


def slow_blocks(saliency, grid):
    """Each block's share of the image's saliency."""
    height, width = SIZE[0] // grid[0], SIZE[1] // grid[1]
    shares = np.zeros(grid)
    for row, column in itertools.product(range(grid[0]), range(grid[1])):
        block = saliency[row * height : (row + 1) * height, column * width : (column + 1) * width]
        shares[row, column] = block.sum() / saliency.sum()
    return shares


def slow_energy(z, target, source, pixels, q, *, beta, gamma, eta, top):
    """The main objective of one hard mask: saliency lost, smoothness of mask and pixels, prior."""
    rows, columns = z.shape
    height, width, beta = SIZE[0] // rows, SIZE[1] // columns, beta / (16 * math.sqrt(z.size))
    total = 0.0
    for row, column in itertools.product(range(rows), range(columns)):
        here = int(z[row, column])
        total += target[row, column] if here else source[row, column]
        total -= eta / z.size * math.log((q**top if here else (1 - q) ** top) + 1e-8)
        if row + 1 < rows:
            edge, side = (row + 1) * height, slice(column * width, (column + 1) * width)
            there = int(z[row + 1, column])
            apart = (pixels[here][:, edge - 1, side] - pixels[there][:, edge, side]).abs().mean().item()
            total += beta * ((here != there) + gamma * apart)
        if column + 1 < columns:
            edge, side = (column + 1) * width, slice(row * height, (row + 1) * height)
            there = int(z[row, column + 1])
            apart = (pixels[here][:, side, edge - 1] - pixels[there][:, side, edge]).abs().mean().item()
            total += beta * ((here != there) + gamma * apart)
    return total


@pytest.mark.parametrize(
    "weights", [{}, {"beta": 4.0, "gamma": 2.0}, {"beta": 0.0, "eta": 1.0}], ids=["default", "smooth", "prior"]
)
def test_the_mask_is_the_best_of_all(make_vit, weights):
    model = make_vit()
    model.pretrained_cfg = {"std": (0.25, 0.25, 0.25)}
    images, labels = make_batch()
    images *= torch.tensor([0.1, 0.3, 1.0, 1.5])[:, None, None, None]  # some smoother than others
    task = make_task(model, blocks=3, levels=2, transport=False, neighbourhood=1, **weights)
    weights = {"beta": 1.2, "gamma": 0.5, "eta": 0.2, **weights}
    twin = make_task(model, blocks=3)
    generator = torch.Generator().manual_seed(0)
    twin.method.share_generator(generator)
    mixed = task.mix(images, labels)
    twin.method.sampler.kind(generator)
    q = twin.method.pasted_shares(images)
    grid = (2, 3)  # 3 does not divide 16
    shares = [slow_blocks(each, grid) for each in slow_saliency(model, images, labels)]
    masks = [np.array(bits).reshape(grid) for bits in itertools.product(range(2), repeat=6)]
    for i in range(4):
        pixels = images[i] * 0.25, images[3 - i] * 0.25
        energies = [slow_energy(z, shares[i], shares[3 - i], pixels, q[i].item(), top=1, **weights) for z in masks]
        wanted = np.kron(masks[int(np.argmin(energies))], np.ones((8, 8))).astype(bool)
        assert mixed.source_mask[i].numpy().tolist() == wanted.tolist()


def test_binomial_prior():
    costs = puzzlemix.prior_costs(np.array([0.3, 0.0]), 2)
    assert np.allclose(costs[0], -np.log([0.49, 0.42, 0.09]))
    assert np.allclose(costs[1, 0], 0)
    assert np.isfinite(costs).all()
    assert costs[1, 2] > 10


def test_saliency_is_each_images_own_gradient(make_vit):
    model, (images, labels) = make_vit(drop_rate=0.5), make_batch()
    task = make_task(model)
    saliency = input_saliency(task.view, images, task.method.targets(labels))
    ratio = saliency / slow_saliency(model, images, labels)
    assert torch.allclose(ratio, ratio[0, 0, 0].expand_as(ratio), rtol=1e-3)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_without_gradient(make_vit, context):
    task, other = make_task(make_vit()), make_task(make_vit())
    images, labels = make_batch()
    wanted = other.mix(images, labels)
    with context():
        mixed = task.mix(images.clone(), labels.clone())
    assert mixed.images.equal(wanted.images)


@pytest.mark.parametrize("options", [{}, {"norm_layer": "batchnorm"}])
def test_the_extra_backward_leaves_no_trace(make_vit, options):
    model = make_vit()
    if options:  # statistics that a training forward would move
        model.norm_pre = torch.nn.Sequential(torch.nn.Flatten(1, 2), torch.nn.BatchNorm1d(24 * 25))
        model.norm_pre.append(torch.nn.Unflatten(1, (25, 24)))
    task = make_task(model.train())
    images, labels = make_batch()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 3 > 0)
        parameter.grad = torch.full_like(parameter, 2.0) if number % 2 else None
    before = copy.deepcopy(model.state_dict())
    flags = [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    state = torch.get_rng_state()
    task.mix(images, labels)
    assert torch.get_rng_state().equal(state)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    for parameter, (wanted, grad) in zip(model.parameters(), flags, strict=True):
        assert parameter.requires_grad == wanted
        assert (parameter.grad is None) if grad is None else parameter.grad.equal(grad)
    assert not images.requires_grad
    assert all(module.training for module in model.modules())


def test_gradient_checkpointing_changes_nothing(make_vit):
    images, labels = make_batch()
    plain, saving = make_task(make_vit()), make_task(make_vit())
    saving.view.model.set_grad_checkpointing(True)
    one, two = plain(images, labels), saving(images, labels)
    assert torch.allclose(one["mixed"].images, two["mixed"].images)
    assert torch.allclose(one["loss"], two["loss"])


def test_moved_blocks_are_taken_from_their_own_image_and_its_mask_moves_alike(make_vit):
    images, labels = make_batch(5)
    task = make_task(make_vit(), blocks=4, levels=2, beta=0.1, distance_weight=0.02)
    mixed = task.mix(images, labels)
    draw = mixed.draw
    stay = torch.arange(16)
    assert (draw.target_from != stay).any()
    assert (draw.source_from != stay).any()
    target = take_blocks(images, torch.arange(5), draw.target_from, (4, 4))
    source = take_blocks(images, mixed.source_index, draw.source_from, (4, 4))
    assert torch.allclose(mixed.images, torch.lerp(target, source, mixed.source_map[:, None]), atol=1e-6)
    objects = images[:, :1]
    assert draw.apply(objects).images.equal(mixed.images[:, :1])
    assert mixed.images[2].equal(images[2])  # its own partner


def test_transport_shows_more_saliency(make_vit):
    images, labels = make_batch(8)
    model = make_vit()
    still = make_task(model, blocks=4, mode="elem", transport=False).mix(images, labels)
    moved = make_task(model, blocks=4, mode="elem", distance_weight=0.05).mix(images, labels)
    assert moved.source_map.equal(still.source_map)
    saliency = slow_saliency(model, images, labels)
    saliency = (saliency / saliency.sum(dim=(1, 2), keepdim=True))[:, None]
    shown = [each.draw.apply(saliency).images.sum(dim=(1, 2, 3)) for each in (still, moved)]
    assert (shown[1] >= shown[0] - 1e-5).all()
    assert shown[1].mean() > shown[0].mean() + 0.003


def test_blocks_of_both_images_move_for_as_many_rounds_as_the_longer_side_has(make_vit):
    images, labels = make_batch(24)
    model = make_vit()
    options = {"blocks": 2, "transport_size": 4, "distance_weight": 0.005}
    mixed = make_task(model, levels=2, beta=0.0, eta=0.0, **options).mix(images, labels)
    draw = mixed.draw
    assert draw.grid == (4, 6)
    shares = np.stack([slow_blocks(each, (4, 6)) for each in slow_saliency(model, images, labels)])
    shares, source = torch.from_numpy(shares).float(), mixed.source_map[:, ::4, ::4]

    def places(saliency, shown, rounds):
        return masked_transport(move_costs(saliency, shown, distance_weight=0.005), rounds=rounds)

    for found, saliency, shown in (
        (draw.target_from, shares, source < 1),
        (draw.source_from, shares[mixed.source_index], source > 0),
    ):
        assert found.equal(places(saliency, shown, 6))
        for other in (4, 5, 7):
            assert not found.equal(places(saliency, shown, other))


def test_few_costs_are_held_at_once(make_vit, monkeypatch):
    images, labels = make_batch(5)
    wanted = make_task(make_vit(), blocks=4, distance_weight=0.02).mix(images, labels)
    held, transport = [], masked_transport
    monkeypatch.setattr(block_transport, "CHUNK_ELEMENTS", 3 * 16**2)
    monkeypatch.setattr(
        block_transport, "masked_transport", lambda cost, **kw: held.append(cost.shape) or transport(cost, **kw)
    )
    mixed = make_task(make_vit(), blocks=4, distance_weight=0.02).mix(images, labels)
    assert held == [(3, 16, 16)] * 3 + [(1, 16, 16)]  # of two images each
    assert mixed.images.equal(wanted.images)


def test_without_other_terms_each_block_is_of_the_more_salient_image(make_vit):
    images, labels = make_batch()
    model = make_vit()
    mixed = make_task(model, blocks=4, levels=2, transport=False, beta=0.0, eta=0.0).mix(images, labels)
    shares = np.stack([slow_blocks(each, (4, 4)) for each in slow_saliency(model, images, labels)])
    assert mixed.source_mask[:, ::4, ::6].numpy().tolist() == (shares[::-1] > shares).tolist()


def test_smooth_enough_a_mask_is_one_image(make_vit):
    images, labels = make_batch()
    mixed = make_task(make_vit(), blocks=4, beta=1e4, gamma=0.0).mix(images, labels)
    assert all(len(each.unique()) == 1 for each in mixed.source_map)


def test_a_strong_prior_gives_the_drawn_share(make_vit):
    images, labels = make_batch()
    task = make_task(make_vit(), blocks=4, eta=1e4, mode="elem", cutmix_alpha=0.1)
    drawn = []
    shares = task.method.pasted_shares
    task.method.pasted_shares = lambda images: drawn.append(shares(images)) or drawn[-1]
    mixed = task.mix(images, labels)
    likeliest = torch.stack([(1 - drawn[0]) ** 2, 2 * drawn[0] * (1 - drawn[0]), drawn[0] ** 2]).argmax(dim=0) / 2
    assert mixed.source_weight.equal(likeliest)


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 2},
        {"levels": 2},
        {"beta": 6.0},
        {"gamma": 2.0},
        {"eta": 2.0},
        {"neighbourhood": 1},
        {"transport": False, "distance_weight": 0.8},
        {"distance_weight": 0.05},
        {"transport_size": 2},
        {"cutmix_alpha": 0.2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_changes_the_images(make_vit, options):
    model = make_vit()
    images, labels = make_batch(8)
    base = {"blocks": 4, "gamma": 1.0, "beta": 3.0, "distance_weight": 0.2}
    one, two = make_task(model, **base), make_task(model, **{**base, **options})
    assert not all(torch.equal(one.mix(images, labels).images, two.mix(images, labels).images) for _ in range(4))


def test_each_step_draws_its_blocks(make_vit):
    task = make_task(make_vit(), blocks=(2, 8))
    images, labels = make_batch()
    assert {task.mix(images, labels).draw.grid for _ in range(12)} == {(2, 2), (8, 8)}


def test_smaller_blocks_move_under_a_coarse_mask(make_vit):
    images, labels = make_batch()
    mixed = make_task(make_vit(), blocks=2, transport_size=4, distance_weight=0.05).mix(images, labels)
    assert mixed.draw.grid == (4, 6)  # of 8 x 12 pixels each, in parts of 4
    blocks = mixed.source_map[:, ::8, ::12]
    assert mixed.source_map.equal(blocks.repeat_interleave(8, dim=1).repeat_interleave(12, dim=2))


def test_the_host_waits_once(make_vit, monkeypatch):
    copies = []
    down = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(self.shape) or down(self))
    make_task(make_vit(), blocks=4).mix(*make_batch())
    assert len(copies) == 1


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_label_policies_compose(make_vit, label):
    images, labels = make_batch()
    out = make_task(make_vit(), label=label)(images, labels)
    assert out["loss"].isfinite()
    area = out["mixed"].source_map.mean(dim=(1, 2))
    assert not torch.allclose(out["mixed"].source_weight, area, atol=1e-4)


def test_it_takes_turns_and_serves_tokenmixup(make_vit):
    images, labels = make_batch()
    turns = attnmix.MixTask(make_vit(), attnmix.create_method("puzzlemix+cutmix", num_classes=NUM_CLASSES))
    kinds = {type(turns.mix(images, labels).draw).__name__ for _ in range(12)}
    assert kinds == {"PasteBlocks", "Paste"}
    options = options_for("tokenmixup", make_vit, base="puzzlemix")
    task = attnmix.MixTask(make_vit(), attnmix.create_method("tokenmixup", num_classes=NUM_CLASSES, **options))
    out = task(images, labels)
    assert out["loss"].isfinite()
    assert type(out["mixed"].draw).__name__ == "PasteBlocks"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 1}, "blocks is 1, but"),
        ({"levels": 1}, "levels is 1, but a mask has 2"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"gamma": math.inf}, "gamma is inf"),
        ({"eta": -0.1}, "eta is -0.1"),
        ({"blocks": 2.5}, "blocks is 2.5, but must be a whole number of blocks"),
        ({"blocks": True}, "blocks is True, but"),
        ({"levels": 2.5}, "levels is 2.5, but a mask has 2 .* a whole number"),
        ({"levels": "3"}, "levels is '3', but"),
        ({"neighbourhood": 0}, "neighbourhood is 0, but must be a whole number of pixels, at least 1"),
        ({"neighbourhood": 1.5}, "neighbourhood is 1.5, but must be a whole number of pixels"),
        ({"neighbourhood": True}, "neighbourhood is True, but"),
        ({"neighbourhood": None}, "neighbourhood is None, but"),
        ({"transport_size": 2.5}, "transport_size is 2.5, but must be a whole number of pixels"),
        ({"transport_size": True}, "transport_size is True, but"),
        ({"distance_weight": 0.0}, "distance_weight is 0.0, but moving a block must cost"),
        ({"transport_size": 0}, "transport_size is 0"),
        ({"transport_size": 4, "transport": False}, "transport_size is 4, but nothing moves"),
        ({"distance_weight": 0.3, "transport": False}, "distance_weight is 0.3, but nothing moves"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("puzzlemix", num_classes=3, **options)


def test_a_missing_package_is_named_before_training(make_vit, monkeypatch):
    monkeypatch.setitem(sys.modules, "maxflow", None)
    with pytest.raises(
        ValueError, match=r'puzzlemix cuts graphs by PyMaxflow: pip install "attnmix\[puzzlemix\]"'
    ):
        make_task(make_vit())
