"""How a model family lays out its tokens."""

from attnmix.backbone.view import BackboneView

__all__ = ["BackboneView"]
