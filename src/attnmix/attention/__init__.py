"""Attention of an unmodified model, read from outside while it runs."""

from attnmix.attention.tap import AttentionTap

__all__ = ["AttentionTap"]
