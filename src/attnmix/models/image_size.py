"""The image sizes a model can lay out in whole tokens."""


def require_multiple(img_size: tuple[int, int], multiple: tuple[int, int]) -> None:
    """Refuse an image, (height, width) in pixels, whose sides are not multiples of `multiple`.

    A strided convolution would leave the rest of the image out without a word.

    Raises:
        ValueError: names the side and the nearest one that fits.
    """
    for name, side, length in zip(("height", "width"), img_size, multiple, strict=True):
        if side <= 0 or side % length:
            nearest = max(1, round(side / length)) * length
            raise ValueError(f"image {name} {side} is not a multiple of {length}; {nearest} would be")
