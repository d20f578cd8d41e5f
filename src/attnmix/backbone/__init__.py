"""How a model family lays out its tokens."""

from attnmix.backbone.modes import evaluating
from attnmix.backbone.view import BackboneView

__all__ = ["BackboneView", "evaluating"]
