import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import yaml

from attnmix.cli import main
from attnmix.commands.ablation_rows import plan_rows, rehearse, same_depth
from attnmix.commands.ablations import choose_providers, choose_rows, known_presets, load_preset, preset_title
from attnmix.methods import create_method
from attnmix.training import known_recipes, load_recipe
from attnmix.training.export import export_model
from tests.commands.test_compare import SCENES, TINY, read

# Typed from the papers, table by table, in the order of the rows.
PAPER = {
    "smmix-table-7": [79.8, 80.4, 80.3, 80.9, 80.8, 81.1],
    "smmix-table-8": [81.0, 81.0, 81.1],
    "smmix-table-9": [73.5, 74.1, 73.6],
    "smmix-table-a4": [74.2, 73.8, 74.5, 74.4, 74.3, 74.7],
    "smmix-table-a5": [80.7, 81.0, 81.1, 81.1, 81.1, 81.1],
    "transmix-table-6": [80.7, 80.6, 80.4, 80.4],
    "transmix-table-9": [80.3, 80.3, 80.4, 80.7, 80.4],
    "tokenmixup-table-1-tau": [83.13, 83.30, 83.07, 83.56, 83.30, 82.91, 82.85],
    "tokenmixup-table-1-rho": [83.13, 83.51, 83.17, 83.56, 83.19, 82.75, 82.90],
    "tokenmixup-table-1-kappa": [82.87, 83.16, 83.01, 83.09, 83.28, 83.54, 83.46],
    "tokenmixup-table-5": [82.12, 83.56],
    "tokenmixup-table-6": [83.05, 83.56, 83.33, 83.54],
    "tokenmixup-table-7": [83.11, 83.56],
}
FURTHER = {
    "tokenmixup-table-1-tau": ("samples of 50,000", [0, 29, 616, 2142, 5471, 11072, 50000]),
    "tokenmixup-table-1-rho": ("tokens", [116.01, 78.76, 31.87, 14.89, 7.64, 1.46, 0.0]),
    "tokenmixup-table-5": ("ms", [85, 89]),
    "tokenmixup-table-7": ("ms", [175, 119]),
}
INF = math.inf
VARIED = {  # the option that a table varies
    "smmix-table-8": ("side_ratio", [[0.5, 0.5], [0, 1], [0.25, 0.75]]),
    "smmix-table-a4": ("source", ["random"] * 3 + ["max"] * 3),
    "smmix-table-a5": ("block", [None, 2, 5, 8, 11, None]),
    "transmix-table-9": ("block", [5, 7, 9, 11, None]),
    "tokenmixup-table-1-tau": ("tau", [0, 0.1, 0.15, 0.2, 0.25, 0.3, INF]),
    "tokenmixup-table-1-rho": ("rho", [0, 0.001, 0.003, 0.005, 0.007, 0.01, INF]),
    "tokenmixup-table-1-kappa": ("kappa", [None, 5, 10, 30, 50, 80, 100]),
}


# A set without masks: no label-content error, which takes most of a short run's time.
DIGITS = [
    *TINY, "--data", "digits", "--model_options.img_size", "16", "--model_options.patch_size", "4",
]  # fmt: skip


def ablate(preset, out, *words, recipe="quickstart", settings=SCENES):
    return main(["ablate", preset, recipe, *settings, "--out", str(out), *words])


def planned(name, *, numbers=None, typed=None, depth=12, tokens=256):
    preset = load_preset(name)
    numbers = range(len(preset.rows)) if numbers is None else numbers
    return plan_rows(preset, numbers, typed=typed or {}, providers=preset.providers, depth=depth, tokens=tokens)


@pytest.fixture
def preset_file(tmp_path):
    def write(**changes):
        values = {
            "column": "top-1 %",
            "reference": "plain",
            "method": "smmix",
            "rows": [
                {"label": "plain", "method": "cutmix", "paper": 70.0},
                {"label": "random", "options": {"attention": "random"}, "paper": 71.5},
                {"label": "whole", "options": {}, "paper": 72.0, "further": {"hours": 3}},
            ],
            **changes,
        }
        path = tmp_path / "three.yaml"
        text = yaml.safe_dump({key: value for key, value in values.items() if value is not None})
        path.write_text(f"# A table of three rows.\n{text}")
        return path

    return write


@pytest.fixture
def exported(tmp_path):
    """A function that leaves a tiny model in a folder, as a run does."""

    def export(num_classes, **options):
        model = timm.create_model(
            "vit_tiny_patch16_224",
            num_classes=num_classes,
            **{"img_size": 48, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, **options},
        )
        folder = tmp_path / f"exported-{num_classes}-{model.embed_dim}-{len(options)}"
        return export_model(model, folder, class_names=[str(i) for i in range(num_classes)], crop_pct=1.0)

    return export


# ------------------------------------------------------------------ the presets


def test_every_table_has_its_preset():
    assert set(known_presets()) == set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_numbers_are_the_papers(name):
    rows = load_preset(name).rows
    assert [row.paper for row in rows] == PAPER[name]
    further, numbers = FURTHER.get(name, (None, None))
    assert (
        [row.further for row in rows] == [{}] * len(rows) if further is None else [{further: n} for n in numbers]
    )


@pytest.mark.parametrize("name", VARIED)
def test_rows_vary_what_the_table_varies(name):
    option, values = VARIED[name]
    assert [row.own.get(option) for row in load_preset(name).rows] == values


def test_table_7_switches_the_three_parts():
    def parts(row):
        return (
            row.own.get("regions", "attention") == "attention",
            row.own.get("fine", True),
            row.own.get("consistency", True),
        )

    assert [parts(row) for row in load_preset("smmix-table-7").rows] == [
        (False, False, False), (True, False, False), (False, False, True),
        (True, True, False), (True, False, True), (True, True, True),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), [(name, i) for name in PAPER for i in range(len(PAPER[name]))])
def test_every_row_can_be_made(name, number, make_vit):
    (plan,) = planned(name, numbers=[number], depth=load_preset(name).depth or 12)
    options = dict(plan.options)
    if "provider" in options:
        options["provider"] = make_vit()  # the table's would be downloaded
    method = create_method(plan.row.method, num_classes=5, **options)
    for option, value in plan.row.own.items():
        if option in ("block", "attention", "provider"):
            guide = getattr(method, "guide", None) or method.label.guide
            found = getattr(guide, option)
            assert found.model is options["provider"] if option == "provider" else found == value
        else:
            found = getattr(method, option)
            assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("name", PAPER)
def test_the_first_line_names_paper_table_and_model(name):
    title = preset_title(known_presets()[name])
    paper, table, model = title.split(":")[0].split(", ")
    assert paper.lower() == name.split("-")[0]
    assert table.lower().replace(" ", "-") in name.replace("-tau", "-left").replace("-rho", "-middle").replace(
        "-kappa", "-right"
    )
    assert model in ("DeiT-S", "DeiT-T", "CCT-7/3x1")


def test_names_in_capitals_and_paths(preset_file):
    assert load_preset("SMMIX-TABLE-7") == load_preset("smmix_table_7") == load_preset("smmix-table-7")
    preset = load_preset(str(preset_file()))
    assert preset.title == "A table of three rows"
    assert [row.method for row in preset.rows] == ["cutmix", "smmix", "smmix"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colum": "top-1 %"}, "unknown key 'colum'; did you mean 'column'"),
        ({"column": None}, "column is missing"),
        ({"rows": []}, "rows must be a list of rows"),
        ({"rows": ["smmix"]}, "row 0 must hold keys with values, not a str"),
        ({"rows": [{"label": "a", "paper": 1, "option": {}}]}, "unknown key 'option'; did you mean 'options'"),
        ({"rows": [{"label": "a"}]}, "row 0: paper is missing"),
        ({"rows": [{"label": "a", "paper": "80,1"}]}, "paper is '80,1', but must be a number"),
        ({"rows": [{"label": "a", "paper": 1, "further": {"ms": None}}]}, "ms is None, but must be a number"),
        ({"method": None}, "row 1 names no method"),
        ({"reference": "plane"}, "reference 'plane' is no row; did you mean 'plain'"),
        (
            {"rows": [{"label": "plain", "paper": 1}, {"label": "plain", "paper": 1}]},
            "'plain' is the label of two rows",
        ),
        (
            {"rows": [{"label": "plain", "paper": 1, "options": {"provider": "big"}}]},
            "row 'plain' names provider 'big', which providers lacks",
        ),
        (
            {"depth": 12, "rows": [{"label": "plain", "paper": 1, "options": {"block": 12}}]},
            "block is 12, but depth 12 has 0 to 11",
        ),
    ],
)
def test_wrong_presets_are_named(preset_file, changes, message):
    with pytest.raises(ValueError, match=message):
        load_preset(str(preset_file(**changes)))


def test_text_that_is_no_yaml(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("rows: [")
    with pytest.raises(ValueError, match="broken.yaml is not valid YAML"):
        load_preset(str(path))


# ------------------------------------------------------------------ rows on a recipe


@pytest.mark.parametrize(
    ("on", "expected"), [(12, [3, 6, 9, 12]), (4, [1, 2, 3, 4]), (24, [6, 12, 18, 24]), (2, [1, 1, 2, 2])]
)
def test_blocks_stand_at_the_same_relative_depth(on, expected):
    assert [same_depth(d - 1, of=12, on=on) + 1 for d in (3, 6, 9, 12)] == expected
    assert [math.ceil(d * on / 12) for d in (3, 6, 9, 12)] == expected


def test_on_the_papers_depth_blocks_are_the_papers():
    plans = planned("smmix-table-a5", depth=12)
    assert [plan.options.get("block") for plan in plans] == [None, 2, 5, 8, 11, None]
    assert [plan.note for plan in plans] == [None] * 6


def test_blocks_of_tokenmixup_are_mapped_too():
    plans = planned("tokenmixup-table-6", depth=4)
    assert [plan.options["horizontal"] for plan in plans] == [1, 1, None, None]
    assert [plan.options["vertical"] for plan in plans] == [None, None, 1, 1]
    assert plans[0].note == "block 2 of 4 for 3 of 7"
    typed = planned("tokenmixup-table-5", depth=4, typed={"horizontal": 3})
    assert [plan.options["horizontal"] for plan in typed] == [3, 3]


def test_rows_that_fall_on_one_block_are_one_run():
    plans = planned("transmix-table-9", depth=4)
    assert [plan.options.get("block") for plan in plans] == [1, 2, 3, 3, None]
    assert [plan.same_as for plan in plans] == [None, None, None, "d = 10", None]
    assert plans[3].note == "block 4 of 4 for 12 of 12; the same run as d = 10"
    three = planned("transmix-table-9", depth=1)
    assert [plan.same_as for plan in three] == [None, "d = 6", "d = 6", "d = 6", None]


def test_more_tokens_than_an_image_has_are_left_out():
    plans = planned("tokenmixup-table-1-kappa", depth=7, tokens=36)
    assert [plan.left_out for plan in plans] == [False] * 4 + [True] * 3
    assert plans[4].note == "left out: kappa is 50, but an image has 36 tokens"
    assert not any(plan.left_out for plan in planned("tokenmixup-table-1-kappa", depth=7, tokens=100))
    plans = planned("tokenmixup-table-6", depth=7, tokens=36)
    assert [plan.left_out for plan in plans] == [False, False, True, True]  # HTM asks for no kappa
    assert plans[2].note.endswith("36 tokens; --method_options.kappa sets another")


def test_typed_options_go_over_what_is_common_and_under_a_rows_own():
    plans = planned("tokenmixup-table-6", depth=7, typed={"kappa": 20, "tokens": "random"})
    assert {plan.options["kappa"] for plan in plans} == {20}
    assert "tokens" not in plans[1].options
    plans = planned("tokenmixup-table-1-tau", depth=7, typed={"tau": 0.7})
    assert [plan.options["tau"] for plan in plans] == VARIED["tokenmixup-table-1-tau"][1]


def test_folders_are_named_after_what_is_run():
    first, second = planned("smmix-table-a5", numbers=[2, 4])
    assert (first.folder, second.folder) == ("smmix-block=5", "smmix-block=11")
    preset = load_preset("smmix-table-9")
    folders = set()
    for end in "ab":
        providers = {"deit-t": f"/{'long/' * 60}{end}", "deit-s": "s"}
        (plan,) = plan_rows(preset, [0], typed={}, providers=providers, depth=12, tokens=1)
        assert plan.options == {"provider": providers["deit-t"]}
        folders.add(plan.folder)
        assert len(plan.folder) <= 100
    assert len(folders) == 2


def test_rows_and_providers_as_typed():
    preset = load_preset("smmix-table-9")
    assert choose_rows(preset, None) == [0, 1, 2]
    assert choose_rows(preset, "2,0") == [0, 2]
    assert choose_providers(preset, None) == {
        "deit-t": "deit_tiny_patch16_224", "deit-s": "deit_small_patch16_224",
    }  # fmt: skip
    chosen = choose_providers(preset, "deit-t=runs/a/model, deit-s=b=c")
    assert chosen == {"deit-t": "runs/a/model", "deit-s": "b=c"}


def test_a_recipes_own_options_are_for_its_own_method(tmp_path):
    quickstart = Path(known_recipes()["quickstart"]).read_text().replace("method: cutmix", "method: transmix")
    path = tmp_path / "mine.yaml"
    path.write_text(f"{quickstart}\nmethod_options: {{attention_share: 1.0, mixup_prob: 0.25, block: 1}}\n")

    def options(name, number, **typed):
        recipe = replace(load_recipe(path), method_options=typed)
        ((_, spec),) = rehearse(
            load_preset(name), [number], recipe, written=str(path), providers={}, num_classes=10
        )[1]
        return spec.options

    own = {"attention_share": 1.0, "mixup_prob": 0.25}
    assert options("transmix-table-9", 0) == {**own, "block": 1}  # d = 6 of 12
    assert options("transmix-table-9", 3) == {**own, "block": 3}  # d = 12 of 12
    assert options("smmix-table-8", 0) == {"side_ratio": [0.5, 0.5]}
    assert options("smmix-table-8", 0, mixup_prob=0.1) == {"side_ratio": [0.5, 0.5], "mixup_prob": 0.1}


# ------------------------------------------------------------------ the command


def test_help_lists_the_presets_and_a_recipes_values(capsys):
    assert main(["ablate", "--help"]) == 0
    text = capsys.readouterr().out
    for name, path in known_presets().items():
        assert f"{name} " in text
        assert preset_title(path) in text
    assert main(["ablate", "smmix-table-7", "quickstart", "--help"]) == 0
    assert "vit_tiny_patch16_224" in capsys.readouterr().out
    assert main(["ablate", "smmix-table-7", "--help"]) == 0


@pytest.mark.parametrize(
    ("preset", "words", "message"),
    [
        ("smix-table-7", [], "unknown preset 'smix-table-7'; did you mean 'smmix-table-7'"),
        (
            "smmix-table-8",
            ["--rows", "0,3"],
            "smmix-table-8 has no row 3; it has 0 (delta = 0.5), 1 (delta ~ U(0, 1))",
        ),
        ("smmix-table-8", ["--rows", "a"], "rows 'a': want numbers"),
        ("smmix-table-8", ["--rows", "1,1"], "rows '1,1': each must be named once"),
        ("smmix-table-8", ["--seeds", "x"], "seeds 'x': want whole numbers"),
        ("smmix-table-8", ["--jobs", "0"], "jobs is 0"),
        ("smmix-table-8", ["--providers", "deit-t=x"], "no row of smmix-table-8 has a provider"),
        ("smmix-table-9", ["--providers", "deit-x=x"], "has no provider 'deit-x'; did you mean 'deit-t'"),
        ("smmix-table-9", ["--providers", "deit-t"], "providers 'deit-t': want deit-t=MODEL"),
        (
            "smmix-table-9",
            ["--rows", "0,2", "--providers", "deit-t=nowhere"],
            "row 0 (pre-trained DeiT-T): provider 'nowhere' is neither the folder of a run nor a model "
            "that timm can make: Unknown model (nowhere); --providers deit-t=MODEL names another "
            "model; --rows 2 leaves the row out",
        ),
        ("smmix-table-8", ["--method_options.porb", "1"], 'no method of smmix-table-8 has the option "porb"'),
        ("smmix-table-8", ["--method_options.side_ratio", "[0,1]"], "side_ratio has no effect: every row"),
        ("smmix-table-8", ["--method_options.seed", "1"], "all rows take the seeds of the command"),
        ("smmix-table-8", ["--method_options.mixup_prob", "2"], "row 0 (delta = 0.5): mixup_prob is 2"),
        ("smmix-table-8", ["--row", "0"], "--row"),
    ],
)
def test_wrong_words_are_named_before_any_training(tmp_path, capsys, preset, words, message):
    assert ablate(preset, tmp_path / "out", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_providers_that_do_not_fit_end_before_any_training(tmp_path, capsys, exported):
    out = tmp_path / "out"
    words = ["--rows", "0,2", "--providers"]
    assert ablate("smmix-table-9", out, *words, f"deit-t={exported(7)}") == 2
    error = capsys.readouterr().err
    assert "row 0 (pre-trained DeiT-T): the provider VisionTransformer predicts 7 classes, not 10" in error
    assert ablate("smmix-table-9", out, *words, f"deit-t={exported(10, img_size=32)}") == 2
    assert (
        "the provider VisionTransformer does not take these images: Input height (48)" in capsys.readouterr().err
    )
    assert not out.exists()


def test_a_table_of_which_nothing_can_be_run(tmp_path, capsys, preset_file):
    assert ablate("tokenmixup-table-1-kappa", tmp_path / "out", "--rows", "6") == 2
    assert (
        "no row of tokenmixup-table-1-kappa is left to run: kappa = 100: left out: kappa"
        in capsys.readouterr().err
    )


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    """Three rows of one table on two seeds, two of which are one run on two blocks; several tests look at it."""
    out = tmp_path_factory.mktemp("ablated")
    assert ablate("smmix-table-a5", out, "--rows", "2,1,4", "--seeds", "0,1", "--jobs", "2", settings=DIGITS) == 0
    return out


@pytest.mark.slow
def test_it_writes_the_papers_numbers_beside_ours(ablated):
    results = read(ablated)
    assert results["methods"] == ["d = 3", "d = 12"]
    assert len(results["runs"]) == 4
    top1 = {(run["label"], run["seed"]): run["top1"] for run in results["runs"]}
    first, second, third = results["ablation"]["rows"]
    assert [row["number"] for row in (first, second, third)] == [1, 2, 4]
    assert [row["method_options"] for row in (first, second, third)] == [{"block": 0}, {"block": 0}, {"block": 1}]
    assert [row["paper_difference"] for row in (first, second, third)] == [-0.1, 0, 0]
    for row in (first, second):
        gaps = [top1["d = 3", seed] - top1["d = 12", seed] for seed in (0, 1)]
        assert row["ours"] == pytest.approx((top1["d = 3", 0] + top1["d = 3", 1]) / 2)
        assert row["ours_std"] == pytest.approx(abs(top1["d = 3", 0] - top1["d = 3", 1]) / math.sqrt(2))
        assert row["ours_difference"] == pytest.approx(sum(gaps) / 2)
        assert row["ours_difference_std"] == pytest.approx(abs(gaps[0] - gaps[1]) / math.sqrt(2))
    assert {path.name for path in (ablated / "runs").iterdir()} == {
        f"smmix-block={block}-seed{seed}" for block in (0, 1) for seed in (0, 1)
    }
    table = (ablated / "ablation.md").read_text()
    assert "| d = 6 | 2 | 81.1 | 0.0 | " in table
    assert "- d = 6: block 1 of 2 for 6 of 12; the same run as d = 3." in table
    assert "- Ours: vit_tiny_patch16_224 on digits, 1 epoch, seeds 0, 1." in table
    page = (ablated / "report.html").read_text()
    assert "SMMix, Table A5, DeiT-S" in page
    assert "paper: difference" in page
    assert "the same run as d = 3" in page


@pytest.mark.slow
def test_given_again_it_trains_nothing_and_names_runs_by_the_rows(ablated, capsys):
    before = {path: path.stat().st_mtime_ns for path in ablated.glob("runs/*/run.json")}
    assert ablate("SMMIX-TABLE-A5", ablated, "--rows", "2,3", "--seeds", "1", settings=DIGITS) == 0
    out = capsys.readouterr().out
    assert "2 of 2 runs are done already" in out
    assert "d = 12, a reference, was not run" in out
    assert "One seed" in out
    assert {path: path.stat().st_mtime_ns for path in ablated.glob("runs/*/run.json")} == before
    results = read(ablated)
    assert results["methods"] == ["d = 6", "d = 9"]
    assert [row["ours_difference"] for row in results["ablation"]["rows"]] == [None, None]


@pytest.mark.slow
def test_a_changed_recipe_is_refused(ablated, capsys):
    assert ablate("smmix-table-a5", ablated, "--rows", "1", "--lr", "0.5", settings=DIGITS) == 2
    assert "was begun with lr 0.002, not 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_typed_options_and_providers_reach_the_runs(tmp_path, exported):
    folder = exported(10)
    words = ["--rows", "0,2", "--providers", f"deit-t={folder}", "--method_options.mixup_prob", "0"]
    assert ablate("smmix-table-9", tmp_path / "out", *words, "--jobs", "1") == 0
    with_provider, alone = read(tmp_path / "out")["runs"]
    assert with_provider["method_options"] == {"provider": str(folder), "mixup_prob": 0}
    assert alone["method_options"] == {"mixup_prob": 0}
    assert with_provider["history"][-1]["train_loss"] != alone["history"][-1]["train_loss"]


@pytest.mark.slow
def test_infinite_options_leave_strict_json_and_mixed_samples_are_counted(tmp_path):
    words = ["--rows", "0,6", "--jobs", "1"]
    assert ablate("tokenmixup-table-1-tau", tmp_path, *words, settings=DIGITS) == 0

    def refuse(word):
        raise AssertionError(word)

    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert results["runs"][1]["method_options"]["tau"] == "inf"
    # nothing is mixed at tau 0, every sample at infinity
    shares = [row["ours_further"]["share of samples"] for row in results["ablation"]["rows"]]
    assert shares == [run["history"][-1]["stat_mixed_samples"] for run in results["runs"]]
    assert shares[0] == 0
    assert shares[1] > 0.5
