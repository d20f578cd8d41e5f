import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

from attnmix.data import DigitsInScenes, LabelledImages
from attnmix.data.annotations import EmbeddedTruth, open_annotations
from attnmix.data.folder import open_folder
from attnmix.data.transforms import evaluation_transform
from attnmix.data.voc import open_voc
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.score_maps import score_maps, threshold_mass, to_image_size
from attnmix.evaluation.segmentation import QUESTION, jaccard
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit

CHANNELS = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def transform():
    return evaluation_transform((3, 16, 24), **CHANNELS, crop_mode="squash")


class NoImages(LabelledImages):
    def __len__(self):
        return 0


class Masks:
    def __init__(self, masks):
        self.all = masks

    def masks(self, index):
        return None if self.all is None else self.all[index]

    def boxes(self, index):
        return [torch.empty(0, 4, dtype=torch.int64) for _ in index]


def make_exam(images, truth=None, model=None, **settings):
    subject = Subject(
        "tiny", model or tiny_vit(), ["a"] * NUM_CLASSES, (3, 16, 24), (0.5,) * 3, (0.25,) * 3,
        lambda: tiny_vit(embed_dim=16).eval(),
    )  # fmt: skip
    return Exam(subject, ImageSet(images), truth=truth, batch_size=4, **settings)


def test_jaccard_is_scikit_learns_on_the_pixels_that_count():
    torch.manual_seed(2)
    found, truth = torch.rand(12, 5, 7) > 0.4, torch.randint(-1, 2, (12, 5, 7), dtype=torch.int8)
    values = jaccard(found, truth)
    for number in range(12):
        counted = truth[number] >= 0
        wanted = jaccard_score(truth[number][counted], found[number][counted].int())
        assert values[number].item() == pytest.approx(wanted)


def test_jaccard_of_the_truth_is_one_of_its_opposite_none_and_of_nothing_unknown():
    truth = torch.zeros(1, 4, 4, dtype=torch.int8)
    assert jaccard(truth == 1, truth).isnan().all()
    truth[0, 1:3], truth[0, 3] = 1, -1
    assert jaccard(truth != 0, truth).tolist() == [1]  # what lies on void does not count
    assert jaccard(truth == 0, truth).tolist() == [0]


def test_the_answer_on_embedded_scenes_is_a_slow_loops():
    data = DigitsInScenes("test", test_count=9, transform=transform())
    truth = EmbeddedTruth(data, transform())
    exam = make_exam(data, truth)
    answer = QUESTION.ask(exam)
    rows = answer["tables"]["scores"]
    images, masks = torch.stack([data[index][0] for index in range(9)]), truth.masks(torch.arange(9))
    assert [row["map"] for row in rows] == list(score_maps(exam.subject))
    for row, read in zip(rows, score_maps(exam.subject).values(), strict=True):
        kept = to_image_size(threshold_mass(read(images), 0.9), (16, 24))
        wanted = [jaccard_score(mask.flatten(), mine.flatten()) for mask, mine in zip(masks, kept, strict=True)]
        assert row == {"map": row["map"], "Jaccard %": pytest.approx(100 * np.mean(wanted)), "images": 9}
    assert answer["values"] == {"Jaccard %": rows[0]["Jaccard %"]}
    shares = (masks == 1).double().mean(dim=(1, 2))
    assert rows[-1]["Jaccard %"] == pytest.approx(100 * shares.mean().item())  # the whole image
    assert any("hold 0.9 of the map" in note for note in answer["notes"])


def test_a_perfect_map_gets_everything():
    exam = make_exam(DigitsInScenes("test", test_count=6, transform=transform()))
    images = torch.stack([exam.data.images[index][0] for index in range(6)])
    kept = to_image_size(threshold_mass(exam.subject.saliency(images).unflatten(1, (4, 6))), (16, 24))
    exam.truth = Masks(kept.to(torch.int8))
    rows = QUESTION.ask(exam)["tables"]["scores"]
    assert rows[0]["Jaccard %"] == 100
    assert rows[2]["Jaccard %"] < 100


def test_images_without_an_object_in_view_are_left_out():
    data = DigitsInScenes("test", test_count=6, transform=transform())
    masks = EmbeddedTruth(data, transform()).masks(torch.arange(6))
    wanted = QUESTION.ask(make_exam(data, Masks(masks), limit=2))  # images 0 and 5
    masks[1:4], masks[4] = 0, -1
    answer = QUESTION.ask(make_exam(data, Masks(masks)))
    assert "left out 4 images without an object pixel in view" in answer["notes"]
    assert answer["values"] == pytest.approx(wanted["values"])
    assert {row["images"] for row in answer["tables"]["scores"]} == {2}
    with pytest.raises(ValueError, match="none of the 6 images looked at has an object pixel in view"):
        QUESTION.ask(make_exam(data, Masks(masks.clamp(max=0))))


def test_voc_scenes_are_asked_of_before_the_data(tmp_path):
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (tmp_path / folder).mkdir(parents=True)
    for number in range(3):
        classes = np.zeros((32, 48), np.uint8)
        classes[8:24, 8 * number : 8 * number + 24] = 5
        classes[6:8] = 255
        Image.fromarray(np.repeat(classes[..., None] * 40, 3, axis=2)).save(tmp_path / f"JPEGImages/{number}.jpg")
        Image.fromarray(classes).save(tmp_path / f"SegmentationClass/{number}.png")
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("0\n1\n2\n")
    exam = make_exam(NoImages(), scenes=open_voc(tmp_path, transform=transform()))
    assert QUESTION.missing(exam) is None
    rows = QUESTION.ask(exam)["tables"]["scores"]
    # the object is 8 x 12 of 16 x 24 pixels; of the ground, one row of 24 is void
    assert rows[-1]["Jaccard %"] == pytest.approx(100 * 96 / (16 * 24 - 24))
    assert {row["images"] for row in rows} == {3}


def test_coco_masks_of_a_folder(tmp_path):
    (tmp_path / "images/cat").mkdir(parents=True)
    Image.new("RGB", (48, 32), "grey").save(tmp_path / "images/cat/0.jpg")
    polygon = [0, 0, 24, 0, 24, 32, 0, 32]
    content = {
        "images": [{"id": 1, "file_name": "0.jpg", "height": 32, "width": 48}],
        "annotations": [{"id": 1, "image_id": 1, "bbox": [0, 0, 24, 32], "segmentation": [polygon]}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    images = open_folder(tmp_path / "images", options={}, transform=transform())
    exam = make_exam(images, open_annotations(tmp_path / "coco.json", images, transform()))
    assert QUESTION.missing(exam) is None
    assert QUESTION.ask(exam)["tables"]["scores"][-1]["Jaccard %"] == pytest.approx(50)


def test_what_is_missing_is_said():
    data = NoImages()
    for truth in (None, Masks(None)):
        assert "give masks: --voc FOLDER" in QUESTION.missing(make_exam(data, truth))
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), torch.nn.Flatten())
    exam = make_exam(data, Masks(torch.ones(1, 16, 24)), model=plain)
    assert QUESTION.missing(exam) == exam.subject.no_view != ""
