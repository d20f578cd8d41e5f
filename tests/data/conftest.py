from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image


def save_image(path: Path, size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).convert(mode).save(path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """train/{cat,dog} and val/{cat,dog} of JPEGs of mixed sizes, one of them grey."""

    def make(per_class: int = 3) -> Path:
        for split in ("train", "val"):
            for name in ("cat", "dog"):
                for index in range(per_class):
                    size = (24 + 8 * index, 40 - 4 * index)
                    save_image(tmp_path / split / name / f"{index}.jpg", size, "L" if index == 1 else "RGB", index)
        return tmp_path

    return make
