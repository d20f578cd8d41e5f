"""Results as a real comparison leaves them, and as an interrupted one does."""

import copy
import math
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnmix.report import GalleryRow, ImagePairs, MixedPair

CLASS_NAMES = [f"digit {i}" for i in range(9)] + ["<script>alert(1)</script>"]
METHODS = {
    # label: (final top-1, step ratio, label-content error, Mixup share)
    "none": (61.8, 0.93, None, 0.0),
    "mixup": (66.4, 0.94, None, 1.0),
    "cutmix": (68.1, 1.0, 0.171, 0.5),
    "transmix": (69.0, 1.05, 0.138, 0.5),
    "smmix": (69.8, 1.18, 0.126, 0.5),
    "tl-align": (68.7, 1.09, 0.149, 0.5),
    "tokenmixup": (68.9, 1.62, None, 0.0),
}


def make_results(methods: dict[str, tuple] = METHODS, *, seeds: int = 3, epochs: int = 30) -> dict[str, Any]:
    """Results with the curves, the spread and the gaps of a real comparison on the embedded digits."""
    draw = np.random.default_rng(0)
    runs, summary = [], []
    for label, (top1, ratio, error, share) in methods.items():
        finals = [round(float(top1 + draw.normal(0, 0.9)), 2) for _ in range(seeds)]
        for seed, final in enumerate(finals):
            rise = 1 - np.exp(-np.arange(1, epochs + 1) / (0.2 * epochs))
            noise = draw.normal(0, 0.7, epochs) * np.linspace(1.5, 0.2, epochs)
            accuracy = 10 + (final - 10) * rise / rise[-1] + noise
            loss = (0.4 if label == "none" else 1.2) + 1.1 * (1 - rise) + draw.normal(0, 0.015, epochs)
            confusion = np.diag(np.full(10, round(4 * final))) + draw.integers(0, 16, (10, 10))
            content = {"mean": error, "standard_error": 0.004, "bias": -0.01} if error else None
            history = [
                {"epoch": i + 1, "lr": 2e-3, "train_loss": float(b), "eval_loss": 1.2, "eval_top1": float(a)}
                for i, (a, b) in enumerate(zip(accuracy, loss, strict=True))
            ]
            runs.append(
                {
                    "label": label,
                    "method": label,
                    "method_options": {},
                    "seed": seed,
                    "top1": final,
                    "top5": 97.0 if seed else None,
                    "train_top1": 99.1,
                    "seconds": 120.1,
                    "images_per_second": 900.0,
                    "history": history,
                    "confusion": confusion.tolist(),
                    "label_content_error": content,
                }
            )
        summary.append(
            {
                "label": label,
                "mixup_share": share,
                "seeds": seeds,
                "top1_mean": float(np.mean(finals)),
                "top1_std": float(np.std(finals, ddof=1)) if seeds > 1 else None,
                "top1_min": min(finals),
                "top1_max": max(finals),
                "step_ratio": ratio,
                "step_interval": [ratio - 0.02, ratio + 0.02],
                "label_content_error": error,
                "label_content_se": 0.004 if error else None,
                "seconds": 149.0 * ratio,
            }
        )
    recipe = {
        "name": "digits-comparison",
        "seeds": list(range(seeds)),
        "model": {"name": "vit_tiny_digits", "patch_size": 6, "embed_dim": 128, "kwargs": {"drop_path": 0.1}},
        "data": {"name": "digits-in-scenes", "image_size": 48, "train_size": 4000, "mean": [0.5, 0.5, 0.5]},
        "optimizer": {"name": "adamw", "lr": 0.002, "weight_decay": 0.05, "betas": [0.9, 0.98]},
        "schedule": {"name": "cosine", "warmup_epochs": 3, "min_lr": 1e-5},
        "methods": {"smmix": {"block": -1, "mixup_prob": 0.5}, "transmix": None},
    }
    return {
        "title": "Seven ways of mixing digits in scenes",
        "command": f"attnmix compare --methods {','.join(methods)} --seeds 3 --out runs/compare",
        "created": "2026-01-31T12:34:56+00:00",
        "recipe": recipe,
        "versions": {"attnmix": "0.1.0", "torch": "2.13.0+cu130", "timm": "1.0.31", "python": "3.12.4"},
        "machine": {"device": "NVIDIA H200", "cpu": "AMD EPYC 9454, 16 cores", "memory": "128 GiB"},
        "class_names": CLASS_NAMES,
        "methods": list(methods),
        "runs": runs,
        "summary": summary,
        "controls": [
            {"label": "constant one half", "label_content_error": 0.235, "standard_error": 0.004},
            {"label": "box area", "label_content_error": 0.171, "standard_error": 0.004},
        ],
        "notes": ["Step times are medians of 50 interleaved steps at batch 256."],
    }


def box_mask(top: int, left: int, height: int, width: int, *, side: int = 24) -> np.ndarray:
    """A box as a mask `[side, side]`."""
    mask = np.zeros((side, side), dtype=bool)
    mask[top : top + height, left : left + width] = True
    return mask


def make_row(method: str = "smmix", *, side: int = 24, **changed: Any) -> GalleryRow:
    """A row whose three pictures are noise."""
    source, target, mixed = np.random.default_rng(1).random((3, side, side, 3))
    fields: dict[str, Any] = {
        "method": method,
        "source": source,
        "target": target,
        "mixed": mixed,
        "attention": np.arange(16.0).reshape(4, 4),
        "source_label": "three",
        "target_label": "eight",
        "weights": {"area": 0.25, "attention": 0.31, "visible": 0.4},
        "pasted": box_mask(6, 12, 12, 12, side=side),
    }
    return GalleryRow(**(fields | changed))


def make_pairs(methods: list[str], *, count: int = 2) -> ImagePairs:
    """Pairs of noise under names a, b, $c$, and again."""
    draw = np.random.default_rng(2)
    return ImagePairs(
        images=list(draw.random((count, 24, 24, 3))),
        labels=[("a", "b", "$c$")[i % 3] for i in range(count)],
        sources=np.roll(np.arange(count), 1).tolist(),
        mixed={method: [MixedPair(draw.random((24, 24, 3)), 0.25) for _ in range(count)] for method in methods},
    )


@pytest.fixture
def results() -> dict[str, Any]:
    """Three methods, three seeds, everything measured that can be."""
    return make_results({label: METHODS[label] for label in ("none", "cutmix", "smmix")}, epochs=5)


@pytest.fixture
def broken(results: dict[str, Any]) -> dict[str, Any]:
    """The same, interrupted: NaN, None and missing parts, one seed, a method that never ran."""
    broken = copy.deepcopy(results)
    broken["methods"].append("never-ran")
    broken["controls"] = []
    broken["runs"] = broken["runs"][:4]
    first, second, third, only = broken["runs"]
    first["history"][2]["train_loss"] = math.nan
    second["history"] = second["history"][:2]
    third.update(history=[], confusion=None, top1=None, seconds=math.nan)
    only["history"][0]["eval_top1"] = None
    del only["confusion"], only["top5"], only["images_per_second"]
    broken["summary"] = broken["summary"][:2]
    broken["summary"][0].update(top1_mean=math.nan, step_ratio=None, step_interval=None, mixup_share=None)
    broken["summary"][1].update(seeds=1, top1_std=None, step_interval=None, label_content_se=None)
    del broken["versions"], broken["machine"], broken["notes"], broken["created"]
    return broken


def texts(figure: Figure) -> list[str]:
    """Everything that is written in a figure."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]
