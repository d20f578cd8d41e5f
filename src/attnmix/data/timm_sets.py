"""Data sets that timm's factory opens by a prefixed name: torchvision, Hugging Face, TFDS, webdataset."""

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from timm.data import create_dataset
from timm.data.dataset import ImageDataset, IterableImageDataset

from attnmix._nearest import check_keys, nearest
from attnmix.data.folder import names_by_index
from attnmix.data.labelled import LabelledImages, ReadableImages, StreamedImages
from attnmix.data.streams import HuggingFaceImages, SharedStream, WebdatasetImages

PREFIXES = {  # prefix -> (what it opens, package it needs)
    "torch": ("torchvision's data sets (cifar10, cifar100, mnist, imagenet, ...)", "torchvision"),
    "hfds": ("Hugging Face data sets", "datasets"),
    "hfids": ("Hugging Face data sets, streamed", "datasets"),
    "tfds": ("TensorFlow data sets", "tensorflow-datasets"),
    "wds": ("webdataset shards", "webdataset"),
}
_SHARED: dict[str, type[SharedStream]] = {"wds": WebdatasetImages, "hfids": HuggingFaceImages}
OPTION_KEYS = (
    "root", "download", "class_map", "input_key", "target_key", "num_classes", "batch_size", "seed",
    "repeats", "train_num_samples", "eval_num_samples",
)  # fmt: skip
_TORCHVISION = (
    "cifar10", "cifar100", "mnist", "kmnist", "fashion_mnist", "qmnist", "imagenet", "places365",
    "inaturalist", "inat",
)  # fmt: skip
_WDS_SPLITS = (
    "a split is a name in root's _info.json, or shards such as 'train-{0000..0099}.tar' with data_options "
    "train_num_samples"
)
# timm takes every other word for "the test part" of these sets, a misspelt "train" included.
_TWO_PARTS = ("cifar10", "cifar100", "mnist", "kmnist", "fashion_mnist")
_TWO_PART_SPLITS = ("train", "training", "val", "valid", "validation", "eval", "evaluation", "test")


def open_timm_set(
    name: str,
    split: str,
    *,
    is_training: bool,
    options: Mapping[str, Any],
    transform: Any,
    tolerated: int = 3,
) -> LabelledImages:
    """One split of a data set by its timm name, such as "torch/cifar10" or "hfds/user/name".

    `options` are those of `OPTION_KEYS`: timm's keywords, the sample counts of the splits of a stream, and
    `num_classes` where the set does not say its classes. Raises ValueError for an unknown option or name,
    FileNotFoundError for a torchvision set or a webdataset shard that is not on disk, ValueError naming a missing
    package.
    """
    check_keys("data_options", options, OPTION_KEYS)
    options = {key: value for key, value in options.items() if value is not None}
    prefix = name.partition("/")[0].lower()
    package = PREFIXES[prefix][1]
    if not _is_installed(package):  # asked here, as timm prints and raises differently for each
        raise ValueError(f"data set {name!r} needs the package {package}: pip install {package}")
    if prefix == "torch":
        _check_torchvision(name, split, options)
    if prefix == "wds" and "root" not in options:
        raise ValueError(f"{name!r} needs data_options root: the folder or address of its shards")
    if prefix == "wds":
        _refuse_commands(options["root"], split)
    counts = {True: options.pop("train_num_samples", None), False: options.pop("eval_num_samples", None)}
    num_classes = options.pop("num_classes", None)
    if prefix in ("hfids", "tfds", "wds"):
        options["num_samples"] = counts[is_training]
    try:
        opened = create_dataset(name, split=split, is_training=is_training, **options)
    except ImportError as error:  # there, but without something it needs itself
        raise ValueError(f"data set {name!r} needs the package {package}, which does not load: {error}") from error
    except RuntimeError as error:
        if prefix == "torch" and "not found" in str(error).lower():
            root = options["root"]
            raise FileNotFoundError(
                f"{name!r} is not in root {root!r}; data_options download=true fetches it there"
            ) from error
        if prefix == "wds":
            raise ValueError(f"{name!r} cannot be read: {error}; {_WDS_SPLITS}") from error
        raise
    except ValueError as error:
        if prefix == "hfids" and "length is unknown" in str(error):
            count = "train_num_samples" if is_training else "eval_num_samples"
            raise ValueError(
                f"{name!r} does not say how many samples its split {split!r} has: give data_options {count}"
            ) from error
        raise
    class_names = _class_names(opened, num_classes, name)
    if isinstance(opened, IterableImageDataset):
        opened.transform = transform
        if prefix == "wds":
            _check_shards(name, opened.reader)
        if prefix not in _SHARED:
            return StreamedImages(opened, class_names=class_names)
        return _SHARED[prefix](opened, class_names=class_names, name=f"{name} {split}", tolerated=tolerated)
    source = opened.reader if isinstance(opened, ImageDataset) else opened
    return ReadableImages(
        len(opened),
        source.__getitem__,
        partial(_sample_name, source, f"{name} {split}"),
        class_names=class_names,
        transform=transform,
        tolerated=tolerated,
    )


def _refuse_commands(*addresses: Any) -> None:
    """webdataset runs what stands behind `pipe:`, in a recipe or in the list of a set's shards as well."""
    for address in addresses:
        if "pipe:" in str(address):
            raise ValueError(
                f"{str(address)!r} holds 'pipe:', a command, which attnmix does not run: name a folder"
            )


def _check_shards(name: str, reader: Any) -> None:
    """Ask for local shards beforehand: a missing one would only be passed over."""
    _refuse_commands(*reader.split_info.filenames)
    for file in reader.split_info.filenames:
        path = os.path.join(reader.root, file)
        if "://" not in path and not os.path.exists(path):
            raise FileNotFoundError(f"{name!r} has no shard {path}")


def _is_installed(package: str) -> bool:
    return find_spec(package.replace("-", "_")) is not None


def _sample_name(source: Any, set_name: str, index: int) -> str:
    file = source.filename(index) if hasattr(source, "filename") else None
    return file or f"{set_name} sample {index}"


def _check_torchvision(name: str, split: str, options: Mapping[str, Any]) -> None:
    short = name.split("/", 1)[1].lower()
    if short not in _TORCHVISION:
        known = ", ".join(_TORCHVISION)
        raise ValueError(f"unknown torchvision data set {name!r}{nearest(short, _TORCHVISION)}; known: {known}")
    if "root" not in options:
        raise ValueError(f"{name!r} needs data_options root: the folder it lies in (or is to be fetched to)")
    if short in _TWO_PARTS and split not in _TWO_PART_SPLITS:
        known = ", ".join(_TWO_PART_SPLITS)
        raise ValueError(f"unknown split {split!r}{nearest(split, _TWO_PART_SPLITS)} of {name!r}; known: {known}")


def _class_names(opened: Any, num_classes: int | None, name: str) -> list[str]:
    names = names_by_index(getattr(getattr(opened, "reader", None), "class_to_idx", None) or {})
    if not names:  # torchvision; ImageNet has several words for a class
        classes = getattr(opened, "classes", None) or getattr(opened, "all_categories", None) or []
        names = [" / ".join(entry) if isinstance(entry, tuple) else str(entry) for entry in classes]
    if not names and num_classes is None:
        raise ValueError(f"{name!r} does not say its classes; give data_options num_classes")
    if not names:
        return [str(index) for index in range(int(num_classes or 0))]
    if num_classes not in (None, len(names)):
        raise ValueError(f"data_options num_classes {num_classes}: {name!r} has {len(names)} classes")
    return names
