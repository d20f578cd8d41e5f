import re
import shlex

import pytest
import timm
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import attnmix
from attnmix.training import load_recipe
from attnmix.training.card import model_card
from attnmix.training.card_text import as_block, as_code, as_line, hub_data, published, without_path

NASTY = [
    "---\nfoo: !!python/object:os.system ls",
    "<script>alert(1)</script>",
    "`<img src=x onerror=alert(1)>`",
    "a``b",
    "```\n# heading",
    "| a | b |",
    "[x](javascript:alert(1))",
    "\u202eright to left\x00",
    "",
]
NUMBERS = {"top1": 76.25, "top5": 98.5, "loss": 0.81234, "images": 400}


def card_of(recipe, *, name="mine", class_names=("cat", "dog"), **numbers):
    return model_card(recipe, name=name, class_names=list(class_names), **{**NUMBERS, **numbers})


def rendered(text):
    """As a hub would show it: raw HTML let through, which the hub's own cleaning may or may not stop."""
    _, _, body = text.split("---\n", 2)
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(body)


def blocks(text, language):
    return [t.content for t in MarkdownIt().parse(text) if t.type == "fence" and t.info == language]


def test_the_head_is_what_the_hub_reads(tiny):
    data = ModelCard(card_of(tiny(method="smmix", eval_split="test"))).data
    assert (data.library_name, data.pipeline_tag, data.metrics) == ("timm", "image-classification", ["accuracy"])
    assert data.tags == ["image-classification", "timm", "attnmix", "smmix"]
    assert data.model_name == "mine"
    assert data.datasets is None  # the hub has no digits-in-scenes
    first, second = data.eval_results
    assert (first.metric_type, first.metric_name, first.metric_value) == ("accuracy", "Top-1 accuracy", 0.7625)
    assert (second.metric_name, second.metric_value) == ("Top-5 accuracy", 0.985)
    assert (first.task_type, first.dataset_name, first.dataset_split) == (
        "image-classification",
        "digits-in-scenes",
        "test",
    )
    assert len(ModelCard(card_of(tiny(), top5=None)).data.eval_results) == 1


def test_the_hub_learns_its_own_data_and_base_model(tiny):
    data = ModelCard(card_of(tiny(data="hfds/uoft-cs/cifar10", model="hf-hub:timm/vit_tiny"))).data
    assert data.datasets == ["uoft-cs/cifar10"]
    assert data.eval_results[0].dataset_type == "uoft-cs/cifar10"
    assert data.base_model == "timm/vit_tiny"
    data = ModelCard(card_of(tiny(data="torch/cifar10"))).data
    assert (data.datasets, data.base_model) == (None, None)
    assert data.eval_results[0].dataset_type == "cifar10"


def test_says_what_it_is_and_how_good(tiny):
    text = card_of(tiny(method="smmix+cutmix", seed=3, epochs=4))
    assert "# `vit_tiny_patch16_224`, trained with `smmix+cutmix`" in text
    for name in ("smmix", "cutmix"):
        about = attnmix.METHODS[name].about
        assert f"- **Method:** `{name}` ({about.paper}); images: {about.images}; labels: {about.labels}" in text
    assert "from fresh weights (seed 3)" in text
    assert "- **Classes:** `cat`, `dog`\n" in text
    assert "Of the weights after the last of 4 epochs, on the 400 images of `digits-in-scenes`" in text
    rows = re.findall(r"<td>(.+?)</td>\s*<td.*?>(.+?)</td>", rendered(text))
    assert rows == [("top-1 accuracy", "76.25 %"), ("top-5 accuracy", "98.50 %"), ("cross-entropy", "0.8123")]
    assert "top-5" not in card_of(tiny(), top5=None)
    assert "Of the moving average of the weights" in card_of(tiny(ema=0.9))
    assert "from its pretrained weights" in card_of(tiny(model_options={"pretrained": True}))
    assert "from the weights in `w.safetensors`" in card_of(tiny(init="there/w.safetensors"))
    many = card_of(tiny(), class_names=[f"c{i}" for i in range(30)])
    assert "`c19`, ... (all of them in config.json)" in many
    assert "`c20`" not in many


def test_what_attnmix_adds_to_timm_says_so(tiny):
    text = card_of(tiny(model="pvt_tiny", model_options={}))
    assert "using it needs timm and attnmix, which adds it to timm" in text
    assert "import attnmix" in blocks(text, "python")[0]
    assert "import attnmix" not in blocks(card_of(tiny()), "python")[0]


def test_the_recipe_and_the_command_make_it_again(tiny, tmp_path):
    recipe = tiny(method="smmix", method_options={"prob": 0.5})
    text = card_of(recipe, name="my run; rm -rf")
    (tmp_path / "recipe.yaml").write_text(blocks(text, "yaml")[0])
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert "last name" not in text
    words = shlex.split(blocks(text, "sh")[0])
    assert words == ["attnmix", "train", "recipe.yaml", "--out", "runs/my run; rm -rf"]
    assert "torchrun --nproc-per-node 8 -m attnmix train recipe.yaml" in card_of(recipe, processes=8)
    assert f"attnmix {attnmix.__version__}, timm {timm.__version__}, torch 2." in text


def test_paths_of_the_machine_are_not_published(tiny):
    recipe = tiny(
        data="/home/me/secret/birds",
        init="/home/me/secret/w.safetensors",
        label_maps="../secret/maps",
        model="local-dir:/home/me/secret/model",
        data_options={"class_map": "C:\\Users\\me\\secret\\classes.txt"},
        method_options={"teacher": "secret/none", "teacher_options": {"files": ["~/secret/x.pth"]}},
    )
    text = card_of(recipe)
    assert "secret" not in text
    assert "/home" not in text
    assert "Paths stand in it by their last name" in text
    values = yaml.safe_load(blocks(text, "yaml")[0])
    assert (values["data"], values["init"], values["label_maps"]) == ("birds", "w.safetensors", "maps")
    assert values["model"] == "local-dir:model"
    assert values["data_options"]["class_map"] == "classes.txt"
    assert values["method_options"]["teacher"] == "none"
    assert values["method_options"]["teacher_options"] == {"files": ["x.pth"]}


@pytest.mark.parametrize("nasty", NASTY)
def test_names_from_data_break_nothing(tiny, nasty):
    recipe = tiny(
        model=nasty,
        data=nasty,
        eval_split=nasty,
        train_split=nasty,
        method=nasty.replace("+", ""),
        model_options={nasty: nasty},
        label_maps=nasty,
    )
    plain = card_of(tiny())
    text = card_of(recipe, name=nasty, class_names=[nasty, "dog"])
    head = yaml.safe_load(text.split("---\n")[1])
    assert list(head) == list(yaml.safe_load(plain.split("---\n")[1]))
    assert ModelCard(text).data.library_name == "timm"
    shown = rendered(text)
    tags = re.compile(r"</?(\w+)")
    assert set(tags.findall(shown)) == set(tags.findall(rendered(plain)))
    assert shown.count("<h2") == rendered(plain).count("<h2")
    assert "javascript:" not in re.findall(r'href="([^"]*)', shown)
    values = yaml.safe_load(blocks(text, "yaml")[0])
    assert values["model_options"][nasty] == without_path(nasty)
    assert len(MarkdownIt().parse(text.split("---\n", 2)[2])) > 20


def test_code_spans_and_blocks_hold_what_they_are_given():
    markdown = MarkdownIt()
    for text in ("a`b", "``", "`a", "a```b`c", "<b>", "&lt;", "\\", "*x*", "x" * 200):
        (code,) = markdown.parseInline(as_code(text))[0].children
        assert (code.type, code.content) == ("code_inline", text)
    assert [t.content for t in markdown.parse(as_block("a\n```\nb\n````\n", "yaml"))] == ["a\n```\nb\n````\n\n"]
    assert as_code("") == "` `"
    assert as_line("a\n b\x00\u202e\u2028c") == "a b c"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("digits-in-scenes", "digits-in-scenes"),
        ("rand-m9-mstd0.5-inc1", "rand-m9-mstd0.5-inc1"),
        ("hf-hub:timm/vit", "hf-hub:timm/vit"),
        ("hfds/user/name", "hfds/user/name"),
        ("torch/cifar10", "torch/cifar10"),
        ("hfds//home/me/data", "hfds/data"),
        ("wds/https://me:pass@host/x-{0..9}.tar", "wds/x-{0..9}.tar"),
        ("https://me:pass@host/x.tar", "x.tar"),
        ("data/birds/", "birds"),
        ("~/birds", "birds"),
        ("D:\\data\\birds", "birds"),
    ],
)
def test_without_path(text, kept):
    assert without_path(text) == kept


def test_data_of_the_hub(tmp_path, monkeypatch):
    assert hub_data("hfds/user/name") == "user/name"
    assert hub_data("hfids/name") == "name"
    assert hub_data("torch/cifar10") is None
    assert hub_data("hfds//home/me/data") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user" / "name").mkdir(parents=True)  # which `datasets` would take instead
    assert hub_data("hfds/user/name") is None
    assert without_path("hfds/user/name") == "hfds/name"


def test_published_keeps_what_is_no_text():
    assert published({"a": (1, None, True), "b": {"c": ["x/y", 0.5]}}) == {
        "a": [1, None, True],
        "b": {"c": ["y", 0.5]},
    }
