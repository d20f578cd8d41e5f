"""A model that questions are asked of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView


@dataclass
class Subject:
    """A model in evaluation mode on its device, and what must be known to ask it.

    Attributes:
        label: its name in tables and figures.
        model: takes normalised images `[B, C, H, W]` and gives logits `[B, classes]`.
        class_names: of its outputs: ImageNet synsets, names of folders, ...; empty where unknown.
        input_size: (channels, height, width) that it takes.
        mean: per channel, of images in [0, 1]; what `normalise` takes off.
        std: per channel; what `normalise` divides by.
        fresh: makes the same network with untrained weights, in evaluation mode on the same device.
        fingerprint: what tells these weights from others.
        method: the mixing method it was trained with, where known.
        method_options: that method's options.
        method_learnt: parameters trained for that method (AutoMix's Mix Block), by the keys of its state.
        resizing: how images come to its size: `crop_pct`, `crop_mode`, `interpolation`.
        view: how its tokens lie; None for a model whose attention cannot be read (a CNN).
        no_view: then, why.
    """

    label: str
    model: nn.Module
    class_names: Sequence[str]
    input_size: tuple[int, int, int]
    mean: Sequence[float]
    std: Sequence[float]
    fresh: Callable[[], nn.Module]
    fingerprint: str = ""
    method: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    method_learnt: dict[str, Any] = field(default_factory=dict)
    resizing: dict[str, Any] = field(default_factory=dict)
    view: BackboneView | None = field(init=False, default=None)
    no_view: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.model.eval()
        self._unsound = torch.zeros((), dtype=torch.int64, device=self.device)
        # on the device once: a copy to it for every batch would be waited for
        self._mean, self._std = (
            torch.tensor(list(values), device=self.device)[:, None, None] for values in (self.mean, self.std)
        )
        try:
            self.view = BackboneView(self.model)
        except ValueError as error:
            self.no_view = str(error)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def num_classes(self) -> int:
        """Outputs of the model."""
        return int(self.view.num_classes if self.view is not None else self.model.num_classes)  # type: ignore[arg-type]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that it takes."""
        return self.input_size[1], self.input_size[2]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of its final image tokens.

        Raises:
            ValueError: a model whose tokens are not known.
        """
        if self.view is None:
            raise ValueError(f"{self.label}: {self.no_view}")
        return self.view.grid_size(self.image_size)

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches that are dropped or moved.

        Of 16 pixels for images of 96 pixels or more, so that models of one image size compare (14x14 at 224, as in
        the papers). Of smaller images the model's own; for a CNN the most pieces up to 16.
        """
        height, width = self.image_size
        if min(height, width) >= 96 and height % 16 == width % 16 == 0:
            return height // 16, width // 16
        return self.grid if self.view is not None else (_pieces(height), _pieces(width))

    def logits(self, images: Tensor, columns: Tensor | None = None) -> Tensor:
        """Float32 logits `[B, K]` of normalised images, of the outputs `columns` `[K]` alone where given."""
        found = (self.model(images) if self.view is None else self.view(images)).float()
        self._unsound += (~found.isfinite()).any(dim=1).sum()
        return found if columns is None else found[:, columns.to(found.device)]

    def take_unsound(self) -> int:
        """For how many images since the last call some logit was NaN or infinite: their order says nothing."""
        count = int(self._unsound)
        self._unsound.zero_()
        return count

    def to_pixels(self, images: Tensor) -> Tensor:
        """Normalised images as pixel values, 0 to 1 from black to white."""
        return images * self._std.to(images) + self._mean.to(images)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixel values, 0 to 1, as the model takes them."""
        return (pixels - self._mean.to(pixels)) / self._std.to(pixels)

    def saliency(self, images: Tensor) -> Tensor:
        """What the last attention looks at on the final grid, `[B, N]`: class row, else image attention.

        Raises:
            ValueError: a model whose attention cannot be read.
        """
        if self.view is None:
            raise ValueError(f"{self.label}: {self.no_view}")
        with torch.no_grad(), self.view.open_tap((-1,)) as tap:
            self.view(images)
        read = self.view.class_attention if self.view.has_class_row else self.view.image_attention
        return read(tap, -1, images.shape[-2:])


def _pieces(side: int) -> int:
    """In how many patches the side of a CNN's small or odd image is cut."""
    return max(pieces for pieces in range(1, 17) if side % pieces == 0)
