"""A frozen model beside the one under training: whose attention, or whose scores, are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView

SELF = "self"  # names the model under training, where another could be named


def frozen_model(
    provider: str | nn.Module, options: Mapping[str, Any] | None = None, *, role: str = "provider"
) -> nn.Module:
    """A model that is looked at and not trained.

    Args:
        provider: timm's name for it, the folder of an exported run, or a module, which is left as it is.
        options: of `timm.create_model`, for a name; `pretrained` is on by default.
        role: what it is called in messages.

    Raises:
        ValueError: a folder without a model, a name or options that timm cannot make one of.
    """
    options = dict(options or {})
    if isinstance(provider, nn.Module):
        return provider
    folders = [
        folder for folder in (Path(provider), Path(provider) / "model") if (folder / "config.json").is_file()
    ]
    if not folders and (Path(provider).exists() or provider.startswith((".", "/"))):
        raise ValueError(f"{role} {provider!r} holds no exported model (a run's folder has one in OUT/model)")
    name = f"local-dir:{folders[0]}" if folders else provider
    try:
        model = timm.create_model(name, **{"pretrained": True, **options})
    except Exception as error:  # unknown name, no network, weights that do not fit: all are the user's to mend
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{role} {provider!r} is neither the folder of a run nor a model that timm can make with options "
            f"{options}: {reason}"
        ) from error
    return model.requires_grad_(False)


def as_seen_by(images: Tensor, model: nn.Module, provider: nn.Module) -> Tensor:
    """Images as `model` takes them, normalised as `provider` was trained, where both models say how they were."""
    ours, theirs = (getattr(each, "pretrained_cfg", None) or {} for each in (model, provider))
    known = all(cfg.get(key) for cfg in (ours, theirs) for key in ("mean", "std"))
    if not known or all(tuple(ours[key]) == tuple(theirs[key]) for key in ("mean", "std")):
        return images

    def channel(values: Any) -> Tensor:
        return torch.tensor(values, dtype=images.dtype).to(images.device, non_blocking=True)[:, None, None]

    pixels = images * channel(ours["std"]) + channel(ours["mean"])
    return (pixels - channel(theirs["mean"])) / channel(theirs["std"])


def trial_size(view: BackboneView, other: nn.Module) -> tuple[int, int]:
    """A height and width on which another model can be tried out: what the model under training takes.

    Where that takes many sizes, the only one that the other takes, if it is one of them.
    """
    for size in (_only_size(view.model), _only_size(other)):
        try:
            if size is not None:
                view.grid_size(size)
                return size
        except ValueError:
            continue
    return view.layout.example_size


def _only_size(model: Any) -> tuple[int, int] | None:
    """The one image size that a model takes; None where it takes several, or does not say."""
    embed = getattr(model, "patch_embed", None)
    size = getattr(embed, "img_size", None)
    return (size[0], size[1]) if size is not None and getattr(embed, "strict_img_size", True) else None
