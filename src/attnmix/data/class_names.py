"""Which output of a model is which class of a data set, by their names."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from attnmix._nearest import nearest

_SYNSET = re.compile(r"n\d{8}")


def match_classes(
    of_data: Sequence[str], of_model: Sequence[str], *, num_classes: int, where: str
) -> Tensor | None:
    """The model's output for each class of a data set, int64 `[K]`; None where they are the same, in order.

    Args:
        of_data: names of the data's classes, by label.
        of_model: names of the model's outputs; empty where unknown.
        num_classes: outputs of the model.
        where: how messages speak of the data.

    Raises:
        ValueError: a class that the model lacks, or cannot be told from another; a model of unknown names and
            another number of classes.
    """
    if not of_model:
        if len(of_data) == num_classes:
            return None
        raise ValueError(
            f"{where} has {len(of_data)} classes and the model {num_classes} outputs of unknown names: without "
            "names the numbers must agree"
        )
    if len(of_model) != num_classes:
        raise ValueError(f"{len(of_model)} names for the model's {num_classes} outputs: expected one each")
    of_data = _as_synsets(of_data, of_model)
    if list(of_data) == list(of_model):
        return None
    outputs = {name: output for output, name in enumerate(of_model)}
    lacking = [name for name in of_data if name not in outputs]
    if lacking:
        raise ValueError(
            f"{where}: {len(lacking)} of its {len(of_data)} classes are not among the model's {num_classes}: "
            f"{_some(lacking)}; the model's are {_some(of_model)}{_near(lacking[0], of_model)}"
        )
    for kind, names in ((f"classes of {where}", of_data), ("outputs of the model", of_model)):
        twice = [name for name, count in Counter(names).items() if count > 1 and name in of_data]
        if twice:
            raise ValueError(f"several {kind} are named {_some(twice)}: expected another name for each")
    return torch.tensor([outputs[name] for name in of_data])


def _as_synsets(of_data: Sequence[str], of_model: Sequence[str]) -> Sequence[str]:
    """Names of a data set that has ImageNet's words ("tench, Tinca tinca") as the synsets that the model has.

    Of two synsets of the same words (crane, maillot) the first comes first, as in ImageNet's order. As they are
    where the model has no synsets, or where not all of the words are ImageNet's.
    """
    if not all(_SYNSET.fullmatch(name) for name in of_model) or all(_SYNSET.fullmatch(name) for name in of_data):
        return of_data
    subset = infer_imagenet_subset({"num_classes": len(of_model)})
    descriptions = ImageNetInfo(subset).label_descriptions(as_dict=True) if subset else {}
    by_words: dict[str, list[str]] = {}
    for synset in of_model:
        by_words.setdefault(_words(descriptions.get(synset, synset)), []).append(synset)
    left = Counter(_words(name) for name in of_data)
    if any(left[words] > len(by_words.get(words, ())) for words in left):
        return of_data
    ambiguous = [words for words in left if left[words] < len(by_words[words])]
    if ambiguous:
        raise ValueError(f"{ambiguous[0]!r} is the name of {len(by_words[ambiguous[0]])} of the model's classes")
    return [by_words[_words(name)].pop(0) for name in of_data]


def _words(name: str) -> str:
    """Words of a class, however they are separated."""
    return ", ".join(word.strip() for word in re.split(r"[,/]", name))


def model_class_names(model: nn.Module) -> list[str]:
    """Names of a model's outputs, as far as they are known; else none.

    What the model's configuration says (`label_names`, which our exports write); else, of a model with as many
    classes as one of ImageNet's variants has, the synsets, in timm's order.
    """
    num_classes = getattr(model, "num_classes", None)
    configuration = getattr(model, "pretrained_cfg", None) or {}
    if isinstance(configuration, Mapping):
        told = configuration.get("label_names")
    else:
        told = getattr(configuration, "label_names", None)
    names = _listed(told or ())
    if names and num_classes in (None, len(names)):
        return names
    subset = infer_imagenet_subset({"num_classes": num_classes})
    return list(ImageNetInfo(subset).label_names()) if subset else []


def _listed(told: Iterable[Any] | Mapping[Any, Any]) -> list[str]:
    """Names by output, whether told as a list or, as JSON may, by number."""
    if isinstance(told, Mapping):
        told = [name for _, name in sorted(told.items(), key=lambda item: int(item[0]))]
    return [str(name) for name in told]


def _some(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def _near(name: str, of_model: Sequence[str]) -> str:
    """A hint; synsets that look alike have nothing to do with each other."""
    if not all(_SYNSET.fullmatch(known) for known in of_model):
        return nearest(name, of_model)
    return "" if _SYNSET.fullmatch(name) else "; expected class folders named by ImageNet synsets"
