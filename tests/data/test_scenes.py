import math

import pytest
import torch

from attnmix.data.originals import load_originals
from attnmix.data.scenes import (
    GLYPH,
    Placement,
    SceneOptions,
    boxes_of,
    draw_scenes,
    ink_extent,
    paste,
    render_scenes,
    stroke,
    upscale,
)


@pytest.fixture(scope="module")
def glyphs() -> torch.Tensor:
    return upscale(load_originals()[0][:64])


def placed(x: float, y: float, half: float, angle: float = 0.0) -> Placement:
    return Placement(*(torch.tensor(v, dtype=torch.float64) for v in ([[x, y]], [half], [angle])))


def draw(glyphs: torch.Tensor, seed: int = 0, **options: object):
    generator = torch.Generator().manual_seed(seed)
    return draw_scenes(glyphs, glyphs, SceneOptions(**options), generator=generator)


def test_paste_at_the_same_scale_copies_the_patch_where_it_is_told():
    patch = torch.rand(1, 8, 8, dtype=torch.float64)
    canvas = paste(patch, placed(x=10, y=6, half=4), size=16)
    expected = torch.zeros(16, 16, dtype=torch.float64)
    expected[2:10, 6:14] = patch[0]
    torch.testing.assert_close(canvas[0], expected, atol=1e-12, rtol=0)


def test_paste_turns_by_the_angle_and_extent_follows():
    # A quarter turn carries +x (right) to +y (down).
    patch = torch.zeros(1, GLYPH, GLYPH, dtype=torch.float64)
    patch[0, 14:18, 24:] = 1  # right of the middle
    quarter = torch.tensor([math.pi / 2], dtype=torch.float64)
    canvas = paste(patch, placed(16, 16, 16, math.pi / 2), size=32)
    torch.testing.assert_close(canvas[0, 24:, 14:18], torch.ones(8, 4, dtype=torch.float64))
    assert canvas.sum() == pytest.approx(32)
    low, high = ink_extent(patch, quarter)
    assert -0.2 <= low[0, 0] <= -4 / 32  # columns 14 to 17, less a rim
    assert 4 / 32 <= high[0, 0] <= 0.2
    assert 0.4 <= low[0, 1] <= 0.5
    assert 1 <= high[0, 1] <= 1.1


def test_objects_stay_inside_at_any_scale_and_turn(glyphs):
    for scale in (0.35, 0.9, 1.0):
        scenes = draw(glyphs, scale=(scale, scale), rotation=45, noise=0)
        outer = paste(
            scenes.glyphs, Placement(scenes.object.centre + 16, scenes.object.half, scenes.object.angle), 80
        )
        outer = stroke(outer) > 0
        outer[:, 16:64, 16:64] = False
        assert not outer.any()


def test_min_offset_keeps_objects_from_the_centre(glyphs):
    many = glyphs.repeat(8, 1, 1)
    near, far = (draw(many, scale=(0.4, 0.4), min_offset=offset).object.centre for offset in (0.0, 0.5))
    from_centre = [(centre / 48 - 0.5).abs().amax(1) for centre in (near, far)]
    assert from_centre[0].min() < 0.05
    assert from_centre[1].min() > 0.12  # half of about 0.3, less what an off-centre digit takes
    assert from_centre[1].max() < 0.5


def test_rendering_is_a_function_of_the_record(glyphs):
    scenes = draw(glyphs)
    first, second = render_scenes(scenes), render_scenes(scenes)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_the_object_lies_on_top_of_its_clutter(glyphs):
    # Where the object is opaque, clutter must not show: the same record without it gives the same pixels.
    scenes = draw(glyphs, clutter=8)
    images, opacity = render_scenes(scenes)
    bare = type(scenes)(**{**vars(scenes), "fragments": torch.zeros_like(scenes.fragments)})
    bare_images, bare_opacity = render_scenes(bare)
    solid = (opacity == 1)[:, None].expand_as(images)
    assert torch.equal(images[solid], bare_images[solid])
    assert torch.equal(opacity, bare_opacity)
    assert not torch.equal(images, bare_images)


def test_boxes_of_masks_by_hand():
    masks = torch.zeros(3, 4, 6, dtype=torch.bool)
    masks[0] = True
    masks[1, 3, 5] = True
    masks[2, 1, 2] = masks[2, 2, 4] = True
    assert boxes_of(masks).tolist() == [[0, 0, 4, 6], [3, 5, 1, 1], [1, 2, 2, 3]]
