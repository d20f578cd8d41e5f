"""How strongly a network answers in each patch of an image: what AttentiveMix goes by."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView, evaluating
from attnmix.methods.frozen import SELF, as_seen_by, channels_of, frozen_model, trial_images
from attnmix.methods.guide import ATTENTIONS, AttentionGuide, check_block
from attnmix.mixing import fold_tokens
from attnmix.mixing.draws import check_choice
from attnmix.mixing.whole_numbers import is_whole


def feature_saliency(features: Tensor, *, channels: str = "mean") -> Tensor:
    """How strongly a CNN answers in each place: its last map `[B, C, h, w]` -> `[B, h, w]` float32.

    Args:
        features: of the last stage.
        channels: `mean` of all, or the `last` one alone (the authors' code).
    """
    return features.float().mean(dim=1) if channels == "mean" else features[:, -1].float()


class PatchSaliency:
    """A score for every patch of an image: by a frozen model, or by the model under training as it stands.

    The patches are the places of the last map of whoever looks. Nothing is made before `bind`.

    Arguments as `AttentiveMix`'s.

    Raises:
        ValueError: unknown names; options of a provider where there is none.
    """

    def __init__(
        self,
        provider: str | nn.Module,
        options: Mapping[str, Any] | None,
        *,
        size: int | None,
        attention: str | None,
        block: int,
        channels: str,
    ) -> None:
        if attention is not None:
            check_choice("attention", attention, tuple(name for name in ATTENTIONS if name != "random"))
        check_choice("channels", channels, ("mean", "last"))
        check_block(block)
        own = isinstance(provider, str) and provider == SELF
        if options and (own or not isinstance(provider, str)):
            raise ValueError(f"provider_options {dict(options)} need a provider given by name")
        if size is not None and own:
            raise ValueError(f'provider_size is {size}, but provider="self" sees the images of its training')
        if size is not None and not (is_whole(size) and size > 0):
            raise ValueError(f"provider_size is {size}, but must be a number of pixels")
        self.provider = provider
        self.options = options
        self.size = size
        self.attention = attention
        self.block = block
        self.channels = channels
        self.own = own
        # no submodule of the method: it is neither trained nor saved
        self.models: tuple[Any, ...] = ()
        self.view: BackboneView | None = None
        self.guide: AttentionGuide | None = None

    def bind(self, view: BackboneView) -> None:
        """Make the provider, and check that it says something of each place of the images that the model takes.

        Raises:
            ValueError: it cannot be made, does not take these images or gives no map; options of another kind of
                model; attention that cannot be read.
        """
        if self.own:
            self._make_guide(view)
            return
        if not self.models:
            self.models = (self._make(),)
        model = self.models[0]
        try:
            self.view = BackboneView(model)
        except ValueError:  # no transformer whose attention we can read: then its features have to be a map
            self._refuse_reading(model)
        if self.view is not None:
            self._make_guide(self.view)
        self._try_out(view)

    @torch.no_grad()
    def __call__(self, view: BackboneView, images: Tensor) -> Tensor:
        """Scores `[B, h, w]` of images `[B, C, H, W]` as `view`'s model takes them."""
        if self.own:
            return self._attention(view, images)
        model = self.models[0].to(images.device)
        seen = as_seen_by(self._resized(images).to(next(model.parameters()).dtype), view.model, model)
        if self.view is not None:
            try:
                saliency = self._attention(self.view, seen)
            except ValueError as error:
                raise self._unfit(images, error) from error
        else:
            saliency = feature_saliency(_last_map(model, seen), channels=self.channels)
        if saliency[0].numel() < 2:
            height, width = images.shape[-2:]
            raise ValueError(
                f"the provider {type(model).__name__} has a single patch for images of {height} x {width} pixels: "
                'show them to it larger, as provider_size=224, or use provider="self"'
            )
        return saliency

    def _make(self) -> nn.Module:
        try:
            return frozen_model(self.provider, self.options)
        except ValueError as error:
            raise ValueError(
                f'{error}. Give provider="self", the model under training, or the folder of an exported run'
            ) from error

    def _make_guide(self, view: BackboneView) -> None:
        if self.channels != "mean":
            raise ValueError(f'channels="{self.channels}" is of a CNN\'s map, but {view.name} is a transformer')
        attention = self.attention or ("class" if view.has_class_row else "image")
        self.guide = AttentionGuide(attention, self.block)
        self.guide.bind(view, reader="AttentiveMix")

    def _refuse_reading(self, model: nn.Module) -> None:
        for option, value, default in (("attention", self.attention, None), ("block", self.block, -1)):
            if value != default:
                raise ValueError(
                    f"{option} is {value!r}, but the provider {type(model).__name__} is no transformer whose "
                    f"attention can be read: leave {option} out"
                )

    def _try_out(self, view: BackboneView) -> None:
        """Look at an example, so that what does not fit is known before training."""
        example = trial_images(view, self.models[0])
        try:
            self(view, example)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError) as error:  # timm's and PyTorch's, for what it does not take
            raise self._unfit(example, error) from error

    def _unfit(self, images: Tensor, error: Exception) -> ValueError:
        model = self.models[0]
        name, takes = type(model).__name__, channels_of(model)
        channels, height, width = images.shape[1:]
        if takes not in (None, channels):
            return ValueError(
                f"the provider {name} takes images of {takes} channels, but the model under training {channels}: "
                'give one made for as many (provider_options in_chans, for timm\'s), or provider="self"'
            )
        return ValueError(
            f"the provider {name} does not take images of {height} x {width} pixels "
            f"(provider_size shows them to it at another size): {error}"
        )

    def _attention(self, view: BackboneView, images: Tensor) -> Tensor:
        assert self.guide is not None
        grid = view.grid_size(images.shape[-2:])
        return fold_tokens(self.guide.clean_attention(view, images), grid)

    def _resized(self, images: Tensor) -> Tensor:
        if self.size is None:
            return images
        height, width = images.shape[-2:]
        scale = self.size / min(height, width)
        size = (round(height * scale), round(width * scale))
        return F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)


def _last_map(model: Any, images: Tensor) -> Tensor:
    """The last features `[B, C, h, w]` of a timm model, as at inference."""
    name = type(model).__name__
    if not hasattr(model, "forward_features"):
        raise ValueError(f"the provider {name} gives no map of features: use a timm CNN or transformer")
    with evaluating(model):
        features = model.forward_features(images)
    if not isinstance(features, Tensor) or features.ndim != 4:
        raise ValueError(
            f"the provider {name} gives no map of features, and its attention cannot be read: use a timm CNN, or "
            "a transformer of a supported family"
        )
    return features.permute(0, 3, 1, 2) if getattr(model, "output_fmt", "NCHW") == "NHWC" else features
