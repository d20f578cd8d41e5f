"""The trained model as a plain timm checkpoint: whoever uses it needs nothing of ours."""

from collections.abc import Sequence
from pathlib import Path

from timm.models import save_for_hf
from timm.utils import unwrap_model
from torch import nn

__all__ = ["export_model"]


def export_model(
    model: nn.Module, folder: Path, *, class_names: Sequence[str], crop_pct: float | None = None
) -> Path:
    """Write `config.json` and `model.safetensors`, for `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    The configuration holds what builds the model again (image and patch size, width, ...), its input size,
    mean, standard deviation and crop (`crop_pct`, null: the model's own), and the names of the classes.
    """
    save_for_hf(
        unwrap_model(model),
        str(folder),
        safe_serialization=True,
        model_config={"label_names": [str(name) for name in class_names]},
        data_config=None if crop_pct is None else {"crop_pct": crop_pct},
    )
    return folder
