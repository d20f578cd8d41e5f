from dataclasses import replace

import pytest
import torch
from torch.utils.data import IterableDataset

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import ImageSet, image_generator
from tests.evaluation.exams import RandomImages, tiny_exam
from tests.evaluation.pixel_exam import pixel_exam, random_images


class Heard:
    def __init__(self):
        self.totals, self.asked, self.read = [], 0, 0

    def begin(self, total, what=""):
        self.totals.append(total)

    def advance(self, asked, read):
        self.asked += asked
        self.read += read


class Stream(LabelledImages, IterableDataset):
    class_names = ("a", "b")
    labels = 2

    def __iter__(self):
        yield from ((torch.full((3, 2, 2), float(i)), i % self.labels) for i in range(100))

    def __len__(self):
        return 100


def indices(exam, images, **options):
    return [int(i) for batch in exam.batches(images, **options) for i in batch.index]


def test_batches_hold_every_image_once_in_order():
    exam = tiny_exam(12)
    batches = list(exam.batches(exam.data.images))
    assert [len(batch.index) for batch in batches] == [5, 5, 2]
    assert torch.equal(torch.cat([batch.images for batch in batches]), exam.data.images.tensors)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), exam.data.images.labels)
    assert indices(exam, exam.data.images) == list(range(12))


def test_unreadable_images_are_left_out_with_their_numbers_and_progress_knows():
    heard = Heard()
    exam = tiny_exam(progress=heard)
    images = RandomImages(12, broken=[0, 5, 6, 7, 8, 9])  # one whole batch is lost
    assert indices(exam, images) == [1, 2, 3, 4, 10, 11]
    assert (heard.totals, heard.asked, heard.read) == ([12], 12, 6)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_of_no_class_is_named_where_labels_are_asked_for(label):
    images = random_images(6, 3)
    images.labels[4] = label
    exam = pixel_exam(images)
    with pytest.raises(ValueError, match=f"image 4 has the label {label}, but labels are 0 to 2"):
        list(exam.batches(images))
    assert sum(len(batch.index) for batch in exam.batches(images, labelled=False)) == 6


def test_a_limit_takes_images_from_the_whole_set_and_the_exams_own_rules():
    exam = tiny_exam(12)
    assert indices(exam, exam.data.images, limit=3) == [0, 5, 11]
    assert indices(replace(exam, limit=4), exam.data.images, limit=3) == [0, 3, 7, 11]
    assert len(indices(replace(exam, limit=100), exam.data.images, limit=3)) == 12


def test_first_images_are_never_more_than_asked_for():
    exam = tiny_exam(12)
    assert exam.first_images(3).index.tolist() == [0, 5, 11]
    assert len(replace(exam, limit=100).first_images(3).index) == 3
    assert len(replace(exam, limit=2).first_images(3).index) == 2


def test_a_stream_ends_at_the_limit():
    exam = tiny_exam()
    assert indices(exam, Stream(), limit=7) == list(range(7))
    assert len(indices(exam, Stream())) == 100


def test_a_streams_label_of_no_class_is_named():
    exam, stream = tiny_exam(), Stream()
    stream.labels = 3
    with pytest.raises(ValueError, match="image 2 has the label 2, but labels are 0 to 1"):
        indices(exam, stream)
    assert len(indices(exam, stream, labelled=False)) == 100


def test_loader_workers_change_nothing():
    exam = tiny_exam(12)
    pairs = zip(exam.batches(exam.data.images), replace(exam, workers=1).batches(exam.data.images), strict=True)
    assert all(
        torch.equal(one.images, other.images) and torch.equal(one.index, other.index) for one, other in pairs
    )


def test_a_stream_is_read_in_one_process_whatever_is_said():
    exam = replace(tiny_exam(), workers=2)
    assert indices(exam, Stream(), limit=9) == list(range(9))


def test_not_one_image():
    exam = tiny_exam()
    with pytest.raises(ValueError, match="there is not one image to evaluate on"):
        list(exam.batches(RandomImages(2, broken=[0, 1])))


def test_labels_become_the_models():
    labels = torch.tensor([1, 0, 1])
    assert torch.equal(ImageSet(RandomImages(3)).model_labels(labels), labels)
    columns = torch.tensor([7, 4])
    assert ImageSet(RandomImages(3), columns).model_labels(labels).tolist() == [4, 7, 4]


def test_an_images_draws_depend_on_seed_image_and_stream_alone():
    def draw(*numbers):
        return torch.rand(4, generator=image_generator(*numbers)).tolist()

    assert draw(1, 2) == draw(1, 2)
    assert len({tuple(draw(*numbers)) for numbers in [(1, 2), (2, 1), (1, 3), (2, 2), (1, 2, 1)]}) == 5


def test_a_pass_draws_nothing_from_the_global_generator():
    exam = tiny_exam()
    before = torch.get_rng_state()
    list(exam.batches(exam.data.images))
    assert torch.equal(torch.get_rng_state(), before)
