"""From files to RGB images, and what counts as an image that cannot be read."""

import struct
import zlib
from typing import Any

from PIL import Image, UnidentifiedImageError

__all__ = ["UNREADABLE", "check_picture", "reason", "rgb_image"]

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
    """Refuse an image with a side of one pixel: a placeholder, which crops would blow up to a flat colour.

    Raises:
        ValueError: it is one.
    """
    if min(image.size) < 2:
        raise ValueError(f"it is {image.width} x {image.height} pixels, and a side needs 2 at least")
