"""`create_datasets`: from a data set's name to a training and an evaluation set ready for a loader."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnmix._nearest import check_keys, nearest
from attnmix.data.digits import Digits
from attnmix.data.digits_in_scenes import DigitsInScenes
from attnmix.data.folder import check_same_classes, evaluation_folder, open_folder
from attnmix.data.labelled import LabelledImages
from attnmix.data.timm_sets import PREFIXES, open_timm_set
from attnmix.data.transforms import Transform, create_transforms, evaluation_options, evaluation_transform

_logger = logging.getLogger(__name__)

EMBEDDED: dict[str, tuple[Callable[..., DigitsInScenes | Digits], str]] = {
    "digits-in-scenes": (
        DigitsInScenes,
        "embedded: 10 real handwritten digits in cluttered scenes, 48x48, with object masks and boxes",
    ),
    "digits": (Digits, "embedded: scikit-learn's 1797 handwritten digits as they are, 8x8"),
}
_FOLDER_KEYS = ("class_map",)
TOLERATED = 1  # unreadable images that an evaluation leaves out however small the set


def known_data() -> dict[str, str]:
    """Every name or form of name that `create_datasets` takes, with a line on each."""
    return {
        **{name: line for name, (_, line) in EMBEDDED.items()},
        "FOLDER": "a folder path: train/CLASS/*.jpg and val/CLASS/*.jpg",
        **{f"{prefix}/NAME": f"{what}, through timm" for prefix, (what, _) in PREFIXES.items()},
    }


def create_datasets(
    name: str,
    *,
    input_size: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    train_split: str = "train",
    eval_split: str = "validation",
    augment: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
) -> tuple[LabelledImages, LabelledImages]:
    """The training and the evaluation set of a name, each giving (tensor of `input_size`, int label).

    Args:
        name: "digits-in-scenes", "digits", a folder, or a timm name such as "torch/cifar10" (`known_data`).
        input_size: (channels, height, width) of the model.
        mean: per channel, as the model expects.
        std: likewise.
        train_split: split to train on. Choose settings on train-fit against validation (embedded sets).
        eval_split: split to evaluate on.
        augment: keywords of `timm.data.create_transform` for training (`create_transforms` says which reach
            evaluation); left out, the embedded sets are not augmented and others get timm's defaults.
        data_options: keywords of the embedded set's class; `class_map` of a folder; `root`, `download` and
            others (`timm_sets.OPTION_KEYS`) of a timm set.
        batch_size: of the loader; a stream gives whole batches to every worker.

    Raises ValueError or FileNotFoundError that names the value at fault and what would be right.
    """
    is_embedded = _embedded(name) in EMBEDDED
    if is_embedded and augment is None:
        augment = {"no_aug": True}
    training, evaluation = create_transforms(
        input_size, mean=mean, std=std, augment=augment, whole_image=is_embedded
    )
    if is_embedded and train_split == "train" and eval_split == "validation":
        _logger.warning(
            "%s: validation shares its originals with train; train on train-fit, or evaluate on test", name
        )
    train, held_out = (
        _open_split(
            name,
            split,
            is_training=is_training,
            transform=transform,
            input_size=input_size,
            options=dict(data_options or {}),
            batch_size=batch_size,
            draws=transform is not evaluation,
        )
        for split, is_training, transform in ((train_split, True, training), (eval_split, False, evaluation))
    )
    check_same_classes(train.class_names, held_out.class_names, repr(name))
    return train, held_out


def create_evaluation_set(
    name: str,
    *,
    input_size: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    split: str | None = None,
    crop_pct: float | None = None,
    crop_mode: str = "center",
    interpolation: str = "bicubic",
    data_options: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
) -> tuple[LabelledImages, Transform]:
    """One set to evaluate on, which need not have a training split, and the transform of its images.

    One unreadable image is left out whatever the set's size; beyond, more than 1 % of the set is an error.

    Args:
        name: as `create_datasets`; a folder may also hold its class folders itself.
        input_size: (channels, height, width) of the model.
        mean: per channel, as the model expects.
        std: likewise.
        split: None: "test" of the embedded sets, "validation" of others, or the folder itself.
        crop_pct: share of the resized image's side that the crop keeps; None: as `create_transforms`.
        crop_mode: timm's; embedded sets are shown whole unless it is "squash", as in exports trained on them.
        interpolation: how images are resized.
        data_options: as `create_datasets`.
        batch_size: of the loader, for streams.

    Raises ValueError or FileNotFoundError that names the value at fault and what would be right.
    """
    if _embedded(name) in EMBEDDED:
        # a model of other data crops by other habits: scenes are shown whole
        crop_pct, crop_mode = (crop_pct if crop_mode == "squash" else None) or 1.0, "squash"
    transform = evaluation_transform(
        input_size, mean=mean, std=std, crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation
    )
    images = _open_split(
        name,
        split,
        is_training=False,
        transform=transform,
        input_size=input_size,
        options=dict(data_options or {}),
        batch_size=batch_size,
        tolerated=TOLERATED,
        draws=False,
    )
    return images, transform


def evaluation_settings(name: str, input_size: Sequence[int], augment: Mapping[str, Any] | None) -> dict[str, Any]:
    """How `create_datasets` resizes and crops for evaluation: `crop_pct`, `crop_mode`, `interpolation`."""
    return evaluation_options(input_size, augment=augment, whole_image=_embedded(name) in EMBEDDED)


def _embedded(name: str) -> str:
    return name.replace("_", "-")


def _open_split(
    name: str,
    split: str | None,
    *,
    is_training: bool,
    transform: Transform,
    input_size: Sequence[int],
    options: dict[str, Any],
    batch_size: int | None,
    draws: bool,
    tolerated: int = 3,
) -> LabelledImages:
    """One split of any kind of data; None: what there is to evaluate on. `draws`: so does the transform."""
    if name.partition("/")[0].lower() in PREFIXES and "/" in name:
        return open_timm_set(
            name,
            split or "validation",
            is_training=is_training,
            options={"batch_size": batch_size, **options},
            transform=transform,
            tolerated=tolerated,
        )
    if _embedded(name) in EMBEDDED:
        return _open_embedded(_embedded(name), split or "test", transform, input_size, options, draws=draws)
    root = _existing_folder(name)
    check_keys("data_options", options, _FOLDER_KEYS)
    return open_folder(evaluation_folder(root, split), options=options, transform=transform, tolerated=tolerated)


def _open_embedded(
    name: str, split: str, transform: Transform, input_size: Sequence[int], options: dict[str, Any], *, draws: bool
) -> LabelledImages:
    data_class, _ = EMBEDDED[name]
    known = set(inspect.signature(data_class).parameters) - {"split", "transform"}
    check_keys(f"data_options ({name})", options, known)
    if "size" in known:
        options.setdefault("size", max(input_size[1:]))
    images = data_class(split, transform=transform, **options)
    if not draws:
        images.keep_items()
    return images


def _existing_folder(name: str) -> Path:
    root = Path(name).expanduser()
    if root.is_dir():
        return root
    forms = list(known_data())
    message = f"{nearest(name, forms)}; known: {', '.join(forms)}"
    if "/" in name or name.startswith((".", "~")):
        raise FileNotFoundError(f"no folder {name!r}{message}")
    raise ValueError(f"unknown data {name!r}, and no folder of this name{message}")
