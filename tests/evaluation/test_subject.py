import pytest
import timm
import torch

from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES
from tests.evaluation.exams import MEAN, STD, tiny_subject


def cnn(size=96):
    def make():
        return timm.create_model("resnet10t", num_classes=NUM_CLASSES).eval()

    return Subject("cnn", make(), [], (3, size, size), MEAN, STD, make)


def test_pixels_and_back():
    subject, images = tiny_subject(), torch.randn(2, 3, 16, 24)
    pixels = subject.to_pixels(images)
    assert torch.allclose(pixels[:, 1], images[:, 1] * STD[1] + MEAN[1])
    assert torch.allclose(subject.normalise(pixels), images, atol=1e-6)


def test_logits_of_some_classes():
    subject, images = tiny_subject(), torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        every = subject.model(images)
        assert torch.equal(subject.logits(images), every)
        assert torch.equal(subject.logits(images, torch.tensor([3, 1])), every[:, [3, 1]])


def test_the_model_is_put_into_evaluation_mode():
    model = tiny_subject().model.train()
    assert not Subject("x", model, [], (3, 16, 24), MEAN, STD, lambda: model).model.training


def test_saliency_is_the_class_rows_attention():
    subject, images = tiny_subject(), torch.randn(2, 3, 16, 24)
    found = subject.saliency(images)
    with torch.no_grad(), subject.view.open_tap((-1,)) as tap:
        subject.model(images)
    assert torch.allclose(found, subject.view.class_attention(tap, -1, (16, 24)))
    assert found.shape == (2, 24)
    assert subject.grid == (4, 6)


def test_without_class_token_saliency_is_the_image_attention():
    subject, images = tiny_subject(class_token=False, global_pool="avg"), torch.randn(2, 3, 16, 24)
    with torch.no_grad(), subject.view.open_tap((-1,)) as tap:
        subject.model(images)
    assert torch.allclose(subject.saliency(images), subject.view.image_attention(tap, -1, (16, 24)))


def test_a_network_without_attention_says_so():
    subject = cnn()
    assert subject.view is None
    assert subject.num_classes == NUM_CLASSES
    with pytest.raises(ValueError, match="cnn: .*ResNet"):
        subject.saliency(torch.randn(1, 3, 96, 96))
    with pytest.raises(ValueError, match="cnn: .*ResNet"):
        _ = subject.grid


@pytest.mark.parametrize(("size", "grid"), [(96, (6, 6)), (64, (16, 16)), (100, (10, 10))])
def test_patches_of_a_network_without_tokens_divide_its_image(size, grid):
    assert cnn(size).patch_grid == grid


def test_patches_are_alike_for_models_of_large_images_and_the_models_own_for_small_ones():
    assert tiny_subject().patch_grid == (4, 6)
    swin = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(1, 2), embed_dim=8)
    subject = Subject("swin", swin, [], (3, 224, 224), MEAN, STD, lambda: swin)
    assert (subject.grid, subject.patch_grid) == ((28, 28), (14, 14))


def test_logits_that_are_not_finite_are_counted_once():
    subject, images = tiny_subject(), torch.randn(3, 3, 16, 24)
    images[1] = float("nan")
    subject.logits(images)
    assert (subject.take_unsound(), subject.take_unsound()) == (1, 0)
