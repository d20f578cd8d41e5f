import pytest
import timm
import torch
from torch import nn

from attnmix.evaluation.exam import Exam, ImageSet, image_generator
from attnmix.evaluation.occlusion import QUESTION, saliency_on_grid
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages, pictures


def subject_of(model, size=(16, 24), mean=MEAN, std=STD):
    return Subject("tiny", model, [], (3, *size), mean, std, fresh=tiny_vit)


def cnn(size):
    layers = [nn.Conv2d(3, 8, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES)]
    return subject_of(nn.Sequential(*layers), size)


def rows_of(answer):
    return {(row["patches"], row["dropped %"]): row["top-1 %"] for row in answer["tables"]["drops"]}


@torch.no_grad()
def slow_rates(subject, images, seed, columns=None, saliency=None):
    """Image by image, patch by patch."""
    rows, width = subject.grid
    high, wide = (side // parts for side, parts in zip(subject.image_size, subject.grid, strict=True))
    right = {}
    for number in range(len(images)):
        image, label = images[number]
        scores = (saliency or subject.saliency)(image[None])[0].tolist()
        shuffled = torch.randperm(rows * width, generator=image_generator(seed, number, rows * width)).tolist()
        falling = sorted(range(rows * width), key=lambda place: -scores[place])
        for way, order in (("random", shuffled), ("salient", falling), ("non-salient", falling[::-1])):
            for tenth in range(10):
                pixels = image.clone()
                for place in order[: round(tenth * rows * width / 10)]:
                    top, left = place // width * high, place % width * wide
                    for channel in range(3):
                        black = -subject.mean[channel] / subject.std[channel]
                        pixels[channel, top : top + high, left : left + wide] = black
                found = subject.logits(pixels[None], columns).argmax().item()
                right.setdefault((way, 10 * tenth), []).append(found == label)
    return {key: 100 * sum(values) / len(values) for key, values in right.items()}


@pytest.mark.parametrize("columns", [None, torch.tensor([3, 0, 1])])
def test_rates_equal_a_slow_loop_whatever_the_batch(columns):
    subject = subject_of(tiny_vit(depth=2))
    images = pictures(subject, 9, columns)
    wanted = slow_rates(subject, images, 7, columns)
    assert len(set(wanted.values())) > 3
    answers = [QUESTION.ask(Exam(subject, ImageSet(images, columns), batch_size=size, seed=7)) for size in (3, 8)]
    assert rows_of(answers[0]) == pytest.approx(wanted)
    assert answers[1] == answers[0]
    assert len(rows_of(answers[0])) == len(answers[0]["tables"]["drops"]) == 30
    for way in ("random", "salient", "non-salient"):
        mean = sum(wanted[way, tenth] for tenth in range(10, 100, 10)) / 9
        assert answers[0]["values"][f"{way} drop, mean top-1 %"] == pytest.approx(mean)


def test_every_image_loses_exactly_the_share_that_is_named_and_the_right_patches(monkeypatch):
    subject = subject_of(tiny_vit(depth=2))
    images = pictures(subject, 5)
    saliency = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(s)) for s in range(5)])
    monkeypatch.setattr(subject, "saliency", lambda batch: saliency[: len(batch)].float())
    seen = []
    logits = subject.logits
    monkeypatch.setattr(subject, "logits", lambda batch, columns: seen.append(batch) or logits(batch, columns))
    QUESTION.ask(Exam(subject, ImageSet(images), seed=1))
    assert len(seen) == 1 + 3 * 9  # the whole images once
    pixels = torch.stack(seen) * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    black = pixels.reshape(28, 5, 3, 4, 4, 6, 4).abs() < 1e-6
    gone = black.all(dim=6).all(dim=4).all(dim=2).flatten(2)  # [28, B, 24]
    counts = [2, 5, 7, 10, 12, 14, 17, 19, 22]
    assert gone.sum(dim=2).tolist() == [[count] * 5 for count in [0, *counts, *counts, *counts]]
    for level, count in enumerate(counts):
        for image in range(5):
            places = [set(gone[1 + 9 * way + level, image].nonzero().flatten().tolist()) for way in range(3)]
            assert places[1] == set((saliency[image] >= 24 - count).nonzero().flatten().tolist())
            assert places[2] == set((saliency[image] < count).nonzero().flatten().tolist())
    assert len({tuple(row) for row in gone[3].tolist()}) == 5  # each image its own random patches
    assert (gone[1:9] <= gone[2:10]).all()  # which grow


def test_another_seed_draws_other_random_patches_alone():
    subject = subject_of(tiny_vit(depth=2))
    images = pictures(subject, 24)
    first, second = (rows_of(QUESTION.ask(Exam(subject, ImageSet(images), seed=seed))) for seed in (0, 1))
    different = {way for way, percentage in first if first[way, percentage] != second[way, percentage]}
    assert different == {"random"}


def test_another_models_saliency_says_what_is_salient():
    subject = subject_of(tiny_vit(depth=2))
    other = subject_of(tiny_vit(img_size=(24, 24), patch_size=12), (24, 24), (0.5,) * 3, (0.5,) * 3)
    nn.init.normal_(other.model.cls_token)
    images = pictures(subject, 9)

    def saliency(batch):
        pixels = torch.stack([image * torch.tensor(STD)[:, None, None] for image in batch])
        pixels += torch.tensor(MEAN)[:, None, None]
        # 16x24 to 24x24: bilinear along the columns alone, half-pixel centres
        centres = ((torch.arange(24) + 0.5) * 16 / 24 - 0.5).clamp(0, 15)
        low = centres.long().clamp(max=14)
        part = (centres - low)[:, None]
        pixels = pixels[:, :, low] * (1 - part) + pixels[:, :, low + 1] * part
        coarse = other.saliency((pixels - 0.5) / 0.5).reshape(-1, 2, 2)
        weights = [((torch.arange(n) + 0.5) * 2 / n - 0.5).clamp(0, 1) for n in (4, 6)]
        rows = torch.stack([1 - weights[0], weights[0]], 1)
        columns = torch.stack([1 - weights[1], weights[1]], 1)
        return (rows @ coarse @ columns.T).flatten(1)

    assert torch.allclose(saliency_on_grid(subject, other, images.tensors), saliency(images.tensors), atol=1e-5)
    answer = QUESTION.ask(Exam(subject, ImageSet(images), saliency=other))
    assert rows_of(answer) == pytest.approx(slow_rates(subject, images, 0, saliency=saliency))
    assert rows_of(answer) != rows_of(QUESTION.ask(Exam(subject, ImageSet(images))))


def test_a_finer_saliency_is_averaged():
    subject = subject_of(tiny_vit(patch_size=8))
    finer = subject_of(tiny_vit(depth=2))
    images = pictures(subject, 2).tensors
    found = saliency_on_grid(subject, finer, images)
    fine = finer.saliency(images).reshape(2, 4, 6)
    assert found.shape == (2, 6)
    # a triangle over twice the patch's side, cut off at the border
    near, far = [3, 3, 1, 0], [0, 1, 3, 3]
    rows = torch.tensor([near, far]) / 7
    columns = torch.tensor([[3, 3, 1, 0, 0, 0], [0, 1, 3, 3, 1, 0], [0, 0, 0, 1, 3, 3]]).float()
    columns /= columns.sum(dim=1, keepdim=True)
    assert torch.allclose(found, (rows @ fine @ columns.T).flatten(1), atol=1e-6)


def test_without_attention_patches_are_dropped_at_random_only():
    subject = cnn((28, 28))
    answer = QUESTION.ask(Exam(subject, ImageSet(pictures(subject, 9))))
    assert {way for way, _ in rows_of(answer)} == {"random"}
    assert answer["values"]["salient drop, mean top-1 %"] is None
    assert answer["values"]["random drop, mean top-1 %"] is not None
    assert any("only random patches: the attention of tiny cannot be read" in note for note in answer["notes"])
    guided = QUESTION.ask(Exam(subject, ImageSet(pictures(subject, 9)), saliency=subject_of(tiny_vit(depth=2))))
    assert {way for way, _ in rows_of(guided)} == {"random", "salient", "non-salient"}


def test_attention_over_channels_says_nothing_of_patches():
    size = {"img_size": (32, 48), "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("xcit_nano_12_p16_224", num_classes=NUM_CLASSES, cls_attn_layers=0, **size)
    subject = subject_of(model, (32, 48))
    answer = QUESTION.ask(Exam(subject, ImageSet(pictures(subject, 9))))
    assert {way for way, _ in rows_of(answer)} == {"random"}
    assert any("mixes channels" in note for note in answer["notes"])


def test_images_of_a_size_that_the_model_does_not_take_are_told_beforehand():
    exam = Exam(subject_of(tiny_vit(), (16, 25)), ImageSet(RandomImages(3)))
    assert "25" in QUESTION.missing(exam)
    assert QUESTION.missing(Exam(subject_of(tiny_vit(depth=2)), exam.data)) is None


def test_an_answer_depends_on_whose_saliency_it_is():
    assert QUESTION.uses == ("saliency",)
