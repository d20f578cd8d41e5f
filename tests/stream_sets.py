"""Tiny real streams on disk: webdataset shards and a Hugging Face data set of images that tell their number."""

import io
import json
import tarfile
from pathlib import Path

from PIL import Image


def picture(number: int, form: str = "PNG", size: tuple[int, int] = (16, 16)) -> bytes:
    """One colour all over, which resizing, cropping and flipping leave as it is."""
    file = io.BytesIO()
    Image.new("RGB", size, (number, 255 - number, 100)).save(file, form)
    return file.getvalue()


def number_of(image) -> int:
    """The number of a `picture`, from its tensor `[C, H, W]` of 0..1."""
    return round(image[0].mean().item() * 255)


def write_shards(folder: Path, name: str, counts: list[int], first: int = 0, damaged: dict | None = None) -> str:
    """NAME-0000.tar, ...: shard i of counts[i] samples, numbered on from `first`; returns timm's split."""
    folder.mkdir(parents=True, exist_ok=True)
    number = first
    for shard, count in enumerate(counts):
        with tarfile.open(folder / f"{name}-{shard:04d}.tar", "w") as tar:
            for _ in range(count):
                content = (damaged or {}).get(number, picture(number))
                for suffix, text in (("png", content), ("cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    entry.size = len(text)
                    tar.addfile(entry, io.BytesIO(text))
                number += 1
    return f"{name}-{{0000..{len(counts) - 1:04d}}}.tar"


def write_info(folder: Path, **splits: list[int]) -> None:
    """timm's _info.json of shards written by `write_shards`."""
    info = {
        name: {
            "name": name,
            "num_samples": sum(counts),
            "filenames": [f"{name}-{shard:04d}.tar" for shard in range(len(counts))],
            "shard_lengths": counts,
        }
        for name, counts in splits.items()
    }
    (folder / "_info.json").write_text(json.dumps({"splits": info}))


def write_parquet(
    folder: Path, split: str, counts: list[int], first: int = 0, damaged: dict | None = None, card: bool = False
) -> None:
    """data/SPLIT-0000i.parquet of counts[i] samples each, as the hub keeps data sets of images.

    With `card`, the README.md states size and classes, as it does there.
    """
    import datasets

    datasets.disable_progress_bars()
    labels = datasets.ClassLabel(names=[str(digit) for digit in range(10)])
    features = datasets.Features({"image": datasets.Image(decode=False), "label": labels})
    (folder / "data").mkdir(parents=True, exist_ok=True)
    number = first
    for shard, count in enumerate(counts):
        numbers = range(number, number + count)
        images = [{"bytes": (damaged or {}).get(n, picture(n)), "path": f"{n}.png"} for n in numbers]
        part = datasets.Dataset.from_dict({"image": images, "label": [n % 10 for n in numbers]}, features=features)
        part = part.cast_column("image", datasets.Image())
        part.to_parquet(str(folder / "data" / f"{split}-{shard:05d}-of-{len(counts):05d}.parquet"))
        number += count
    if card:
        names = "".join(f"\n          '{digit}': '{digit}'" for digit in range(10))
        (folder / "README.md").write_text(
            "---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\n  - name: label\n    dtype:\n"
            f"      class_label:\n        names:{names}\n"
            f"  splits:\n  - name: {split}\n    num_examples: {sum(counts)}\n---\n"
        )
