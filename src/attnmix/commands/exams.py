"""What models are examined on: the data that was typed, opened as each model takes it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from torch.utils.data import IterableDataset

from attnmix.commands.sources import Source
from attnmix.data import LabelledImages, create_evaluation_set
from attnmix.data.annotations import EmbeddedTruth, open_annotations
from attnmix.data.class_names import match_classes
from attnmix.data.transforms import evaluation_transform
from attnmix.data.voc import open_voc
from attnmix.evaluation.exam import Exam, ImageSet, Question, Truth
from attnmix.evaluation.subject import Subject


@dataclass(frozen=True)
class Material:
    """The data of an evaluation, by name; one for all models.

    Attributes:
        data: as `create_evaluation_set` takes it.
        split: None: as `create_evaluation_set` chooses.
        data_options: options of the data set.
        shifted: other images of the same classes, by name: folders, or DATA@SPLIT.
        outliers: images of none of the classes: a folder, or DATA@SPLIT.
        annotations: a folder of XML files or a COCO file about `data`.
        voc: a folder of VOC's layout.
        voc_split: of that folder.
        saliency: the model whose attention says what is salient, as it was typed.
        limit: the most images of each set.
        seed: of what is drawn.
    """

    data: str
    split: str | None = None
    data_options: dict[str, Any] = field(default_factory=dict)
    shifted: dict[str, str] = field(default_factory=dict)
    outliers: str | None = None
    annotations: str | None = None
    voc: str | None = None
    voc_split: str = "val"
    saliency: str | None = None
    limit: int | None = None
    seed: int = 0


# What of the material stands behind an exam's attribute, beside its fingerprint.
_BEHIND: dict[str, tuple[str, ...]] = {
    "truth": ("annotations",),
    "scenes": ("voc_split",),
    **dict.fromkeys(("shifted", "outliers", "saliency", "method"), ()),  # by their fingerprints alone
}


def answer_settings(material: Material, exam: Exam, question: Question) -> dict[str, Any]:
    """What an answer depends on: kept with it, and compared before it is used again."""
    used = ["split", "data_options", "limit", "seed"]
    used += [name for part in question.uses for name in _BEHIND[part]]
    settings = {"model": exam.subject.fingerprint, **{name: getattr(material, name) for name in used}}
    if "method" in question.uses:
        settings["method"] = [exam.subject.method, exam.subject.method_options]
    for part in ("data", *question.uses):
        if part in exam.fingerprints:
            settings[f"contents of {part}"] = exam.fingerprints[part]
    return settings


def common_data(sources: Sequence[Source]) -> dict[str, Any]:
    """The data that all sources' runs were evaluated on, as `Material` takes it.

    Raises:
        ValueError: runs of different data, or no run among them.
    """
    recipes = {source.label: source.recipe for source in sources if source.recipe is not None}
    found = {
        label: {"data": recipe.data, "split": recipe.eval_split, "data_options": recipe.data_options}
        for label, recipe in recipes.items()
    }
    if not found:
        raise ValueError(
            "--data is needed where no training run says it: a folder, or a name of `attnmix list data`"
        )
    first, *others = found
    for other in others:
        if found[other] != found[first]:
            raise ValueError(
                f"{first} was evaluated on {found[first]}, {other} on {found[other]}: say with --data what all "
                "are to be asked on"
            )
    return found[first]


def parse_shifted(typed: str | None) -> dict[str, str]:
    """Read `NAME=FOLDER,...` (or DATA@SPLIT for a folder); a folder alone is its own name.

    Raises:
        ValueError: a name given twice.
    """
    found: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in (typed or "").split(","))):
        name, equals, folder = word.partition("=")
        if not equals or Path(word).expanduser().is_dir():
            name, folder = Path(word).name, word
        if name in found:
            raise ValueError(f"shifted names {name!r} twice: give each folder a name, as in a={folder}")
        found[name] = folder
    return found


def create_exam(
    subject: Subject, material: Material, *, saliency: Subject | None, batch_size: int, workers: int
) -> Exam:
    """Open the data as the subject takes it.

    Raises:
        ValueError, FileNotFoundError: data that is not there, or whose classes the model lacks.
    """
    images, transform = _open(subject, material.data, material.split, material.data_options, batch_size)
    if material.annotations is not None:
        truth: Truth | None = open_annotations(Path(material.annotations).expanduser(), images, transform)
    else:
        truth = EmbeddedTruth(images, transform) if hasattr(images, "masks") else None
    shifted = {}
    for name, typed in material.shifted.items():
        others, _ = _open(subject, *_split_of(typed), {}, batch_size)
        shifted[name] = _matched(subject, others, typed)
    outliers = None
    if material.outliers is not None:
        outliers, _ = _open(subject, *_split_of(material.outliers), {}, batch_size)
    scenes = None
    if material.voc is not None:
        of_scenes = evaluation_transform(
            subject.input_size, mean=subject.mean, std=subject.std, **subject.resizing
        )
        scenes = open_voc(Path(material.voc).expanduser(), split=material.voc_split, transform=of_scenes)
    fingerprints: dict[str, Any] = {
        "data": _fingerprint(images),
        "shifted": {name: _fingerprint(others.images) for name, others in shifted.items()},
        "outliers": None if outliers is None else _fingerprint(outliers),
        "scenes": None if scenes is None else _fingerprint(scenes[0]),
        "saliency": None if saliency is None else saliency.fingerprint,
    }
    return Exam(
        subject,
        _matched(subject, images, material.data),
        truth=truth,
        shifted=shifted,
        outliers=outliers,
        scenes=scenes,
        saliency=saliency,
        batch_size=batch_size,
        workers=workers,
        seed=material.seed,
        limit=material.limit,
        fingerprints=fingerprints,
    )


def _fingerprint(images: LabelledImages) -> str:
    """How many images of which classes, and a digest of their names; where they lie does not count."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(images, IterableDataset):
        return f"a stream of {images.num_classes} classes"
    digest.update("\n".join(images.class_names).encode())
    for number in range(len(images)):
        digest.update("/".join(PurePath(images.name_of(number)).parts[-2:]).encode())
    what = getattr(images, "split", "")  # of the embedded sets, whose images have no names
    return f"{len(images)} images of {images.num_classes} classes {what}".strip() + f", {digest.hexdigest()}"


def _split_of(typed: str) -> tuple[str, str | None]:
    """DATA@SPLIT in its two parts; a folder's name may hold an @."""
    if Path(typed).expanduser().exists():
        return typed, None
    name, _, split = typed.partition("@")
    return name, split or None


def _open(
    subject: Subject, typed: str, split: str | None, options: Mapping[str, Any], batch_size: int
) -> tuple[LabelledImages, Any]:
    return create_evaluation_set(
        typed,
        input_size=subject.input_size,
        mean=subject.mean,
        std=subject.std,
        split=split,
        data_options=options,
        batch_size=batch_size,
        **subject.resizing,
    )


def _matched(subject: Subject, images: LabelledImages, where: str) -> ImageSet:
    classes = subject.num_classes
    columns = match_classes(images.class_names, subject.class_names, num_classes=classes, where=where)
    return ImageSet(images, None if columns is None else columns.to(subject.device))
