"""Attention-guided image mixing for unmodified timm vision transformers.

The ten lines to know:

    model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    method = attnmix.create_method("smmix", num_classes=10)
    task = attnmix.MixTask(model, method)
    for images, labels in loader:
        out = task(images, labels)
        out["loss"].backward()
        ...
"""

from attnmix.attention import AttentionTap
from attnmix.methods import METHODS, Choice, MixMethod, create_method
from attnmix.mixing import MixedBatch
from attnmix.task import MixTask

__version__ = "0.1.0"

__all__ = ["METHODS", "AttentionTap", "Choice", "MixMethod", "MixTask", "MixedBatch", "create_method"]
