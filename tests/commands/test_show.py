import pytest
from PIL import Image

from attnmix.cli import main

TINY = [
    "--model_options.embed_dim", "16", "--model_options.depth", "1", "--model_options.num_heads", "2",
    "--data_options.train_count", "8", "--data_options.test_count", "16",
]  # fmt: skip


def height_of(tmp_path, *words):
    out = tmp_path / "mixed.png"
    assert main(["show", "quickstart", *TINY, "--out", str(out), *words]) == 0
    return Image.open(out).height


def test_a_picture_grows_with_methods_and_count(tmp_path, capsys):
    two = height_of(tmp_path, "--methods", "cutmix,smmix", "--count", "2")
    assert capsys.readouterr().out.strip() == str(tmp_path / "mixed.png")
    assert height_of(tmp_path, "--methods", "cutmix", "--count", "2") < two
    assert height_of(tmp_path, "--methods", "cutmix,smmix", "--count", "3") > two


def test_the_seed_decides_the_boxes(tmp_path):
    def pixels(seed):
        height_of(tmp_path, "--methods", "cutmix", "--count", "2", "--seed", seed)
        return (tmp_path / "mixed.png").read_bytes()

    assert pixels("0") == pixels("0")
    assert pixels("0") != pixels("1")


def test_the_methods_options_are_the_recipes(tmp_path):
    def pixels(*words):
        height_of(tmp_path, "--methods", "smmix", "--count", "2", *words)
        return (tmp_path / "mixed.png").read_bytes()

    assert pixels() != pixels("--method_options.side_ratio", "[0.75, 0.75]")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "0"], "count is 0"),
        (["--out", "picture.bmp"], "want .png, .pdf or .svg"),
        (["--methods", "cutmx"], 'did you mean "cutmix"'),
        (["--init", "nowhere.safetensors"], "there is no file 'nowhere.safetensors'"),
    ],
)
def test_wrong_words_are_named(capsys, words, message):
    assert main(["show", "quickstart", *TINY, *words]) == 2
    assert message in capsys.readouterr().err
