"""The trained model as a plain timm checkpoint: whoever uses it needs nothing of ours."""

from collections.abc import Sequence
from pathlib import Path

from timm.models import save_for_hf
from timm.utils import unwrap_model
from torch import nn

__all__ = ["CARD", "FILES", "export_model"]

CARD = "README.md"
FILES = ("config.json", "model.safetensors", CARD)


def export_model(
    model: nn.Module,
    folder: Path,
    *,
    class_names: Sequence[str],
    crop_pct: float,
    crop_mode: str = "center",
    interpolation: str = "bicubic",
    card: str | None = None,
) -> Path:
    """Write `config.json` and `model.safetensors`; with `card`, its text as the model card `README.md`.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` reads them; without `pretrained` timm builds the
    same model with fresh weights. The configuration holds what builds it (image and patch size, width, ...),
    its input size, mean and standard deviation, how it was evaluated (`crop_pct`, `crop_mode`,
    `interpolation`) and the names of the classes.
    """
    save_for_hf(
        unwrap_model(model),
        str(folder),
        safe_serialization=True,
        model_config={"label_names": [str(name) for name in class_names]},
        data_config={"crop_pct": crop_pct, "crop_mode": crop_mode, "interpolation": interpolation},
    )
    if card is not None:
        (folder / CARD).write_text(card, encoding="utf-8")
    return folder
