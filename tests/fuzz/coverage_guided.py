"""Inputs that follow the coverage of the readers, by atheris; for longer searches than the tests make.

    python tests/fuzz/coverage_guided.py recipes|label_maps|checkpoints|annotations --runs 20000

A reader may refuse with ValueError or FileNotFoundError; anything else ends the search, and atheris writes the
input to a file `crash-...` in the working directory.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
import torch

with atheris.instrument_imports(include=["attnmix.training", "attnmix.data", "yaml"]):
    from attnmix.data import label_maps, outlines
    from attnmix.data.annotations_xml import read_xml
    from attnmix.training import checkpoint, reading

FOLDER = Path(tempfile.mkdtemp())


def _written(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def read_recipe(data: bytes) -> None:
    """A recipe's file."""
    reading.load_recipe(_written("recipe.yaml", data))


def read_checkpoint(data: bytes) -> None:
    """A checkpoint's file."""
    checkpoint.load_checkpoint(_written("checkpoint.pt", data))


def read_label_maps(data: bytes) -> None:
    """The description of label maps; or, behind a first byte below 128, the header of their scores."""
    if data[:1] < b"\x80":
        label_maps._open_array(_written("scores.npy", data[1:]), (1,), label_maps.np.dtype("f2"))
    label_maps.read_about(_written("maps.json", data))


def read_annotation(data: bytes) -> None:
    """An XML file; and its bytes as packed runs."""
    text = data.decode("latin-1")
    try:
        outlines.segmentation_mask({"size": [3, 4], "counts": text}, (3, 4))
    except ValueError:
        read_xml(_written("a.xml", data))


def _seeds() -> dict[str, list[bytes]]:
    torch.save({"format": 3, "x": torch.ones(2)}, FOLDER / "seed.pt")
    array = (
        b"\x00\x93NUMPY\x02\x00\x40\x00\x00\x00{'descr': '<f2', 'fortran_order': False, 'shape': (1,), }".ljust(77)
    )
    return {
        "recipes": [b"epochs: 3\nlr: 2e-3\n", b"optimizer: {opt: sgd, betas: [0.9, 0.99]}\n", b"trackers: []\n"],
        "checkpoints": [(FOLDER / "seed.pt").read_bytes()],
        "label_maps": [b'{"format": 1, "count": 5, "grid": [2, 3]}', array + b"\n\0\0"],
        "annotations": [b"<a><object><bndbox><xmin>1</xmin></bndbox></object></a>", b"0<"],
    }


READERS: dict[str, Callable[[bytes], None]] = {
    "recipes": read_recipe,
    "checkpoints": read_checkpoint,
    "label_maps": read_label_maps,
    "annotations": read_annotation,
}


def main() -> None:
    """Search for `--runs` inputs; the exit code is not 0 where one is found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--runs", type=int, default=2000)
    arguments = parser.parse_args()
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(_seeds()[arguments.reader]):
        (corpus / str(number)).write_bytes(seed)
    read = READERS[arguments.reader]

    def one_input(data: bytes) -> None:
        with contextlib.suppress(ValueError, FileNotFoundError):
            read(data)

    options = [f"-runs={arguments.runs}", "-seed=1", "-timeout=60", "-rss_limit_mb=6000", "-max_len=8000"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
