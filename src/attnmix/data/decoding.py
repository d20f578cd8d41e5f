"""From files to RGB images, and what counts as an image that cannot be read."""

import struct
import zlib
from typing import Any

from PIL import EpsImagePlugin, Image, UnidentifiedImageError

__all__ = ["MOST_UNEVEN", "UNREADABLE", "check_picture", "reason", "rgb_image"]

MOST_UNEVEN = 200  # times the shorter side: resized by that one, more would fill the memory

# PostScript is a program, which Pillow would hand to Ghostscript, whatever the file is called
EpsImagePlugin.gs_binary = False

# What Pillow raises for a file that is cut short, damaged, no picture at all or far too large.
UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def rgb_image(source: Any) -> Image.Image:
    """Decode all of an open binary file, or take a Pillow image, as RGB.

    Raises:
        OSError, ValueError, ...: one of `UNREADABLE`.
    """
    if isinstance(source, Image.Image):
        check_picture(source)
        return source.convert("RGB")
    with source, Image.open(source) as image:
        check_picture(image)
        return image.convert("RGB")  # decodes every pixel, so that a cut-off file shows here


def reason(error: Exception) -> str:
    """Why an image cannot be read, in words: Pillow's for a file it does not know name the object in memory."""
    if isinstance(error, UnidentifiedImageError):
        return "it is empty, damaged or no image"
    return str(error) or type(error).__name__


def check_picture(image: Image.Image) -> None:
    """Refuse what no crop shows: a placeholder's side of one pixel, and a ribbon more than `MOST_UNEVEN` as long.

    Raises:
        ValueError: it is one.
    """
    if min(image.size) < 2:
        raise ValueError(f"it is {image.width} x {image.height} pixels, and a side needs 2 at least")
    if max(image.size) > MOST_UNEVEN * min(image.size):
        raise ValueError(
            f"it is {image.width} x {image.height} pixels: more than {MOST_UNEVEN} times as long as wide"
        )
