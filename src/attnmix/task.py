"""`MixTask`: a model and a mixing method as one timm training task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from timm.models import group_parameters
from timm.task import TrainingTask
from timm.utils import ModelEmaV3, unwrap_model
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods import MixMethod
from attnmix.methods.base import Labels
from attnmix.methods.frozen import only_size
from attnmix.mixing import LabelMaps, MixedBatch, class_labels


class MixingModel(nn.Module):
    """Everything that is trained: the model and what the method adds to it. Its forward is a whole step."""

    def __init__(self, model: nn.Module, method: MixMethod) -> None:
        super().__init__()
        self.view = BackboneView(model)
        self.model = self.view.model
        self.method = method
        method.bind(self.view)

    def forward(self, images: Tensor, labels: Labels) -> dict[str, Any]:
        """See `MixTask.forward`."""
        out = self.method(self.view, images, labels)
        # a step that draws Mixup may leave what the method added unused: DistributedDataParallel wants all of it
        idle = [parameter.sum() for parameter in self.method.parameters() if parameter.requires_grad]
        return {**out, "loss": out["loss"] + 0.0 * torch.stack(idle).sum()} if idle else out

    def logits(self, images: Tensor) -> Tensor:
        """What the plain model gives, `[B, C]`; FSDP2 gathers its weights for calls of the whole only."""
        logits: Tensor = self.model(images)
        return logits

    def no_weight_decay(self) -> set[str]:
        """The model's own list, which timm's optimizer factory asks for."""
        names = self.model.no_weight_decay() if hasattr(self.model, "no_weight_decay") else set()
        return {f"model.{name}" for name in names}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], float]:
        """Parameter name -> layer, which timm's layer decay asks for: the model's own layers.

        What the method added goes with the model's head. A model that does not say: ValueError.
        """
        if not hasattr(self.model, "group_matcher"):
            raise ValueError(f"{self.view.name} does not say which layer a parameter is of: leave layer decay out")
        layers = group_parameters(self.model, self.model.group_matcher(coarse=coarse), reverse=True)
        return lambda name: layers.get(name.removeprefix("model."), max(layers.values()))


class MixTask(TrainingTask):
    """Trains a model on mixed images: drops into timm's training loop or any loop that calls a module.

    Everything, an extra forward included, happens inside one call, so one DistributedDataParallel around the
    task or its trainable module is right. Parameters that a method adds are trained and saved with the model's
    and are no part of `get_eval_model()`.

    Args:
        model: an unmodified timm model, or an image classifier of transformers, compiled or not.
        method: from `attnmix.create_method`.
        device: where the task is; by default the model's device.
        dtype: by default the model's parameters' type.
        verbose: kept for timm's loop.

    Raises:
        ValueError: the model and the method do not fit, by class count, token layout or what the method reads.
    """

    trainable_module: nn.Module
    trainable_module_ema: ModelEmaV3

    def __init__(
        self,
        model: nn.Module,
        method: MixMethod,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = False,
    ) -> None:
        like = next(model.parameters())
        super().__init__(device=device or like.device, dtype=dtype or like.dtype, verbose=verbose)
        self.trainable_module = MixingModel(model, method)
        if self.view.num_classes != method.num_classes:
            raise ValueError(
                f"the model has {self.view.num_classes} classes, the method {method.num_classes}; create the "
                f"model with num_classes={method.num_classes}, or the method with {self.view.num_classes}"
            )

    def forward(
        self, images: Tensor | None = None, labels: Labels | None = None, *, pixel_values: Tensor | None = None
    ) -> dict[str, Any]:
        """Mix a batch, run the model on it, and return the loss.

        Args:
            images: `[B, C, H, W]` float, left as they are.
            labels: `[B]` int64, or `[B, num_classes]` soft; `LabelMaps` for methods that take them.
            pixel_values: what transformers calls the images, so that its batches go in as they are:
                `task(**batch)`.

        Returns:
            `loss`, a scalar; `output`, logits `[B, num_classes]`, row i of image i; `target`,
            `[B, num_classes]` float32, rows sum to 1; `losses`, named scalars that sum to the loss; `stats`, named
            scalars to look at; `mixed`, the `MixedBatch`.

        Raises:
            ValueError: images, labels or their maps missing, or of another shape or type, a label outside
                0..C-1, a side that is no multiple of the patch.
        """
        images = pixel_values if images is None else images
        if images is None or labels is None:
            raise ValueError("a step needs images (or pixel_values) and labels")
        self._check(images, labels)
        self._draw_as_process()
        return self.trainable_module(images, labels)

    @torch.no_grad()
    def mix(self, images: Tensor, labels: Labels) -> MixedBatch:
        """Mix pixels only, to look at them; draws from the method's generator as a step does."""
        self._check(images, labels)
        self._draw_as_process()
        return self.method.mix(self.view, images, labels)

    @property
    def view(self) -> BackboneView:
        """The model as the methods see it."""
        return unwrap_model(self.trainable_module).view

    @property
    def method(self) -> MixMethod:
        """The mixing method."""
        return unwrap_model(self.trainable_module).method

    def prepare_distributed(self, device_ids: list | None = None, **ddp_kwargs: Any) -> MixTask:
        """Wrap the trainable module in DistributedDataParallel."""
        self.trainable_module = nn.parallel.DistributedDataParallel(
            self.trainable_module, device_ids=device_ids, **ddp_kwargs
        )
        return self

    def compile(self, backend: str = "inductor", mode: str | None = None, **options: Any) -> nn.Module:
        """Compile the model, both for whole forwards and where a method reads its final tokens."""
        module = unwrap_model(self.trainable_module)
        module.view = BackboneView(
            cast(nn.Module, torch.compile(self.view.model, backend=backend, mode=mode, **options))
        )
        return module.view.compiled

    def get_eval_model(self, module: nn.Module | None = None, ema: bool = False) -> nn.Module | None:
        """The plain timm model, without what the method added; `ema` for its moving average."""
        if module is not None:
            return module
        if ema:
            plain = self.trainable_module_ema.module if self.has_ema() else None
            return getattr(self, "eval_model_ema", plain)
        return self.view.model if self.view.compiled is None else self.view.compiled

    def setup_ema(
        self,
        decay: float = 0.9999,
        use_warmup: bool = False,
        device: torch.device | None = None,
        **options: Any,
    ) -> nn.Module:
        """Keep a moving average of the model; what the method added is not averaged, as nothing uses it."""
        self.trainable_module_ema = ModelEmaV3(
            self.view.model, decay=decay, use_warmup=use_warmup, device=device, **options
        )
        return self.trainable_module_ema

    def update_ema(self, step: int | None = None) -> None:
        """Move the average towards the model."""
        if self.has_ema():
            self.trainable_module_ema.update(self.view.model, step=step)

    def get_clip_parameters(self, exclude_head: bool = False) -> list[nn.Parameter]:
        """Parameters whose gradients are clipped; adaptive clipping leaves out the model's last two, its head."""
        of_model = list(self.view.model.parameters())
        return [*(of_model[:-2] if exclude_head else of_model), *self.method.parameters()]

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """What a checkpoint needs beside the model: the method's parameters and its generators' states."""
        if ema:
            return {}
        return {"method": self.method.state_dict(), **self.method.get_draws()}

    def load_task_state(
        self,
        state: dict[str, Any] | None,
        strict: bool = True,
        module: nn.Module | None = None,
        ema: bool = False,
    ) -> None:
        """Put back what `get_task_state` gave."""
        if state and not ema:
            self.method.load_state_dict(state["method"], strict=strict)
            self.method.set_draws(state)
            if "kinds" in state and self._rank():  # the state is the first process's
                self.method.draw_on_as(self._rank())

    def _draw_as_process(self) -> None:
        """Once there are several processes: the kinds of steps as all of them, boxes as none of the others."""
        if self.method.kinds is self.method.generator and self._several():
            self.method.draw_as(self._rank())

    @staticmethod
    def _several() -> bool:
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def _rank(self) -> int:
        return dist.get_rank() if self._several() else 0

    def _check(self, images: Tensor, labels: Labels) -> None:
        if images.ndim != 4 or not images.is_floating_point():
            raise ValueError(
                f"images of shape {tuple(images.shape)} and type {images.dtype}: want [B, C, H, W] floats"
            )
        count = len(class_labels(labels))
        if count != len(images):
            raise ValueError(f"{len(images)} images but {count} labels")
        if isinstance(labels, LabelMaps):
            classes, scores = tuple(labels.classes.shape), tuple(labels.scores.shape)
            if classes != scores or len(classes) != 4 or classes[0] != count:
                raise ValueError(
                    f"label maps with classes of shape {classes} and scores of {scores}: want both as "
                    f"[{count}, k, h, w]"
                )
        height, width = images.shape[-2:]
        self.view.token_grid_size((height, width))
        taken = only_size(self.view.model)
        if taken not in (None, (height, width)):
            raise ValueError(
                f"images of {height} x {width} pixels, but {self.view.name} takes {taken[0]} x {taken[1]} only: "
                "create it with that img_size, or with dynamic_img_size=True"
            )
