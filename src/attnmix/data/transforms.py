"""timm's training and evaluation transforms from a recipe's `augment` mapping."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image
from timm.data import create_transform
from torchvision.transforms import Compose, Grayscale

from attnmix.data._nearest import check_keys, nearest

Transform = Callable[[Image.Image], Any]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
_CHOICES = {
    "interpolation": (*INTERPOLATIONS, "random"),
    "re_mode": ("const", "rand", "pixel"),
    "train_crop_mode": ("rrc", "rkrc", "rkrr"),
    "crop_mode": ("center", "squash", "border"),
}
_PROBABILITIES = ("hflip", "vflip", "re_prob", "color_jitter_prob", "grayscale_prob", "gaussian_blur_prob")
_EVALUATION_KEYS = ("interpolation", "crop_pct", "crop_mode")  # what evaluation, too, is to know of `augment`
AUGMENT_KEYS = {
    "no_aug",
    "scale",
    "ratio",
    "color_jitter",
    "auto_augment",
    "re_count",
    "crop_pct",
    *_CHOICES,
    *_PROBABILITIES,
}


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
            takes that instead of "random"), `crop_pct` and `crop_mode` hold for evaluation as well. With
            `no_aug` training images get the evaluation transform, and the other keys wait.
        whole_image: for the embedded sets: evaluation sees everything (no crop, `crop_mode` squash), and
            nothing is mirrored unless asked for (a mirrored digit is none).

    `crop_pct` is 1 where `whole_image`, or where a side is below 128 (CIFAR and the like), else timm's 0.875.
    Raises ValueError for an unknown key or a value timm cannot use.
    """
    # None stands for timm's default, except that timm takes color_jitter None for no jitter.
    augment = {key: value for key, value in (augment or {}).items() if value is not None or key == "color_jitter"}
    check_keys("augment", augment, AUGMENT_KEYS)
    _check_values(augment)
    channels, height, width = _check_input(input_size, mean, std)
    if whole_image:
        augment = {"hflip": 0.0, "crop_mode": "squash", "crop_pct": 1.0, **augment}
    augment = {
        "interpolation": "bicubic",
        "crop_pct": 1.0 if min(height, width) < 128 else 0.875,
        **augment,
    }
    shared = {"input_size": (channels, height, width), "mean": tuple(mean), "std": tuple(std)}
    for_evaluation = {key: augment[key] for key in _EVALUATION_KEYS if key in augment}
    if for_evaluation["interpolation"] == "random":
        for_evaluation["interpolation"] = "bicubic"
    evaluation = create_transform(**shared, **for_evaluation, is_training=False)
    if augment.pop("no_aug", False):
        training = evaluation
    else:
        try:
            training = create_transform(**shared, **augment, is_training=True)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"timm cannot make a transform of augment {augment}: {reason}") from error
    if channels == 1:
        training, evaluation = Compose([Grayscale(), training]), Compose([Grayscale(), evaluation])
    return training, evaluation


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
