import sys

import cv2
import numpy as np
import pytest
import torch

import attnmix
from attnmix.methods.saliencymix import extreme_pixel, pixels_of
from attnmix.mixing.saliency import spectral_residual_saliency
from tests.conftest import NUM_CLASSES

SIZE = (16, 24)


def make_task(model, **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method("saliencymix", num_classes=NUM_CLASSES, **options))


def make_batch(batch=4):
    """Noisy images with something bright in another place of each."""
    images = 0.1 * torch.randn(batch, 3, *SIZE)
    for i in range(batch):
        row, column = (5 * i) % 13, (7 * i + 2) % 21
        images[i, :, row : row + 3, column : column + 3] += 2
    return images, torch.arange(batch) % NUM_CLASSES


def opencv_map(image):
    """Of one normalised image `[3, H, W]`, whose range becomes 0 to 255."""
    picture = (image - image.min()) / (image.max() - image.min())
    picture = (picture * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    bgr = np.ascontiguousarray(picture[:, :, ::-1])
    return cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(bgr)[1]


def residual_map(image):
    image = (image - image.min()) / (image.max() - image.min())
    return spectral_residual_saliency(image[None])[0].numpy()


MAPS = {"fine-grained": opencv_map, "spectral-residual": residual_map}


def pixel(saliency, place):
    flat = saliency.argmax() if place == "salient" else saliency.argmin()
    return tuple(int(each) for each in np.unravel_index(flat, saliency.shape))


def shares(batch, mode, seed=0):
    """What CutMix's law draws: two numbers for the kind of step, then the shares."""
    generator = torch.Generator().manual_seed(seed)
    torch.rand(2, generator=generator)
    drawn = torch.rand(batch if mode == "elem" else 1, generator=generator, dtype=torch.float64)
    return drawn.float().expand(batch).tolist()


@pytest.mark.parametrize("saliency", MAPS)
@pytest.mark.parametrize("mode", ["batch", "elem"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("salient", "corr"),
        ("salient", "salient"),
        ("salient", "non-salient"),
        ("non-salient", "salient"),
        ("non-salient", "non-salient"),
        ("non-salient", "corr"),
    ],
)
def test_every_image_gets_the_box_around_its_own_partners_pixel(make_vit, saliency, mode, source, target):
    images, labels = make_batch()
    for seed in range(3):
        task = make_task(make_vit(), saliency=saliency, mode=mode, source=source, target=target, seed=seed)
        mixed = task.mix(images, labels)
        maps = [MAPS[saliency](image) for image in images]
        for i, share in enumerate(shares(4, mode, seed)):
            partner = 3 - i
            taken = pixel(maps[partner], source)
            placed = taken if target == "corr" else pixel(maps[i], target)
            sides = [int(length * share**0.5) for length in SIZE]
            wanted, pasted = images[i].clone(), 0
            for row in range(-(sides[0] // 2), sides[0] - sides[0] // 2):
                for column in range(-(sides[1] // 2), sides[1] - sides[1] // 2):
                    there = (taken[0] + row, taken[1] + column)
                    here = (placed[0] + row, placed[1] + column)
                    if all(0 <= place[axis] < SIZE[axis] for place in (here, there) for axis in (0, 1)):
                        wanted[:, here[0], here[1]] = images[partner][:, there[0], there[1]]
                        pasted += 1
            assert mixed.images[i].equal(wanted)
            assert mixed.source_weight[i].item() == pytest.approx(pasted / (SIZE[0] * SIZE[1]))
            assert int(mixed.source_mask[i].sum()) == pasted


def test_boxes_of_one_batch_lie_in_different_places(make_vit):
    images, labels = make_batch()
    boxes = make_task(make_vit()).mix(images, labels).draw.box
    assert len(boxes[:, :2].unique(dim=0)) > 1


@pytest.mark.parametrize(
    "options",
    [{"saliency": "spectral-residual"}, {"source": "non-salient"}, {"target": "salient"}, {"cutmix_alpha": 0.2}],
)
def test_every_option_changes_the_images(make_vit, options):
    images, labels = make_batch()
    mixed = [make_task(make_vit(), **each).mix(images, labels).images for each in ({}, options)]
    assert not mixed[0].equal(mixed[1])


@pytest.mark.parametrize("saliency", MAPS)
@pytest.mark.parametrize("target", ["salient", "non-salient"])
def test_an_image_that_is_its_own_partner_stays_itself_wherever_boxes_go(make_vit, saliency, target):
    images, labels = make_batch(3)
    for seed in range(5):
        task = make_task(make_vit(), saliency=saliency, source="non-salient", target=target, seed=seed)
        assert task.mix(images, labels).images[1].equal(images[1])


def test_pixels_are_those_before_normalisation():
    pixels = torch.rand(2, 3, 5, 4)
    model = torch.nn.Identity()
    model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    images = (pixels - mean) / std
    assert torch.allclose(pixels_of(images, model), pixels, atol=1e-6)
    images[0] += 100
    assert pixels_of(images, model)[0].eq(1).all()
    grey = (pixels.mean(dim=1, keepdim=True) - 0.5) / 0.2  # three means for one channel say nothing
    for stretched in (pixels_of(images, torch.nn.Identity()), pixels_of(grey, model)):
        assert stretched.amin(dim=(1, 2, 3)).eq(0).all()
        assert stretched.amax(dim=(1, 2, 3)).sub(1).abs().max() < 1e-6
    assert pixels_of(torch.zeros(1, 3, 4, 4), torch.nn.Identity()).eq(0).all()
    assert pixels_of(torch.full((1, 3, 4, 4), torch.nan), torch.nn.Identity()).isfinite().all()


def test_the_models_normalisation_decides_what_opencv_sees(make_vit, monkeypatch):
    seen = []
    known = sys.modules["attnmix.methods.saliencymix"].fine_grained_saliency
    monkeypatch.setattr(
        "attnmix.methods.saliencymix.fine_grained_saliency", lambda pixels: (seen.append(pixels), known(pixels))[1]
    )
    bytes_ = torch.randint(0, 256, (4, 3, *SIZE), dtype=torch.uint8)
    model = make_vit()
    model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    make_task(model).mix((bytes_ / 255 - mean) / std, torch.arange(4))
    assert len(seen) == 1
    assert seen[0].equal(bytes_)


def test_the_first_of_several_extreme_pixels_is_taken():
    saliency = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 2.0, 1.0]]])
    assert extreme_pixel(saliency, "salient").tolist() == [[0, 1]]
    assert extreme_pixel(saliency, "non-salient").tolist() == [[0, 2]]


def test_spectral_residual_never_waits_for_a_device(make_vit):
    # a tensor without content, of which nothing can be fetched
    model = make_vit().to("meta")
    images, labels = torch.empty(4, 3, *SIZE, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    for target in ("corr", "salient"):
        task = make_task(model, saliency="spectral-residual", target=target)
        assert task.mix(images, labels).images.shape == images.shape
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        make_task(model).mix(images, labels)


def test_a_missing_package_is_named_when_the_task_is_made(make_vit, monkeypatch):
    monkeypatch.delattr(cv2, "saliency")
    message = r'cv2\.saliency.*pip install "attnmix\[saliencymix\]", or use saliency="spectral-residual"'
    with pytest.raises(ValueError, match=message):
        make_task(make_vit())
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ValueError, match='pip install "attnmix'):
        make_task(make_vit())
    make_task(make_vit(), saliency="spectral-residual")(*make_batch())
    attnmix.create_method("saliencymix", num_classes=3)  # its options can be looked at without


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"saliency": "deep"}, 'saliency is "deep", but must be one of fine-grained, spectral-residual'),
        ({"source": "corr"}, 'source is "corr", but must be one of salient, non-salient'),
        ({"target": "random"}, 'target is "random", but must be one of corr, salient, non-salient'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("saliencymix", num_classes=3, **options)


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
@pytest.mark.parametrize("target", ["corr", "non-salient"])
def test_other_labels_go_with_it(make_vit, label, target):
    images, labels = make_batch()
    plain = make_task(make_vit(), target=target)(images, labels)
    out = make_task(make_vit(), target=target, label=label)(images, labels)
    assert out["mixed"].images.equal(plain["mixed"].images)
    assert not torch.allclose(out["mixed"].source_weight, plain["mixed"].source_weight)
    out["loss"].backward()


@pytest.mark.parametrize(
    ("name", "options"),
    [("saliencymix+cutmix", {}), ("tokenmixup", {"base": "saliencymix", "horizontal": 1, "vertical": 2})],
)
def test_it_is_one_of_several_and_a_base(make_vit, name, options):
    method = attnmix.create_method(name, num_classes=NUM_CLASSES, mixup_prob=0.0, **options)
    task = attnmix.MixTask(make_vit(), method)
    for _ in range(4):
        out = task(*make_batch())
        assert out["loss"].isfinite()
        out["loss"].backward()
