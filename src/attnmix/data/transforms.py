"""timm's training and evaluation transforms from a recipe's `augment` mapping."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image
from timm.data import create_transform
from torchvision.transforms import Compose, Grayscale

from attnmix._nearest import check_keys, nearest
from attnmix.data.posterize import keep_a_bit

Transform = Callable[[Image.Image], Any]

_CHOICES = {
    "interpolation": ("bicubic", "bilinear", "nearest", "random"),
    "re_mode": ("const", "rand", "pixel"),
}
CROP_MODES = ("center", "squash", "border")
_PROBABILITIES = ("hflip", "vflip", "re_prob")
AUGMENT_KEYS = {"no_aug", "scale", "ratio", "color_jitter", "auto_augment", "crop_pct", *_CHOICES, *_PROBABILITIES}


def create_transforms(
    input_size: Sequence[int],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    augment: Mapping[str, Any] | None = None,
    whole_image: bool = False,
) -> tuple[Transform, Transform]:
    """The training and the evaluation transform: PIL image -> normalised float32 tensor of `input_size`.

    Args:
        input_size: (channels, height, width); one channel means greyscale.
        mean: per channel, of images in [0, 1].
        std: likewise.
        augment: keywords of `timm.data.create_transform`. `interpolation` (bicubic unless given; evaluation
            takes that instead of "random") and `crop_pct` hold for evaluation as well. With `no_aug` training
            images get the evaluation transform, and the other keys wait. None is as good as left out, except
            that timm takes color_jitter None for no jitter.
        whole_image: for the embedded sets: evaluation sees everything (no crop, timm's crop_mode squash), and
            nothing is mirrored unless asked for (a mirrored digit is none).

    `crop_pct` is 1 where `whole_image`, or where a side is below 128 (CIFAR and the like), else timm's 0.875.
    Raises ValueError for an unknown key or a value timm cannot use.
    """
    for_evaluation = evaluation_options(input_size, augment=augment, whole_image=whole_image)
    augment = _given(augment)
    _check_values(augment)
    channels, height, width = _check_input(input_size, mean, std)
    augment = {**for_evaluation, **({"hflip": 0.0} if whole_image else {}), **augment}
    evaluation = evaluation_transform(input_size, mean=mean, std=std, **for_evaluation)
    if augment.pop("no_aug", False):
        return evaluation, evaluation
    shared = {"input_size": (channels, height, width), "mean": tuple(mean), "std": tuple(std)}
    try:
        training = create_transform(**shared, **augment, is_training=True)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"timm cannot make a transform of augment {augment}: {reason}") from error
    keep_a_bit(training)
    return (Compose([Grayscale(), training]) if channels == 1 else training), evaluation


def evaluation_transform(
    input_size: Sequence[int],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    crop_pct: float | None = None,
    crop_mode: str = "center",
    interpolation: str = "bicubic",
) -> Transform:
    """The evaluation transform alone, `crop_mode` being timm's; the rest as in `create_transforms`' `augment`.

    Raises ValueError for a value timm cannot use.
    """
    if crop_mode not in CROP_MODES:
        raise ValueError(
            f"crop_mode {crop_mode!r}{nearest(crop_mode, CROP_MODES)}; known: {', '.join(CROP_MODES)}"
        )
    given = _given({"crop_pct": crop_pct, "interpolation": interpolation})
    _check_values(given)
    channels, height, width = _check_input(input_size, mean, std)
    options = {**evaluation_options(input_size, augment=given), "crop_mode": crop_mode}
    found = create_transform(
        (channels, height, width), mean=tuple(mean), std=tuple(std), **options, is_training=False
    )
    return Compose([Grayscale(), found]) if channels == 1 else found


def evaluation_options(
    input_size: Sequence[int], *, augment: Mapping[str, Any] | None = None, whole_image: bool = False
) -> dict[str, Any]:
    """How `create_transforms` resizes and crops for evaluation: `crop_pct`, `crop_mode`, `interpolation`."""
    augment = _given(augment)
    interpolation = augment.get("interpolation", "bicubic")
    default_crop = 1.0 if whole_image or min(input_size[1:]) < 128 else 0.875
    return {
        "crop_pct": augment.get("crop_pct", default_crop),
        "crop_mode": "squash" if whole_image else "center",
        "interpolation": "bicubic" if interpolation == "random" else interpolation,
    }


def _given(augment: Mapping[str, Any] | None) -> dict[str, Any]:
    given = {key: value for key, value in (augment or {}).items() if value is not None or key == "color_jitter"}
    check_keys("augment", given, AUGMENT_KEYS)
    return given


def _check_input(input_size: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> tuple[int, int, int]:
    if len(input_size) != 3 or input_size[0] not in (1, 3):
        raise ValueError(
            f"input_size {tuple(input_size)}: expected (channels, height, width) with 1 or 3 channels"
        )
    channels, height, width = input_size
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ValueError(f"{name} {tuple(values)}: expected one value for each of {channels} channels")
    return channels, height, width


def _check_values(augment: Mapping[str, Any]) -> None:
    for key, choices in _CHOICES.items():
        value = augment.get(key, choices[0])
        if value not in choices:
            raise ValueError(f"augment {key} {value!r}{nearest(value, choices)}; known: {', '.join(choices)}")
    for key in _PROBABILITIES:
        value = augment.get(key, 0)
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError(f"augment {key} {value!r}: expected a probability from 0 to 1")
    crop_pct = augment.get("crop_pct", 1)
    if not isinstance(crop_pct, (int, float)) or not 0 < crop_pct <= 1:
        raise ValueError(f"augment crop_pct {crop_pct!r}: expected a share above 0 and up to 1")
    for key in ("scale", "ratio"):
        value = augment.get(key, (1, 1))
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or len(value) != 2
            or not 0 < value[0] <= value[1]
        ):
            raise ValueError(f"augment {key} {value!r}: expected (smallest, largest), both above 0")
