import dataclasses

import pytest
import torch

from attnmix.evaluation.score_maps import (
    about_attention,
    brightest_token,
    score_maps,
    threshold_mass,
    to_image_size,
)
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit


def make_subject(**options) -> Subject:
    def fresh():
        model = tiny_vit(**options)
        torch.manual_seed(7)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return model.eval()

    names = [str(number) for number in range(NUM_CLASSES)]
    return Subject("tiny", tiny_vit(**options), names, (3, 16, 24), (0.5,) * 3, (0.25,) * 3, fresh)


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.9, 1.0])
def test_mass_is_kept_as_in_a_plain_loop(mass):
    scores = torch.randint(0, 6, (40, 4, 5)).float() ** 2  # many ties and zeros
    scores[0] = torch.rand(4, 5)
    found = threshold_mass(scores, mass)
    for row, kept in zip(scores, found, strict=True):
        values = row.flatten().tolist()
        wanted, held = [False] * len(values), 0.0
        while held < mass * sum(values) - 1e-9:
            left = [(-value, place) for place, value in enumerate(values) if not wanted[place]]
            value, place = min(left)
            wanted[place] = True
            held -= value
        assert kept.flatten().tolist() == wanted


def test_mass_is_dinos_threshold():
    """As in DINO's visualisation: sorted upwards, what lies above 1 - threshold of the cumulated sum is kept."""
    scores = torch.rand(20, 6, 6) ** 4
    values, order = scores.flatten(1).double().sort(dim=1)
    above = (values / values.sum(dim=1, keepdim=True)).cumsum(dim=1) > 1 - 0.9
    wanted = torch.stack([row[place.argsort()] for row, place in zip(above, order, strict=True)])
    assert torch.equal(threshold_mass(scores).flatten(1), wanted)


def test_a_map_that_is_equal_everywhere_is_kept_whole():
    assert threshold_mass(torch.stack([torch.ones(3, 4), torch.zeros(3, 4)])).all()


def test_mass_out_of_range_is_refused():
    for mass in (0, 1.1, -0.5):
        with pytest.raises(ValueError, match=rf"mass {mass}: expected a share above 0 and up to 1"):
            threshold_mass(torch.ones(1, 2, 2), mass)


def test_a_mask_of_tokens_comes_to_pixels():
    mask = torch.tensor([[[True, False], [False, True]]])
    wanted = torch.zeros(1, 4, 6, dtype=torch.bool)
    wanted[0, :2, :3] = wanted[0, 2:, 3:] = True
    assert torch.equal(to_image_size(mask, (4, 6)), wanted)


def test_the_brightest_token_is_the_first_of_the_brightest():
    pixels = torch.zeros(2, 3, 4, 6)
    pixels[0, 1, 2, 4] = 1.0  # in the token of row 1, column 2
    pixels[1, :, 0, 3] = pixels[1, :, 3, 0] = 0.5
    found = brightest_token(pixels, (2, 3))
    assert found.sum(dim=(1, 2)).tolist() == [1, 1]
    assert found[0, 1, 2] == 1
    assert found[1, 0, 1] == 1


def test_the_maps_are_attention_and_what_needs_none():
    subject = make_subject()
    images = torch.randn(3, 3, 16, 24)
    images[:, :, 5, 9] = 40.0  # the pixel's token: row 1, column 2
    maps = {name: read(images) for name, read in score_maps(subject).items()}
    assert list(maps) == ["attention", "untrained network", "centre prior", "brightest token", "whole image"]
    assert {tuple(found.shape) for found in maps.values()} == {(3, 4, 6)}
    assert torch.equal(maps["attention"].flatten(1), subject.saliency(images))
    untrained = dataclasses.replace(subject, model=subject.fresh())
    assert torch.equal(maps["untrained network"].flatten(1), untrained.saliency(images))
    assert not torch.allclose(maps["untrained network"], maps["attention"], atol=1e-3)
    torch.testing.assert_close(maps["centre prior"], maps["centre prior"].flip(1, 2))
    assert maps["centre prior"][0].argmax() in (8, 9, 14, 15)
    assert maps["brightest token"].flatten(1).argmax(dim=1).tolist() == [8] * 3
    assert (maps["whole image"] == 1).all()


def test_brightness_is_of_pixels_not_of_what_the_model_takes():
    names = [str(number) for number in range(NUM_CLASSES)]
    subject = Subject("t", tiny_vit(), names, (3, 16, 24), (0.5,) * 3, (0.01, 1.0, 0.01), lambda: tiny_vit())
    images = torch.zeros(1, 3, 16, 24)
    images[0, 0, :4, :4] = 3.0  # 0.03 brighter in red
    images[0, 1, 4:8, :4] = 2.0  # 2 brighter in green
    assert score_maps(subject)["brightest token"](images).flatten().argmax() == 6


def test_the_note_says_which_attention_it_is():
    assert "class row" in about_attention(make_subject())
    assert "no class row" in about_attention(make_subject(class_token=False, global_pool="avg"))


def test_attention_that_is_not_finite_is_refused():
    subject = make_subject()
    torch.nn.init.constant_(subject.model.blocks[0].mlp.fc1.weight, float("nan"))
    with pytest.raises(ValueError, match="tiny: its attention is not finite; are its weights?"):
        score_maps(subject)["attention"](torch.randn(1, 3, 16, 24))
