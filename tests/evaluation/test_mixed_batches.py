import pytest
import timm
import torch

from attnmix.backbone import BackboneView
from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.mixed_batches import mixed_batches
from attnmix.evaluation.subject import Subject
from tests.conftest import tiny_vit
from tests.evaluation.exams import MEAN, STD


class Numbered(LabelledImages):
    """Image i is i everywhere."""

    def __init__(self, count, size):
        self.count, self.size = count, size
        self.class_names = ["only"]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, *self.size), float(index)), 0


def exam_of(model, count, *, size=(16, 24), **options):
    subject = Subject("tiny", model, [], (3, *size), MEAN, STD, fresh=lambda: model)
    return Exam(subject, ImageSet(Numbered(count, size)), **options)


def mixed(exam, **options):
    found = list(mixed_batches(exam, exam.subject.view, **options))
    return [torch.cat([getattr(batch, name) for batch in found]) for name in vars(found[0])], found


def test_every_pixel_and_token_is_of_the_image_that_the_mask_says():
    (images, mask, weight, is_source), _ = mixed(exam_of(tiny_vit(), 20))
    pixels = images[:, 0].round().long()
    target = [int(pixels[i][~mask[i]][0]) for i in range(20)]
    assert sorted(target) == list(range(20))
    assert target != list(range(20))  # folders are sorted by class, and partners are not to be neighbours
    for i in range(20):
        for row in range(16):
            for column in range(24):
                source = bool(mask[i, row, column])
                assert pixels[i, row, column] == (target[i - 1] if source else target[i])
                assert is_source[i, row // 4 * 6 + column // 4] == source  # whole patches
    assert torch.allclose(weight, is_source.float().mean(dim=1))
    assert len(set(weight.tolist())) > 5  # each image its own box
    assert is_source.any(dim=1).all()


def test_the_same_for_every_model_and_batch_size_and_another_for_another_seed():
    wanted, _ = mixed(exam_of(tiny_vit(), 9))
    for other in (
        exam_of(tiny_vit(depth=1, class_token=False, global_pool="avg"), 9),
        exam_of(tiny_vit(), 9, batch_size=2),
    ):
        for one, two in zip(mixed(other)[0], wanted, strict=True):
            assert one.equal(two)
    assert not mixed(exam_of(tiny_vit(), 9, seed=1))[0][1].equal(wanted[1])


def test_batches_are_of_the_exams_size_and_no_more_than_count():
    _, batches = mixed(exam_of(tiny_vit(), 30, batch_size=4), count=10)
    assert [len(batch.images) for batch in batches] == [4, 4, 2]
    _, batches = mixed(exam_of(tiny_vit(), 30, batch_size=4, limit=20), count=10)
    assert sum(len(batch.images) for batch in batches) == 10
    _, batches = mixed(exam_of(tiny_vit(), 30, batch_size=4, limit=6), count=10)
    assert sum(len(batch.images) for batch in batches) == 6


def test_boxes_fit_the_final_grid_where_stages_merge_tokens():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, depths=(1, 1), num_heads=(1, 2), embed_dim=8
    )
    (_, mask, weight, is_source), _ = mixed(exam_of(model, 12, size=(32, 32)))
    assert BackboneView(model).grid_size((32, 32)) == (4, 4)
    whole = is_source.unflatten(1, (4, 4)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    assert mask.equal(whole)
    assert torch.allclose(weight, is_source.float().mean(dim=1))


def test_one_image_cannot_be_mixed():
    with pytest.raises(ValueError, match="only one image, and it takes two to mix"):
        mixed(exam_of(tiny_vit(), 1))


def test_progress_hears_of_reading_and_mixing():
    class Heard:
        def __init__(self):
            self.passes = []

        def begin(self, total, what=""):
            self.passes.append([total, what, 0])

        def advance(self, asked, read):
            self.passes[-1][2] += asked

    heard = Heard()
    mixed(exam_of(tiny_vit(), 5, batch_size=2, progress=heard))
    assert heard.passes == [[5, "", 5], [5, "mixed images", 5]]
