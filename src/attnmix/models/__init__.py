"""Families that timm lacks, in timm's own registry: importing this makes `timm.create_model` know them.

There are no trained weights: `pretrained=True` finds none. Names and sizes are those of the papers.
"""

from attnmix.models import ca_swin, compact, pvt

MODELS = (*pvt.MODELS, *compact.MODELS, *ca_swin.MODELS)

__all__ = ["MODELS"]
