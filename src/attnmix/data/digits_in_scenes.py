"""The embedded data set: real handwritten digits in cluttered colour scenes, with masks and boxes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from attnmix.data.embedded import EmbeddedImages
from attnmix.data.originals import CLASS_NAMES, SPLITS, load_originals, originals_of
from attnmix.data.scenes import SceneOptions, boxes_of, draw_scenes, render_scenes, upscale

SCENE_SPLITS = {**SPLITS, "off-centre": SPLITS["test"]}
OFF_CENTRE_SCALE = (0.35, 0.55)  # whatever `scale` is
_PIXELS_AT_ONCE = 128 * 48 * 48  # changing it changes the pictures of every seed


class DigitsInScenes(EmbeddedImages):
    """One real digit per picture, upscaled, turned, recoloured and placed at random on a cluttered ground.

    Splits: "train" (originals 0..999) and "test" (1000..1796); "train-fit" and "validation" (the first 800
    and the last 200 training originals) for choosing settings; "off-centre", the test originals small and
    far from the centre. Within a split every original is used equally often, as far as the count allows. A
    seed gives the same pictures on every machine.

    Attributes: `images` uint8 [N, 3, S, S], `labels` int64 [N], `masks` bool [N, S, S] (True = object
    pixel, all of them visible), `boxes` int64 [N, 4] (top, left, height, width), `originals` int64 [N]
    (index in scikit-learn's set). Item i is `(transform(PIL RGB image), label)`.

    Args:
        split: one of the five above.
        size: side of the pictures in pixels, at least 16.
        train_count: number of pictures of train and of train-fit.
        test_count: number of pictures of each other split.
        scale: smallest and largest side of a digit's 8x8 square, as a share of the picture's side.
        rotation: largest turn either way, in degrees.
        clutter: fragments of other digits of the same split behind the object.
        texture: amplitude of the ground's texture, as a share of full brightness.
        noise: standard deviation of the pixel noise, as a share of full brightness.
        seed: one seed gives unrelated streams to the splits.
        transform: applied to the PIL image.

    Raises ValueError for an unknown split or an option out of range.
    """

    class_names = CLASS_NAMES

    def __init__(
        self,
        split: str = "train",
        *,
        size: int = 48,
        train_count: int = 2000,
        test_count: int = 1500,
        scale: Sequence[float] = (0.6, 0.9),
        rotation: float = 10.0,
        clutter: int = 4,
        texture: float = 0.08,
        noise: float = 0.03,
        seed: int = 0,
        transform: Callable[[Image.Image], Any] | None = None,
    ) -> None:
        super().__init__(transform)
        used = torch.tensor(originals_of(split, SCENE_SPLITS))
        _check_options(size=size, scale=scale, rotation=rotation, clutter=clutter, texture=texture, noise=noise)
        _check_counts(train_count=train_count, test_count=test_count, seed=seed)
        self.split = split
        self.options = SceneOptions(size, (float(scale[0]), float(scale[1])), rotation, clutter, texture, noise)
        if split == "off-centre":
            self.options = replace(self.options, scale=OFF_CENTRE_SCALE, min_offset=0.5)

        generator = torch.Generator().manual_seed(seed * len(SCENE_SPLITS) + list(SCENE_SPLITS).index(split))
        count = train_count if split.startswith("train") else test_count
        self.originals = used[_equally_often(len(used), count, generator)]
        ink, digits = load_originals()
        self.labels = digits[self.originals]
        self.images = torch.empty(count, 3, size, size, dtype=torch.uint8)
        self.masks = torch.empty(count, size, size, dtype=torch.bool)
        glyphs = upscale(ink)
        for chunk in torch.arange(count).split(max(1, _PIXELS_AT_ONCE // size**2)):
            scenes = draw_scenes(glyphs[self.originals[chunk]], glyphs[used], self.options, generator=generator)
            self.images[chunk], opacity = render_scenes(scenes)
            self.masks[chunk] = opacity > 0.5
        self.boxes = boxes_of(self.masks)


def _equally_often(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """`count` indices below `size`, each used once before any is used again: int64 [count]."""
    rounds = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    return torch.cat(rounds)[:count]


def _check_options(
    *, size: int, scale: Sequence[float], rotation: float, clutter: int, texture: float, noise: float
) -> None:
    if size < 16:
        raise ValueError(f"size {size}: a digit is not to be told below 16 pixels")
    if not isinstance(scale, Sequence) or len(scale) != 2 or not 0.3 <= scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale {scale!r}: expected (smallest, largest) with 0.3 <= smallest <= largest <= 1")
    if not 0 <= rotation <= 180:
        raise ValueError(f"rotation {rotation!r}: expected degrees from 0 to 180")
    if clutter < 0:
        raise ValueError(f"clutter {clutter!r}: expected a number of fragments, 0 or more")
    for name, amplitude in (("texture", texture), ("noise", noise)):
        if not 0 <= amplitude <= 1:
            raise ValueError(f"{name} {amplitude!r}: expected an amplitude from 0 to 1")


def _check_counts(*, train_count: int, test_count: int, seed: int) -> None:
    for name, count in (("train_count", train_count), ("test_count", test_count)):
        if count < 1:
            raise ValueError(f"{name} {count!r}: expected 1 or more")
    if not 0 <= seed < 2**29:  # torch's CPU generator sees 32 bits of a seed, some of which tell the splits apart
        raise ValueError(f"seed {seed!r}: expected 0 to {2**29 - 1}")
