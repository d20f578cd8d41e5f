"""The commands on folders of images and on a second real set."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from attnmix.cli import main
from tests.commands.test_compare import TINY, compare, read


@pytest.fixture
def jpeg_folder(tmp_path):
    """Two classes of JPEGs of mixed sizes, one of them grey, one cut short, in train/ and val/."""
    random = np.random.default_rng(0)
    root = tmp_path / "photos"
    for split, count in (("train", 12), ("val", 8)):
        for label, brightness in (("cat & <dog>", 40), ("$fish$", 180)):
            folder = root / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                height, width = random.integers(20, 90, size=2)
                pixels = random.integers(brightness, brightness + 60, size=(height, width, 3), dtype=np.uint8)
                image = Image.fromarray(pixels)
                (image.convert("L") if i == 0 else image).save(folder / f"{i}.jpg")
    whole = root / "train" / "$fish$" / "3.jpg"
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    return root


PHOTOS = [*TINY, "--model_options.img_size", "32", "--model_options.patch_size", "8",
          "--model", "vit_tiny_patch16_224", "--batch_size", "8", "--loader.workers", "0"]  # fmt: skip


@pytest.mark.slow
def test_a_folder_of_jpegs_of_mixed_sizes(tmp_path, jpeg_folder):
    out = tmp_path / "out"
    words = ["--data", str(jpeg_folder), "--methods", "cutmix,smmix"]
    assert compare(out, *words, recipe="folder", settings=PHOTOS) == 0
    results = read(out)
    assert results["class_names"] == ["$fish$", "cat & <dog>"]
    assert all(row["label_content_error"] is None for row in results["summary"])
    assert results["controls"] == []
    assert "<dog>" not in (out / "report.html").read_text()


@pytest.mark.slow
def test_training_on_that_folder(tmp_path, jpeg_folder, capsys):
    out = tmp_path / "out"
    words = ["train", "folder", *PHOTOS, "--data", str(jpeg_folder), "--method", "transmix", "--out", str(out)]
    assert main(words) == 0
    assert "top-1" in capsys.readouterr().out
    assert (out / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_raw_digits_as_a_second_real_set(tmp_path):
    words = ["--data", "digits", "--methods", "none,smmix", "--model_options.img_size", "16",
             "--model_options.patch_size", "4", "--epochs", "2"]  # fmt: skip
    assert compare(tmp_path, *words, settings=TINY) == 0
    results = read(tmp_path)
    assert len(results["class_names"]) == len(load_digits().target_names)
    assert all(run["top1"] > 10 for run in results["runs"])
