"""What normalised pixels are worth, for models of any number of channels."""

import pytest
import torch

import attnmix
from attnmix.backbone import BackboneView
from attnmix.methods.input_saliency import pixel_scale
from tests.conftest import NUM_CLASSES


def test_pixels_differ_by_the_deviation_that_they_were_divided_by(make_vit):
    model = make_vit()
    images = torch.zeros(2, 3, 16, 24)
    assert pixel_scale(BackboneView(model), images).flatten().tolist() == [1, 1, 1]
    model.pretrained_cfg = {"std": (0.25, 0.5, 0.75)}
    assert pixel_scale(BackboneView(model), images).flatten().tolist() == [0.25, 0.5, 0.75]
    model.pretrained_cfg = {"std": None}
    assert pixel_scale(BackboneView(model), images).flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("channels", [1, 4])
def test_a_deviation_of_other_channels_says_nothing(make_vit, channels):
    model, images = make_vit(in_chans=channels), torch.randn(4, channels, 16, 24)
    model.pretrained_cfg = {"std": (0.25, 0.5, 0.75)}  # timm's stays that of 3
    assert pixel_scale(BackboneView(model), images).flatten().tolist() == [1] * channels
    task = attnmix.MixTask(model, attnmix.create_method("puzzlemix", num_classes=NUM_CLASSES, blocks=4))
    assert task(images, torch.arange(4))["loss"].isfinite()
