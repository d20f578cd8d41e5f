"""One file per paper; the table that lists them; and the way to make one by name."""

from attnmix.methods.base import MixMethod
from attnmix.methods.choice import Choice
from attnmix.methods.registry import METHODS, create_method, method_options

__all__ = ["METHODS", "Choice", "MixMethod", "create_method", "method_options"]
