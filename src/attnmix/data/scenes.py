"""Scenes with one digit each: draw what a scene shows, then render it. Pure functions of their arguments.

Everything is float64: rounding then differs between machines by about 1e-16, which never tips a grey level,
so a seed gives the same pictures everywhere. Lengths are in pixels, angles in radians, colours in [0, 1].
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

GLYPH = 32  # side of an upscaled digit
MARGIN = 2  # empty pixels kept round a glyph, so that its rim fades out when sampled
FRAGMENT = GLYPH // 2  # side of a clutter fragment

# Ranges of each channel. The object is brighter than the ground: with freely drawn colours a small network
# learned nothing in the pilot (10 % accuracy), and like this the task is neither impossible nor trivial.
BACKGROUND = (0.0, 0.5)
CLUTTER = (0.1, 0.65)
OBJECT = (0.55, 1.0)
MIN_CONTRAST = 0.55  # RGB distance of object and mean background, where a drawn colour has it
CLUTTER_SCALE = (0.18, 0.35)  # of the picture's side


@dataclass(frozen=True)
class SceneOptions:
    """How scenes are drawn; the sizes are shares of the picture's side, the amplitudes of full brightness."""

    size: int = 48  # side of the picture in pixels
    scale: tuple[float, float] = (0.6, 0.9)  # of the digit
    rotation: float = 10.0  # in degrees, either way at most
    clutter: int = 4  # fragments behind the object
    texture: float = 0.08
    noise: float = 0.03
    min_offset: float = 0.0  # 0 anywhere .. 1 at the border, in x or in y


@dataclass(frozen=True)
class Placement:
    """Where N glyphs go: `centre` (x, y) [N, 2], `half` side [N], `angle` [N]."""

    centre: torch.Tensor
    half: torch.Tensor
    angle: torch.Tensor


@dataclass(frozen=True)
class Scenes:
    """All that N scenes of side S with K clutter fragments show, before anything is rendered."""

    background: torch.Tensor  # [N, 3] mean colour
    blotches: torch.Tensor  # [N, 3, 4, 4] coarse colour noise
    grain: torch.Tensor  # [N, 1, S/4, S/4] finer grey noise
    grating: torch.Tensor  # [N, 3] orientation, frequency, phase
    grating_colour: torch.Tensor  # [N, 3]
    fragments: torch.Tensor  # [N, K, 16, 16]
    clutter: Placement  # of N * K
    clutter_colour: torch.Tensor  # [N, K, 3]
    glyphs: torch.Tensor  # [N, 32, 32]
    object: Placement
    object_colour: torch.Tensor  # [N, 3]
    noise: torch.Tensor  # [N, 3, S, S]


def upscale(ink: torch.Tensor) -> torch.Tensor:
    """8x8 ink [N, 8, 8] in [0, 1] -> glyphs [N, 32, 32] with smooth strokes."""
    return F.interpolate(ink[:, None], size=(GLYPH, GLYPH), mode="bicubic", align_corners=False)[:, 0].clamp(0, 1)


def stroke(ink: torch.Tensor) -> torch.Tensor:
    """Ink -> opacity: pen strokes with a narrow soft rim."""
    return ((ink - 0.38) / 0.25).clamp(0, 1)


def paste(patches: torch.Tensor, at: Placement, size: int) -> torch.Tensor:
    """Patches [N, h, h], turned and scaled, on an empty canvas: [N, size, size]."""
    patches = F.pad(patches, (MARGIN,) * 4)
    pixel = torch.arange(size, dtype=patches.dtype) + 0.5
    x = (pixel[None, :] - at.centre[:, :1]) / at.half[:, None]  # [N, S]
    y = (pixel[None, :] - at.centre[:, 1:]) / at.half[:, None]
    cos, sin = at.angle.cos()[:, None, None], at.angle.sin()[:, None, None]
    x, y = x[:, None, :], y[:, :, None]
    # Turn back from canvas to patch; its margin makes the patch wider than the [-1, 1] `half` stands for.
    grid = torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)
    grid = grid * ((patches.shape[-1] - 2 * MARGIN) / patches.shape[-1])
    return F.grid_sample(patches[:, None], grid, align_corners=False)[:, 0]


def ink_extent(glyphs: torch.Tensor, angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest (x, y) that visible ink reaches after turning, in half sides: two [N, 2]."""
    pixel = (torch.arange(GLYPH, dtype=glyphs.dtype) + 0.5) * 2 / GLYPH - 1
    y, x = torch.meshgrid(pixel, pixel, indexing="ij")
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    turned = torch.stack((cos * x - sin * y, sin * x + cos * y), dim=1).flatten(2)  # [N, 2, 1024]
    blank = (stroke(glyphs) == 0).flatten(1)[:, None]
    rim = 2 / GLYPH  # half a pixel of the glyph, and the half that interpolation adds
    low = turned.masked_fill(blank, math.inf).amin(2) - rim
    high = turned.masked_fill(blank, -math.inf).amax(2) + rim
    return low, high


def draw_scenes(
    glyphs: torch.Tensor, clutter_glyphs: torch.Tensor, options: SceneOptions, *, generator: torch.Generator
) -> Scenes:
    """Draw a scene for each of `glyphs` [N, 32, 32]; its clutter is cut from `clutter_glyphs` [M, 32, 32]."""
    count, size, pieces = len(glyphs), options.size, options.clutter

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    background = uniform(*BACKGROUND, count, 3)
    blotches, grain = normal(count, 3, 4, 4), normal(count, 1, size // 4, size // 4)
    grating = torch.stack(
        (uniform(0, math.pi, count), uniform(4, 16, count), uniform(0, 2 * math.pi, count)), dim=1
    )
    grating_colour = uniform(-1, 1, count, 3)

    donor = torch.randint(len(clutter_glyphs), (count * pieces,), generator=generator)
    top, left = torch.randint(GLYPH - FRAGMENT + 1, (2, count * pieces, 1, 1), generator=generator)
    steps = torch.arange(FRAGMENT)
    fragments = clutter_glyphs[donor[:, None, None], top + steps[:, None], left + steps]
    clutter = Placement(
        centre=uniform(0, size, count * pieces, 2),
        half=uniform(*CLUTTER_SCALE, count * pieces) * size / 2,
        angle=uniform(0, 2 * math.pi, count * pieces),
    )
    clutter_colour = uniform(*CLUTTER, count, pieces, 3)

    candidates = uniform(*OBJECT, count, 12, 3)
    has_contrast = (candidates - background[:, None]).norm(dim=2) > MIN_CONTRAST
    object_colour = candidates[torch.arange(count), has_contrast.int().argmax(1)]
    return Scenes(
        background=background,
        blotches=options.texture * 0.6 * blotches,
        grain=options.texture * 0.4 * grain,
        grating=grating,
        grating_colour=options.texture * 0.7 * grating_colour,
        fragments=fragments.view(count, pieces, FRAGMENT, FRAGMENT),
        clutter=clutter,
        clutter_colour=clutter_colour,
        glyphs=glyphs,
        object=_place_object(
            glyphs,
            half=uniform(*options.scale, count) * size / 2,
            angle=uniform(-1, 1, count) * math.radians(options.rotation),
            where=uniform(-1, 1, count, 2),
            options=options,
        ),
        object_colour=object_colour,
        noise=options.noise * normal(count, 3, size, size),
    )


def _place_object(
    glyphs: torch.Tensor, half: torch.Tensor, angle: torch.Tensor, where: torch.Tensor, options: SceneOptions
) -> Placement:
    """Put glyphs fully inside the picture; `where` [N, 2] in [-1, 1] runs from one border to the other."""
    low, high = ink_extent(glyphs, angle)
    # A digit that fills its square sticks out when turned at a scale near 1: shrink it to fit.
    half = torch.minimum(half, options.size / (high - low).amax(1))
    # Carry the square [-1, 1]^2 to the ring outside `min_offset` so that uniform points stay uniform.
    reach = where.abs().amax(1, keepdim=True).clamp_min(1e-12)
    where = where / reach * (options.min_offset**2 + (1 - options.min_offset**2) * reach**2).sqrt()
    first, last = -low * half[:, None], options.size - high * half[:, None]
    return Placement(centre=first + (last - first) * (where + 1) / 2, half=half, angle=angle)


def render_scenes(scenes: Scenes) -> tuple[torch.Tensor, torch.Tensor]:
    """Images uint8 [N, 3, S, S] and the opacity float64 [N, S, S] of the object, which lies on top."""
    count, pieces = scenes.fragments.shape[:2]
    size = scenes.noise.shape[-1]
    line = torch.linspace(-1, 1, size, dtype=torch.float64)
    orientation, frequency, phase = scenes.grating.T[:, :, None, None]
    wave = torch.sin(frequency * (orientation.cos() * line + orientation.sin() * line[:, None]) + phase)
    grain = F.interpolate(scenes.grain, size=(size, size), mode="bilinear", align_corners=False)
    blotches = F.interpolate(scenes.blotches, size=(size, size), mode="bicubic", align_corners=False)

    image = scenes.background[:, :, None, None] + blotches + grain
    image = image + scenes.grating_colour[:, :, None, None] * wave[:, None]
    clutter = stroke(paste(scenes.fragments.flatten(0, 1), scenes.clutter, size)).view(
        count, pieces, 1, size, size
    )
    for piece in range(pieces):
        image = torch.lerp(image, scenes.clutter_colour[:, piece, :, None, None], clutter[:, piece])
    opacity = stroke(paste(scenes.glyphs, scenes.object, size))
    image = torch.lerp(image, scenes.object_colour[:, :, None, None] + grain, opacity[:, None])
    image = (image + scenes.noise).clamp(0, 1) * 255
    return image.round().to(torch.uint8), opacity


def boxes_of(masks: torch.Tensor) -> torch.Tensor:
    """Tight boxes (top, left, height, width) int64 [N, 4] of non-empty masks bool [N, H, W]."""
    spans = []
    for line in (masks.any(2), masks.any(1)):  # rows, columns
        first = line.int().argmax(1)
        last = line.shape[1] - line.flip(1).int().argmax(1)
        spans.append((first, last - first))
    (top, height), (left, width) = spans
    return torch.stack((top, left, height, width), dim=1)
