import pytest
import torch

import attnmix
from tests.conftest import NUM_CLASSES


def make_method(name="cutout", **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def make_batch(batch=4, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def holes(images):
    """True where all channels are 0, `[B, H, W]`."""
    return (images == 0).all(dim=1)


def test_each_image_has_its_own_square_hole_and_its_own_label(make_vit):
    task = attnmix.MixTask(make_vit(), make_method())
    images, labels = make_batch(64)
    out = task(images, labels)
    hole = holes(out["mixed"].images)
    assert out["target"].equal(task.method.targets(labels))
    assert out["mixed"].images[~hole[:, None].expand_as(images)].equal(images[~hole[:, None].expand_as(images)])
    sides = []
    for one in hole:
        rows, columns = one.any(dim=1), one.any(dim=0)
        assert one.equal(rows[:, None] & columns)  # a box
        sides.append((int(rows.sum()), int(columns.sum())))
    assert max(rows for rows, _ in sides) == max(columns for _, columns in sides) == 8  # half the shorter side
    assert len(set(sides)) > 10  # clipped at the border
    assert len(hole.flatten(1).unique(dim=0)) > 50


def test_the_loss_is_the_plain_one_on_the_cut_images(make_vit):
    model = make_vit()
    images, labels = make_batch()
    out = attnmix.MixTask(model, make_method())(images, labels)
    plain = attnmix.MixTask(model, make_method("none"))(out["mixed"].images, labels)
    assert out["loss"].equal(plain["loss"])


@pytest.mark.parametrize(("length", "side"), [(0.01, 1), (0.25, 4), (0.3, 5), (1.0, 16)])
def test_length_is_a_share_of_the_shorter_side(make_vit, length, side):
    images, labels = make_batch(64)
    hole = holes(attnmix.MixTask(make_vit(), make_method(length=length)).mix(images, labels).images)
    assert int(hole.any(dim=1).sum(dim=1).max()) == side


def test_prob_is_the_share_of_steps_that_are_cut(make_vit):
    method = make_method(prob=0.3)
    task = attnmix.MixTask(make_vit(), method)
    images, labels = make_batch(2)
    kinds = [task.mix(images, labels).draw.kind for _ in range(300)]
    assert kinds.count("cut") / 300 == pytest.approx(0.3, abs=0.08)
    assert set(kinds) == {"cut", "keep"}
    assert method.shares == {"keep": 0.7, "blend": 0.0, "paste": 0.3}


def test_holes_follow_the_seed_alone(make_vit):
    images, labels = make_batch()
    one, same, other = (
        attnmix.MixTask(make_vit(), make_method(seed=seed)).mix(images, labels).images for seed in (0, 0, 1)
    )
    assert one.equal(same)
    assert not one.equal(other)


def test_in_turns_with_cutmix_and_under_tokenmixup(make_vit):
    images, labels = make_batch()
    task = attnmix.MixTask(make_vit(), make_method("cutmix+cutout"))
    assert {task(images, labels)["mixed"].draw.kind for _ in range(20)} == {"paste", "cut"}
    task = attnmix.MixTask(make_vit(), make_method("tokenmixup", base="cutout", horizontal=1, vertical=2))
    out = task(images, labels)
    assert out["mixed"].draw.kind == "cut"
    assert out["loss"].isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prob": 1.5}, "prob is 1.5, but a share of steps lies between 0 and 1"),
        ({"length": 0.0}, "length is 0.0, but a share of the shorter side lies above 0, up to 1"),
        ({"length": 16}, "length is 16"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_method(**options)
