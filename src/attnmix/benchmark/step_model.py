"""The model whose steps are measured, and a batch of noise for it."""

import re
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from attnmix._nearest import nearest
from attnmix.backbone import BackboneView
from attnmix.benchmark.step_settings import StepSettings


def check_model(name: str, settings: StepSettings) -> None:
    """Raise ValueError for a model that is unknown, of no known layout or not for this image size.

    No weights are made.
    """
    with torch.device("meta"):
        model = _create(name, settings)
    BackboneView(model).token_grid_size(_image_size(model, settings))


def model_and_batch(name: str, settings: StepSettings) -> tuple[nn.Module, Tensor, Tensor]:
    """A fresh model in training mode, noise `[B, C, H, W]` and labels `[B]`, on the device; all of the seed.

    The model has its own number of classes and no stochastic depth, which would make steps differ.

    Raises:
        ValueError: as `check_model`.
    """
    torch.manual_seed(settings.seed)
    model = _create(name, settings).to(settings.torch_device)
    channels = resolve_model_data_config(model)["input_size"][0]
    images = torch.randn(settings.batch_size, channels, *_image_size(model, settings))
    labels = torch.randint(BackboneView(model).num_classes, (settings.batch_size,))
    images, labels = images.to(settings.torch_device), labels.to(settings.torch_device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.to(memory_format=torch.channels_last)
    return model.train(), images, labels


def _create(name: str, settings: StepSettings) -> nn.Module:
    if not timm.is_model(name):
        raise ValueError(f"unknown model {name!r}{nearest(name, timm.list_models())}; see `attnmix list models`")
    options: dict[str, Any] = {"drop_path_rate": 0.0}
    if settings.image_size is not None:
        options["img_size"] = settings.image_size
    while True:
        try:
            model: nn.Module = timm.create_model(name, **options)
            return model
        except TypeError as error:  # a model made for any size takes none, one without residuals drops no path
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown[1] not in options:
                raise
            del options[unknown[1]]
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"model {name!r} cannot be made with {options}: {error}") from error


def _image_size(model: nn.Module, settings: StepSettings) -> tuple[int, int]:
    if settings.image_size is not None:
        return settings.image_size
    _, height, width = resolve_model_data_config(model)["input_size"]
    return height, width
