import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnmix.data import DigitsInScenes, LabelledImages
from attnmix.data.annotations import EmbeddedTruth
from attnmix.data.transforms import evaluation_transform
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.localisation import (
    QUESTION,
    THRESHOLDS,
    BoxScores,
    best_iou,
    component_boxes,
    mass_boxes,
    normalised_maps,
)
from attnmix.evaluation.score_maps import score_maps
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit


def overlap(one, other):
    """IoU of two boxes by counting their pixels."""
    pixels = [
        {(row, column) for row in range(top, top + height) for column in range(left, left + width)}
        for top, left, height, width in (one, other)
    ]
    return len(pixels[0] & pixels[1]) / len(pixels[0] | pixels[1])


def flood(mask):
    """Tight box of the largest 4-connected part, the first of several, by flooding."""
    left = {(row, column) for row in range(len(mask)) for column in range(len(mask[0])) if mask[row][column]}
    best = []
    for start in sorted(left):
        part, wave = [], [start]
        while wave:
            place = wave.pop()
            if place in left:
                left.remove(place)
                part.append(place)
                row, column = place
                wave += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        if len(part) > len(best):
            best = part
    rows, columns = zip(*best, strict=True)
    return [min(rows), min(columns), max(rows) - min(rows) + 1, max(columns) - min(columns) + 1]


class Pictures(LabelledImages):
    def __init__(self, images):
        self.images, self.class_names = images, [str(number) for number in range(NUM_CLASSES)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % NUM_CLASSES


class Boxes:
    """Truth that knows boxes alone."""

    def __init__(self, rows):
        self.rows = [torch.tensor(row, dtype=torch.int64).reshape(-1, 4) for row in rows]

    def masks(self, index):
        return None

    def boxes(self, index):
        return [self.rows[number] for number in index.tolist()]


def make_exam(images, truth, model=None, size=(16, 24), **settings):
    subject = Subject(
        "tiny", model or tiny_vit(), ["a"] * NUM_CLASSES, (3, *size), (0.5,) * 3, (0.25,) * 3,
        lambda: tiny_vit(img_size=size, embed_dim=16).eval(),
    )  # fmt: skip
    return Exam(subject, ImageSet(images), truth=truth, batch_size=4, **settings)


def test_iou_of_a_box_with_itself_is_one_and_of_disjoint_boxes_none():
    box = torch.tensor([2, 3, 4, 5])
    assert best_iou(box, box[None]) == 1
    assert best_iou(box, torch.tensor([[6, 3, 4, 5], [2, 8, 4, 5]])) == 0  # they touch
    assert best_iou(box, torch.tensor([[0, 0, 3, 9], [2, 3, 4, 10]])) == 0.5


def test_iou_is_counted_in_pixels():
    for _ in range(30):
        boxes = torch.cat([torch.randint(0, 6, (3, 2)), torch.randint(1, 7, (3, 2))], dim=1)
        wanted = max(overlap(boxes[0].tolist(), box.tolist()) for box in boxes[1:])
        assert best_iou(boxes[0], boxes[1:]) == pytest.approx(wanted)


def test_the_box_of_the_mass_is_tight_around_all_of_it():
    scores = torch.zeros(2, 4, 6)
    scores[0, 1, 1], scores[0, 2, 4], scores[0, 0, 0] = 0.5, 0.45, 0.05
    scores[1] = 1.0
    assert mass_boxes(scores, (16, 24)).tolist() == [[4, 4, 8, 16], [0, 0, 16, 24]]


def test_maps_are_brought_to_pixels_and_then_to_zero_and_one():
    scores = torch.rand(3, 4, 6)
    scores[1] = 0.3
    found = normalised_maps(scores, (16, 24))
    raw = F.interpolate(scores[:, None].double(), (16, 24), mode="bilinear", align_corners=False)[:, 0]
    for number in (0, 2):
        wanted = (raw[number] - raw[number].min()) / (raw[number].max() - raw[number].min())
        torch.testing.assert_close(found[number].double(), wanted, atol=1e-6, rtol=0)
        assert found[number].max() == 1
        assert found[number].min() == 0
    assert (found[1] == 1).all()


def test_the_largest_connected_part_is_a_flood_fills():
    for number in range(6):
        scores = np.random.default_rng(number).random((9, 11)).astype(np.float32)
        scores = (scores - scores.min()) / (scores.max() - scores.min())
        found = component_boxes(scores)
        assert found.tolist() == [flood((scores >= threshold).tolist()) for threshold in THRESHOLDS]


def test_parts_that_touch_at_a_corner_are_two():
    scores = np.zeros((4, 4), np.float32)
    scores[0, 0] = scores[1, 1] = scores[1, 2] = 1.0
    assert component_boxes(scores)[-1].tolist() == [1, 1, 1, 2]


def test_thresholds_go_from_nothing_to_all_in_steps_of_a_twentieth():
    assert list(THRESHOLDS) == pytest.approx([0.05 * step for step in range(21)])


def test_scores_are_those_of_a_slow_loop():
    torch.manual_seed(3)
    maps, truth = torch.rand(14, 4, 6) * 0.1, []
    for scores in maps:  # two bumps, and boxes near the first
        places = torch.cat([torch.randint(0, 3, (2, 1)), torch.randint(0, 5, (2, 1))], dim=1)
        for row, column in places.tolist():
            scores[row : row + 2, column : column + 2] += torch.rand(2, 2)
        count = int(torch.randint(1, 3, ()))
        corner = (4 * places[:1] + torch.randint(-2, 3, (count, 2))).clamp_min(0)
        truth.append(torch.cat([corner, torch.randint(6, 12, (count, 2))], dim=1))
    maps[3] = maps[5]  # the same map with another truth
    found = BoxScores()
    found.add(maps[:9], truth[:9], (16, 24))
    found.add(maps[9:], truth[9:], (16, 24))

    overlaps, hits = [], [0] * 21
    for scores, known in zip(maps, truth, strict=True):
        order = scores.flatten().argsort(descending=True).tolist()
        kept, held = [], 0.0
        while held < 0.9 * float(scores.sum()):
            kept.append(order[len(kept)])
            held += float(scores.flatten()[kept[-1]])
        rows, columns = [place // 6 for place in kept], [place % 6 for place in kept]
        box = [4 * min(rows), 4 * min(columns)]
        box += [4 * (max(rows) + 1) - box[0], 4 * (max(columns) + 1) - box[1]]
        overlaps.append(max(overlap(box, other) for other in known.tolist()))
        pixels = F.interpolate(scores[None, None], (16, 24), mode="bilinear", align_corners=False)[0, 0]
        pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min())
        for number in range(21):
            box = flood((pixels >= number / 20).tolist())
            hits[number] += max(overlap(box, other) for other in known.tolist()) >= 0.5
    record = found.record()
    assert record["mIoU %"] == pytest.approx(100 * sum(overlaps) / 14)
    assert record["box accuracy %"] == pytest.approx(100 * sum(share >= 0.5 for share in overlaps) / 14)
    assert record["MaxBoxAcc %"] == pytest.approx(100 * max(hits) / 14)
    assert record["best threshold"] == hits.index(max(hits)) / 20
    assert record["images"] == 14
    assert 0 < max(hits) < 14


def test_a_perfect_map_gets_everything():
    maps = torch.full((3, 8, 8), 1e-6)
    truth = []
    for number, (top, left) in enumerate([(0, 1), (3, 3), (4, 0)]):
        maps[number, top : top + 4, left : left + 4] = 1.0
        truth.append(torch.tensor([[0, 0, 1, 1], [8 * top, 8 * left, 32, 32]]))
    found = BoxScores()
    found.add(maps, truth, (64, 64))
    record = found.record()
    assert (record["mIoU %"], record["box accuracy %"], record["MaxBoxAcc %"]) == (100, 100, 100)
    assert 0 < record["best threshold"] < 1


def test_the_answer_has_attention_first_and_the_controls():
    transform = evaluation_transform((3, 16, 24), mean=(0.5,) * 3, std=(0.25,) * 3, crop_mode="squash")
    data = DigitsInScenes("test", test_count=9, transform=transform)
    truth = EmbeddedTruth(data, transform)
    exam = make_exam(data, truth)
    flags = [parameter.requires_grad for parameter in exam.subject.model.parameters()]
    answer = QUESTION.ask(exam)
    rows = answer["tables"]["scores"]
    assert [row["map"] for row in rows] == [
        "attention", "untrained network", "centre prior", "brightest token", "whole image",
    ]  # fmt: skip
    assert list(rows[0]) == ["map", "mIoU %", "box accuracy %", "MaxBoxAcc %", "best threshold", "images"]
    assert answer["values"] == {key: rows[0][key] for key in ("mIoU %", "MaxBoxAcc %")}
    images = torch.stack([data[index][0] for index in range(9)])
    boxes = truth.boxes(torch.arange(9))
    for row, read in zip(rows, score_maps(exam.subject).values(), strict=True):
        wanted = BoxScores()
        wanted.add(read(images), boxes, (16, 24))
        assert row == {"map": row["map"], **wanted.record()}
    whole = [overlap([0, 0, 16, 24], box[0].tolist()) for box in boxes]
    assert rows[-1]["mIoU %"] == pytest.approx(100 * sum(whole) / 9)
    assert rows[-1]["best threshold"] == 0
    assert all(row["MaxBoxAcc %"] >= rows[-1]["MaxBoxAcc %"] for row in rows)  # threshold 0 keeps the whole image
    assert flags == [parameter.requires_grad for parameter in exam.subject.model.parameters()]
    assert all(parameter.grad is None for parameter in exam.subject.model.parameters())
    assert any("last attention's class row" in note for note in answer["notes"])
    assert any("thresholds 0, 0.05, ..., 1" in note for note in answer["notes"])


def test_images_without_a_box_are_left_out_counted_and_named():
    torch.manual_seed(5)
    pictures = torch.randn(9, 3, 16, 24)
    rows = [[] if number % 4 else [[4, 4, 8, 12]] for number in range(9)]
    answer = QUESTION.ask(make_exam(Pictures(pictures), Boxes(rows)))
    assert {row["images"] for row in answer["tables"]["scores"]} == {3}
    assert (
        "left out 6 images without a box in view: image 1, image 2, image 3, image 5, image 6, ..."
        in answer["notes"]
    )
    alone = QUESTION.ask(make_exam(Pictures(pictures[::4]), Boxes(rows[::4])))
    assert not any("left out" in note for note in alone["notes"])
    for one, other in zip(answer["tables"]["scores"], alone["tables"]["scores"], strict=True):
        assert one["mIoU %"] == pytest.approx(other["mIoU %"])
        assert one["MaxBoxAcc %"] == other["MaxBoxAcc %"]
    with pytest.raises(ValueError, match="none of the 2 images looked at has a box in view, such as image 0"):
        QUESTION.ask(make_exam(Pictures(pictures[:2]), Boxes([[], []])))


def test_the_limit_is_a_thousand_unless_the_exam_has_its_own():
    class Counted(Pictures):
        def __len__(self):
            return 1003

        def __getitem__(self, index):
            return self.images[0], 0

    class NoBoxes(Boxes):
        def boxes(self, index):
            return [torch.empty(0, 4, dtype=torch.int64) for _ in index]

    exam = make_exam(Counted(torch.zeros(1, 3, 16, 24)), NoBoxes([]))
    for limit, asked in ((None, 1000), (7, 7)):
        with pytest.raises(ValueError, match=f"none of the {asked} images"):
            QUESTION.ask(dataclasses.replace(exam, limit=limit))


def test_what_is_missing_is_said():
    data = Pictures(torch.zeros(1, 3, 16, 24))
    assert QUESTION.missing(make_exam(data, Boxes([[]]))) is None
    assert "give boxes: --annotations PATH" in QUESTION.missing(make_exam(data, None))
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), torch.nn.Flatten())
    exam = make_exam(data, Boxes([[]]), model=plain)
    assert QUESTION.missing(exam) == exam.subject.no_view != ""
