"""Pure tensors: what is drawn, where it is pasted, and what label follows. Knows no model."""

from attnmix.mixing.draws import Blend, Draw, Keep, MixSampler, Paste
from attnmix.mixing.grid import fold_tokens, grid_share, mask_to_grid
from attnmix.mixing.label_maps import LabelMaps, class_labels
from attnmix.mixing.masks import PasteMask
from attnmix.mixing.mixed import MixedBatch
from attnmix.mixing.regions import (
    attention_windows,
    boxes_to_mask,
    cutmix_boxes,
    even_cutmix_boxes,
    max_windows,
    min_windows,
    random_windows,
    scale_boxes,
    token_boxes,
    window_size,
    window_sums,
)
from attnmix.mixing.targets import mix_targets, soft_targets

__all__ = [
    "Blend",
    "Draw",
    "Keep",
    "LabelMaps",
    "MixSampler",
    "MixedBatch",
    "Paste",
    "PasteMask",
    "attention_windows",
    "boxes_to_mask",
    "class_labels",
    "cutmix_boxes",
    "even_cutmix_boxes",
    "fold_tokens",
    "grid_share",
    "mask_to_grid",
    "max_windows",
    "min_windows",
    "mix_targets",
    "random_windows",
    "scale_boxes",
    "soft_targets",
    "token_boxes",
    "window_size",
    "window_sums",
]
