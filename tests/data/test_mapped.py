"""Items of a data set with maps, against dense logits that are resampled whole, cell by cell, in loops."""

import math
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from attnmix.data import DigitsInScenes
from attnmix.data.folder import open_folder
from attnmix.data.label_map_writer import LabelMapWriter
from attnmix.data.label_maps import AboutMaps, digest_of
from attnmix.data.labelled import LabelledImages, StreamedImages
from attnmix.data.mapped import MappedImages, follow_maps
from attnmix.data.transforms import create_transforms
from attnmix.mixing import LabelMaps
from attnmix.training.loader import ReproducibleItems

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
GRID = (4, 5)


def augmented(**augment):
    augment = {"color_jitter": 0.0, "scale": (0.3, 0.9), "hflip": 0.5, "vflip": 0.5, **augment}
    return create_transforms((3, 16, 16), mean=MEAN, std=STD, augment=augment)[0]


def store_of(images, folder, *, top=3, seed=0, missing=()):
    """Random maps of the images, and their dense logits [n, C, h, w] with zeros where nothing is kept."""
    generator = torch.Generator().manual_seed(seed)
    count, classes = len(images), images.num_classes
    logits = torch.randn(count, classes, *GRID, generator=generator).mul(3).half().float()
    best = logits.topk(top, dim=1)
    told = AboutMaps(
        count=count,
        grid=GRID,
        top=top,
        num_classes=classes,
        class_names=tuple(map(str, images.class_names)),
        data="random maps",
        digest=digest_of(images),
        teacher="chance",
        image_size=(16, 16),
        resized="stretched",
    )
    with LabelMapWriter(folder, told) as writer:
        writer.write(best.values, best.indices, [index not in missing for index in range(count)])
        store = writer.finish()
    least = best.values.amin(dim=1, keepdim=True).clamp(max=0)
    return store, least.expand_as(logits).scatter(1, best.indices, best.values)


def scenes(transform, count=6):
    return DigitsInScenes("train", size=24, train_count=count, transform=transform)


# ------------------------------------------------------------------ the maps


def bilinear(plane, row, column):
    """A plane's value at a place in cells, (0, 0) being the first cell's corner."""
    height, width = plane.shape
    row = min(max(row - 0.5, 0.0), height - 1.0)
    column = min(max(column - 0.5, 0.0), width - 1.0)
    top, left = min(int(row), height - 2), min(int(column), width - 2)
    down, right = row - top, column - left
    return (
        plane[top, left] * (1 - down) * (1 - right)
        + plane[top, left + 1] * (1 - down) * right
        + plane[top + 1, left] * down * (1 - right)
        + plane[top + 1, left + 1] * down * right
    )


def slowly_cropped(plane, box, size, *, mirrored=False):
    """RoI-align of one plane by a box (top, left, height, width) in relative places."""
    plane = np.asarray(plane, dtype=np.float64)
    rows, columns = plane.shape
    per_row = max(1, math.ceil(box[2] * rows / size[0] - 1e-6))
    per_column = max(1, math.ceil(box[3] * columns / size[1] - 1e-6))
    result = np.zeros(size)
    for i in range(size[0]):
        for j in range(size[1]):
            for u in range(per_row):
                for v in range(per_column):
                    y = box[0] + box[2] * (i + (u + 0.5) / per_row) / size[0]
                    x = box[1] + box[3] * (j + (v + 0.5) / per_column) / size[1]
                    result[i, j] += bilinear(plane, y * rows, x * columns) / (per_row * per_column)
    return result[:, ::-1] if mirrored else result


@pytest.mark.parametrize("size", [(4, 5), (3, 2), (7, 8)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_maps_are_dense_logits_resampled(size, mirrored):
    """With every class kept, nothing is lost by keeping few in a cell."""
    box = (0.1, 0.25, 0.62, 0.5)
    stages = [np.array([[box[3], 0, box[1]], [0, box[2], box[0]]])]
    if mirrored:
        stages.append(np.array([[-1.0, 0, 1], [0, 1, 0]]))
    logits = torch.randn(6, *GRID, generator=torch.Generator().manual_seed(1)) * 3
    best = logits.topk(3, dim=0)
    least = best.values.amin(dim=0).clamp(max=0)
    dense = least.expand_as(logits).scatter(0, best.indices, best.values)
    classes, scores = follow_maps(best.indices, best.values, stages, grid=size, top=6, num_classes=6)
    assert classes.shape == scores.shape == (6, *size)
    assert (scores.diff(dim=0) <= 0).all()  # the best first
    found = torch.full((6, *size), math.nan).scatter(0, classes, scores)
    for number in range(6):
        expected = slowly_cropped(dense[number], box, size, mirrored=mirrored)
        np.testing.assert_allclose(found[number].numpy(), expected, atol=1e-5)


def test_the_best_are_kept_and_the_rest_is_filled_with_absent_classes():
    classes = torch.tensor([[[3, 5]]])
    scores = torch.tensor([[[2.0, 1.0]]])
    found, kept = follow_maps(classes, scores, [], grid=(1, 2), top=1, num_classes=9)
    assert found.tolist() == [[[3, 5]]]
    assert kept.tolist() == [[[2.0, 1.0]]]
    found, kept = follow_maps(classes, scores, [], grid=(1, 2), top=4, num_classes=9)
    assert found[0].tolist() == [[3, 5]]
    for column in range(2):
        assert len(set(found[:, 0, column].tolist())) == 4  # each class once: maps can be scattered
        assert kept[1:, 0, column].tolist() == [0.0, 0.0, 0.0]


def test_what_is_not_known_never_outranks_what_is():
    """All that is kept may be below 0, of few classes: then the others are no better."""
    classes = torch.tensor([[[1, 2]], [[2, 0]]])
    scores = torch.tensor([[[-1.0, 4.0]], [[-3.0, -2.0]]])
    found, kept = follow_maps(classes, scores, [], grid=(1, 2), top=4, num_classes=4)
    by_class = torch.zeros(4, 1, 2).scatter(0, found, kept)
    assert by_class[:, 0, 0].tolist() == [-3.0, -1.0, -3.0, -3.0]
    assert by_class[:, 0, 1].tolist() == [-2.0, -2.0, 4.0, -2.0]


# ------------------------------------------------------------------ items


def test_items_follow_the_transform_and_images_stay_the_same(tmp_path):
    images = scenes(augmented())
    store, dense = store_of(images, tmp_path / "maps")
    mapped = MappedImages(images, store)
    plain, items = ReproducibleItems(images, seed=3), ReproducibleItems(mapped, seed=3)
    assert mapped.num_classes == 10
    assert len(mapped) == 6
    moved = 0
    for index in range(12):  # beyond the set: another view
        image, label = plain[index]
        found, (same, classes, scores) = items[index]
        assert torch.equal(found, image)
        assert same == label
        assert classes.dtype == torch.int64
        assert scores.dtype == torch.float32
        assert classes.shape == scores.shape == (10, *GRID)
        moved += not torch.allclose(torch.zeros(10, *GRID).scatter(0, classes, scores), dense[index % 6])
    assert moved == 12
    assert isinstance(images[0][0], torch.Tensor)  # the data set given is not changed


def test_a_crop_of_the_image_is_the_same_crop_of_the_map(tmp_path):
    """A picture that shows its own map: transformed together, they still agree.

    Cells of constant colour, and a map whose scores say that colour.
    """
    images = scenes(augmented(interpolation="bilinear"), count=3)
    store, dense = store_of(images, tmp_path / "maps", top=10)
    dense = dense.clamp(-4, 4)  # what a colour can say
    shown = (dense[:, :3] * 16 + 128).byte()
    images.images = torch.nn.functional.interpolate(shown.float(), size=(4 * 40, 5 * 40)).byte()
    mapped = MappedImages.__new__(MappedImages)
    mapped.__dict__.update(MappedImages(scenes(images.transform, count=3), store).__dict__)
    mapped.images.images = images.images
    mapped.grid = (16, 16)
    errors = []
    for index in range(9):
        image, (_, classes, scores) = ReproducibleItems(mapped, seed=0)[index]
        colours = (((image * 0.5 + 0.5) * 255 - 128) / 16).flatten()
        found = torch.zeros(10, 16, 16).scatter(0, classes, scores.clamp(-4, 4))[:3].flatten()
        errors.append(float(torch.corrcoef(torch.stack([colours, found]))[0, 1]))
    assert min(errors) > 0.85  # nearest cells on one side, linear between their centres on the other


def test_without_augmentation_maps_are_as_stored(tmp_path):
    images = scenes(augmented(no_aug=True))
    store, dense = store_of(images, tmp_path / "maps")
    mapped = MappedImages(images, store)
    for index in range(6):
        _, (_, classes, scores) = mapped[index]
        torch.testing.assert_close(torch.zeros(10, *GRID).scatter(0, classes, scores), dense[index])


def test_grid_and_top_can_be_chosen(tmp_path):
    images = scenes(augmented())
    store, _ = store_of(images, tmp_path / "maps", top=1)
    assert MappedImages(images, store)[0][1][1].shape == (4, *GRID)  # what four neighbours can bring
    assert MappedImages(images, store, grid=(3, 7), top=2)[0][1][1].shape == (2, 3, 7)
    for top in (0, 11):
        with pytest.raises(ValueError, match=f"top is {top}, but must be from 1 to the 10 classes"):
            MappedImages(images, store, top=top)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_makes_label_maps_of_a_batch(tmp_path, workers):
    images = scenes(augmented())
    store, _ = store_of(images, tmp_path / "maps")
    items = ReproducibleItems(MappedImages(images, store, wrap=LabelMaps), seed=0)
    context = {"multiprocessing_context": "spawn"} if workers else {}  # spawned ones open the files anew
    batch, labels = next(iter(DataLoader(items, batch_size=4, num_workers=workers, **context)))
    assert isinstance(labels, LabelMaps)
    assert labels.labels.tolist() == images.labels[:4].tolist()
    assert labels.classes.shape == labels.scores.shape == (4, 10, *GRID)
    for index in range(4):
        image, alone = items[index]
        assert torch.equal(batch[index], image)
        assert torch.equal(labels.scores[index], alone.scores)


# ------------------------------------------------------------------ files


def test_folders_and_files_that_cannot_be_read(make_folder, tmp_path):
    root = make_folder(4)
    transform = augmented(hflip=0.0, vflip=0.0, scale=(1.0, 1.0))
    images = open_folder(root / "train", options={}, transform=transform)
    store, dense = store_of(images, tmp_path / "maps", top=2, missing=(2,))
    (root / "train" / "dog" / "1.jpg").write_text("no image at all")
    mapped = MappedImages(images, store)
    assert mapped.name_of(0).endswith("cat/0.jpg")

    def served(index):
        """By its map: the image that the item is of."""
        random.seed(0)
        _, (label, classes, scores) = mapped[index]
        found = torch.zeros(2, *GRID).scatter(0, classes, scores)
        distances = (found - dense).abs().amax(dim=(1, 2, 3))
        return int(distances.argmin()), label

    # cat 0..3 are 0..3, dog 0..3 are 4..7
    assert [served(index)[0] for index in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert served(2) == (3, 0)  # without a map
    assert served(5) == (6, 1)  # without an image: the next one's map, not its own
    assert mapped.read(2) is None
    assert mapped.read(5) is None
    assert len(mapped.unreadable) == 1
    assert served(-1) == (7, 1)
    with pytest.raises(IndexError):
        mapped[8]


def test_nothing_left(make_folder, tmp_path):
    images = open_folder(make_folder(1) / "train", options={}, transform=None)
    store, _ = store_of(images, tmp_path / "maps", top=1, missing=(0, 1))
    with pytest.raises(OSError, match="none of the 2 images can be read and has a label map"):
        MappedImages(images, store)[0]


def test_what_cannot_have_maps(tmp_path):
    images = scenes(augmented())
    store, _ = store_of(images, tmp_path / "maps")
    stream = StreamedImages(None, class_names=images.class_names)
    with pytest.raises(ValueError, match="label maps go by an image's number, and these is a stream"):
        MappedImages(stream, store, where="these")
    with pytest.raises(ValueError, match="need a data set with a transform to follow, and the data set has none"):
        MappedImages(LabelledImages(), store)
    with pytest.raises(ValueError, match="6 images, and others has 5"):
        MappedImages(scenes(augmented(), count=5), store, where="others")
    with pytest.raises(ValueError, match="cannot follow an image through function"):
        MappedImages(scenes(lambda image: image), store)


def test_pictures_themselves_may_be_items(tmp_path):
    images = scenes(None)
    store, _ = store_of(images, tmp_path / "maps")
    assert isinstance(MappedImages(images, store)[0][0], Image.Image)
