"""A frozen model beside the one under training: whose attention, or whose scores, are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from attnmix._nearest import nearest_word
from attnmix.backbone import BackboneView
from attnmix.mixing.whole_numbers import is_whole

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
        reason = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        raise ValueError(f"{_what_is_wrong(provider, options, role)}: {reason}") from error
    return model.requires_grad_(False)


def _what_is_wrong(provider: str, options: Mapping[str, Any], role: str) -> str:
    """Why timm may have made no model by this name: no folder, no such model, or one without its weights."""
    if timm.is_model(provider.partition(".")[0]):
        if options.get("pretrained", True):
            return f"{role} {provider!r} cannot be made of timm's weights (no connection, or none published?)"
        return f"{role} {provider!r} cannot be made by timm with options {dict(options)}"
    near = nearest_word(provider, timm.list_models(), cutoff=0.6)
    hint = f" (did you mean {near!r}?)" if near else ""
    folder = f"there is no folder {provider!r}, and " if "/" in provider else ""
    return f"{folder}{role} {provider!r} is neither the folder of a run nor a model that timm can make{hint}"


def as_seen_by(images: Tensor, model: nn.Module, provider: nn.Module) -> Tensor:
    """Images as `model` takes them, normalised as `provider` was trained.

    As they are, unless both models say how they were normalised, and say it for as many channels.
    """
    ours, theirs = (getattr(each, "pretrained_cfg", None) or {} for each in (model, provider))
    known = all(len(cfg.get(key) or ()) == images.shape[1] for cfg in (ours, theirs) for key in ("mean", "std"))
    if not known or all(tuple(ours[key]) == tuple(theirs[key]) for key in ("mean", "std")):
        return images

    def channel(values: Any) -> Tensor:
        return torch.tensor(values, dtype=images.dtype).to(images.device, non_blocking=True)[:, None, None]

    pixels = images * channel(ours["std"]) + channel(ours["mean"])
    return (pixels - channel(theirs["mean"])) / channel(theirs["std"])


def channels_of(model: Any) -> int | None:
    """How many channels the images have that a model takes, where it says so.

    By its own word, else its first convolution's, else timm's pretrained_cfg: this stays at 3 for models made for
    another number, so that it counts last, and only where mean and std are for as many.
    """
    for said in (getattr(model, "in_chans", None), getattr(getattr(model, "config", None), "num_channels", None)):
        if is_whole(said):
            return said
    for module in getattr(model, "patch_embed", model).modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, *_ = config.get("input_size") or (None,)
    alike = all(len(config.get(key) or ()) == channels for key in ("mean", "std"))
    return channels if alike else None


def trial_images(view: BackboneView, other: nn.Module) -> Tensor:
    """Two black images on which another model can be tried out, as the model under training takes them.

    Of 3 channels where that does not say how many; for their size see `trial_size`.
    """
    like = next(view.model.parameters())
    size = (2, channels_of(view.model) or 3, *trial_size(view, other))
    return torch.zeros(size, device=like.device, dtype=like.dtype)


def trial_size(view: BackboneView, other: nn.Module) -> tuple[int, int]:
    """A height and width on which another model can be tried out: what the model under training takes.

    Where that takes many sizes, the only one that the other takes, if it is one of them.
    """
    for size in (only_size(view.model), only_size(other)):
        try:
            if size is not None:
                view.grid_size(size)
                return size
        except ValueError:
            continue
    return view.layout.example_size


def only_size(model: Any) -> tuple[int, int] | None:
    """The one image size that a model takes; None where it takes several, or does not say."""
    embed = getattr(model, "patch_embed", None)
    size = getattr(embed, "img_size", None)
    return (size[0], size[1]) if size is not None and getattr(embed, "strict_img_size", True) else None
