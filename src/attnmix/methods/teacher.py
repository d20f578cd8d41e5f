"""A frozen classifier asked what it sees in each place of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView, evaluating
from attnmix.methods.frozen import SELF, as_seen_by, frozen_model, trial_images


class Teacher:
    """Class scores for every place of an image, by a frozen model or by the model under training as it stands.

    A model that is given by name is made in `bind`, not before.

    Args:
        teacher: timm's name of a model, CNN or transformer; the folder of an exported run; a module; or `self`,
            the model under training, in evaluation mode.
        options: of `timm.create_model`, for a name; `pretrained` is on by default.

    Raises:
        ValueError: neither a name nor a module; options without a name.
    """

    def __init__(self, teacher: str | nn.Module, options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(teacher, str | nn.Module):
            raise ValueError(f'teacher is {teacher!r}, but must be a model\'s name, a folder, a module or "self"')
        if options and not isinstance(teacher, str):
            raise ValueError(f"teacher_options {dict(options)} need a teacher given by name")
        if options and teacher == SELF:
            raise ValueError(f'teacher_options {dict(options)}: teacher="self" is the model under training')
        self.teacher = teacher
        self.options = dict(options or {})
        # no submodule of the method: it is neither trained nor saved
        self.reader: MapReader | None = None

    def bind(self, view: BackboneView, *, num_classes: int) -> None:
        """Make it, and check that it scores these classes, on images of the size that the model takes.

        A model that takes images of many sizes says only at the first step which it is given.

        Raises:
            ValueError: a model that cannot be made, of another class count or image size, or without a map of
                features.
        """
        if self.teacher != SELF and self.reader is None:
            self.reader = MapReader(frozen_model(self.teacher, self.options, role="teacher"))
        asked = view if self.reader is None else self.reader
        try:
            scores = self.score_maps(view, trial_images(view, asked.model))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # shapes that do not fit, somewhere inside
            raise ValueError(_not_taken(asked.name, error)) from error
        if scores.shape[1] != num_classes:
            raise ValueError(
                f"the teacher {asked.name} predicts {scores.shape[1]} classes, not {num_classes}: give one "
                "trained on the same classes"
            )

    @torch.no_grad()
    def score_maps(self, view: BackboneView, images: Tensor) -> Tensor:
        """Logits `[B, C, h, w]` on the teacher's own grid; images `[B, 3, H, W]` as `view`'s model takes them.

        See `MapReader`.
        """
        if self.teacher == SELF:
            return MapReader(view.model, view)(images)
        assert self.reader is not None, "a teacher is bound before it is asked"
        model = self.reader.model
        like = next(model.parameters())
        if like.device != images.device:
            model.to(images.device)
        return self.reader(as_seen_by(images.to(like.dtype), view.model, model))


class MapReader:
    """A classifier's own head on the features of every place, in evaluation mode, without gradient.

    Args:
        model: an image classifier whose features come as tokens on a grid or as a map: timm's and transformers'
            vision transformers, timm's CNNs.
        view: of the model, if there is one already.
    """

    def __init__(self, model: nn.Module, view: BackboneView | None = None) -> None:
        self.model: Any = model
        self.name = type(model).__name__
        self.view = view
        if view is None:
            try:
                self.view = BackboneView(model)
            except ValueError:  # no transformer: a map of features, we hope
                self.view = None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Logits for every place; the model is given back as it was.

        Args:
            images: `[B, 3, H, W]`.

        Returns:
            `[B, C, h, w]` float32 on the grid of the last features. The mean over classes is 0 in every place,
            which changes no softmax and gives the sign of a score a meaning for any model.

        Raises:
            ValueError: a model of no such features, or one that does not take this image size.
        """
        try:
            with evaluating(self.model):
                scores = self._tokens(images) if self.view is not None else self._map(images)
        except AssertionError as error:  # timm's, for another image size
            raise ValueError(_not_taken(self.name, error)) from error
        scores = scores.float()
        return scores - scores.mean(dim=1, keepdim=True)

    def _tokens(self, images: Tensor) -> Tensor:
        assert self.view is not None
        grid = self.view.grid_size(images.shape[-2:])
        _, tokens = self.view.forward_tokens(images)
        scores = self.view.classify(tokens.flatten(0, 1))
        return scores.unflatten(0, tokens.shape[:2]).transpose(1, 2).unflatten(2, grid)

    def _map(self, images: Tensor) -> Tensor:
        reads = all(hasattr(self.model, name) for name in ("forward_features", "forward_head"))
        features = self.model.forward_features(images) if reads else images
        if not reads or not isinstance(features, Tensor) or features.ndim != 4:
            raise ValueError(f"the teacher {self.name} gives no map of features: use a timm CNN or ViT")
        # each place becomes an image of a single pixel, whose pooling is itself
        if getattr(self.model, "output_fmt", "NCHW") == "NHWC":
            batch, height, width, _ = features.shape
            places = features.flatten(0, 2)[:, None, None, :]
        else:
            batch, _, height, width = features.shape
            places = features.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]
        return self.model.forward_head(places).unflatten(0, (batch, height, width)).permute(0, 3, 1, 2)


def score_maps(model: nn.Module, images: Tensor) -> Tensor:
    """Logits `[B, C, h, w]` of a classifier in every place of images `[B, 3, H, W]`: see `MapReader`."""
    return MapReader(model)(images)


def _not_taken(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".")
    return (
        f"the teacher {name} does not take these images: {reason}; give one made for their size "
        "(teacher_options img_size, for many)"
    )
