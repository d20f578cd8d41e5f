import pytest
import torch
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.scores import Tally, confidence, confidences, label_rank, restriction, score_images, unread
from attnmix.evaluation.subject import Subject
from tests.conftest import tiny_vit
from tests.evaluation.pixel_exam import PixelImages, pixel_exam, random_images


def test_accuracy_is_scikit_learns():
    images = random_images(50, 7)
    scores = score_images(pixel_exam(images), ImageSet(images))
    logits, labels, classes = images.logits, images.labels, list(range(7))
    assert scores.images == 50
    assert scores.top1 == pytest.approx(100 * accuracy_score(labels, logits.argmax(dim=1)))
    assert scores.top5 == pytest.approx(100 * top_k_accuracy_score(labels, logits, k=5, labels=classes))
    assert torch.equal(scores.correct, logits.argmax(dim=1) == labels)
    torch.testing.assert_close(scores.confidence, logits.softmax(dim=1).max(dim=1).values)
    for number in range(7):
        chosen = labels == number
        assert scores.class_images[number] == chosen.sum()
        assert scores.class_correct[number] == (logits[chosen].argmax(dim=1) == number).sum()


def test_batches_do_not_matter():
    images = random_images(50, 7)
    one, many = (score_images(pixel_exam(images, batch_size=size), ImageSet(images)) for size in (50, 3))
    assert torch.equal(one.confidence, many.confidence)
    assert one.summary() == many.summary()


def test_columns_restrict_the_logits():
    images = random_images(40, 6, outputs=9, class_names=list("abcdef"))
    columns = torch.tensor([8, 2, 4, 0, 1, 7])
    scores = score_images(pixel_exam(images, outputs=9), ImageSet(images, columns))
    logits = images.logits[:, columns]
    assert torch.equal(scores.correct, logits.argmax(dim=1) == images.labels)
    torch.testing.assert_close(scores.confidence, logits.softmax(dim=1).amax(dim=1))


def test_unreadable_images_are_left_out():
    images = random_images(30, 6, broken=[4, 20])
    exam = pixel_exam(images)
    scores = score_images(exam, ImageSet(images))
    kept = [number for number in range(30) if number not in (4, 20)]
    assert torch.equal(scores.correct, images.logits[kept].argmax(dim=1) == images.labels[kept])
    assert unread(images, "data") == ["data: 2 images that cannot be read are left out"]
    assert unread(random_images(6, 6), "data") == []


def test_five_classes_or_fewer_have_no_top5():
    images = random_images(20, 5)
    scores = score_images(pixel_exam(images), ImageSet(images))
    assert scores.top5 is None
    assert scores.summary()["top-5 %"] is None


def test_equal_logits_rank_as_argmax_has_them():
    logits = torch.tensor([[1.0, 3, 3, 0]]).repeat(4, 1)
    assert label_rank(logits, torch.arange(4)).tolist() == [2, 0, 1, 3]
    rough = torch.randint(4, (60, 9), generator=torch.Generator().manual_seed(0)).float()  # full of ties
    labels = torch.arange(60) % 9
    order = rough.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(label_rank(rough, labels), (order == labels[:, None]).int().argmax(dim=1))


def test_a_batch_is_counted_without_waiting_for_the_device():
    tally = Tally(9, torch.device("meta"))  # a meta tensor has no content that could be asked for
    tally.add(torch.empty(4, 9, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))
    assert tally.confidence[0].device.type == "meta"


def test_five_bytes_are_kept_of_an_image():
    tally = Tally(9, torch.device("cpu"))
    tally.add(torch.randn(4, 9), torch.zeros(4, dtype=torch.int64))
    kept = [*tally.confidence, *tally.correct]
    assert sum(part.untyped_storage().nbytes() for part in kept) == 4 * 5


def test_watchers_see_every_batch():
    images = random_images(20, 6)
    seen = []
    score_images(pixel_exam(images), ImageSet(images), watch=lambda batch, logits: seen.append((batch, logits)))
    assert torch.equal(torch.cat([logits for _, logits in seen]), images.logits)
    assert torch.cat([batch.index for batch, _ in seen]).tolist() == list(range(20))


def test_confidences_do_not_look_at_labels():
    images = PixelImages(torch.randn(20, 6), torch.full((20,), 99))
    found = confidences(pixel_exam(images), images, torch.tensor([1, 3]))
    torch.testing.assert_close(found, confidence(images.logits[:, [1, 3]]))


def test_a_restriction_is_told():
    images = random_images(6, 3, class_names=["a", "b", "c"])
    exam = pixel_exam(images, outputs=4, class_names=["a", "b", "x", "c"])
    told = restriction(exam, ImageSet(images, torch.tensor([0, 1, 3])), "sketches")
    assert told == ["sketches: logits restricted to the model's outputs for its 3 classes"]
    assert restriction(exam, ImageSet(images), "sketches") == []
    swapped = pixel_exam(images, class_names=["c", "b", "a"])
    assert restriction(swapped, ImageSet(images, torch.tensor([2, 1, 0])), "sketches") == []


def test_logits_that_are_not_finite():
    images = random_images(20, 6)
    images.logits[[3, 8], 2] = float("nan")
    images.logits[5, 1] = float("inf")
    with pytest.raises(ValueError, match="not finite for 3 of 20 images"):
        score_images(pixel_exam(images), ImageSet(images))
    with pytest.raises(ValueError, match="not finite for 3 of 20 images"):
        confidences(pixel_exam(images), images, None)


def test_another_number_of_classes():
    images = random_images(20, 6, outputs=8, class_names=list("abcdef"))
    with pytest.raises(ValueError, match="the model gives 8 logits, the data has 6 classes"):
        score_images(pixel_exam(images, outputs=8), ImageSet(images))


class Pictures(LabelledImages):
    def __init__(self):
        self.class_names = list("abcde")
        self.pixels = torch.randn(6, 3, 16, 24)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.pixels[index], index % 5


def test_a_vision_transformer_is_asked_and_given_back():
    model, images = tiny_vit(), Pictures()
    subject = Subject("vit", model, [], (3, 16, 24), [0.0] * 3, [1.0] * 3, fresh=tiny_vit)
    scores = score_images(Exam(subject, ImageSet(images), batch_size=4), ImageSet(images))
    with torch.no_grad():
        wanted = model(images.pixels).softmax(dim=1)
    torch.testing.assert_close(scores.confidence, wanted.amax(dim=1))
    assert torch.equal(scores.correct, wanted.argmax(dim=1) == torch.arange(6) % 5)
    model(images.pixels).sum().backward()  # nothing that was cached stands in the way
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_same_comes_out_without_waits():
    from attnmix.benchmark.waits import count_waits

    images = random_images(64, 9)
    tally = Tally(9, torch.device("cuda"))
    logits, labels = images.logits.cuda(), images.labels.cuda()
    tally.add(logits, labels)
    assert count_waits(lambda: tally.add(logits, labels)) == 0
    exam = pixel_exam(images)
    wanted = score_images(exam, ImageSet(images))
    exam.subject.model.cuda()
    found = score_images(exam, ImageSet(images))
    assert torch.equal(found.correct, wanted.correct)
    torch.testing.assert_close(found.confidence, wanted.confidence)
