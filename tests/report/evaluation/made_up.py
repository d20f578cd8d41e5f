"""An evaluation of made-up models, as `attnmix evaluate` leaves it."""

from itertools import pairwise
from typing import Any

import numpy as np

LONG = [
    "deit_small_patch16_224",
    "$x$ <b>DeiT-S</b> · SMMix",
    "runs/imagenet100/cutmix+mixup seed 0 (checkpoint best, EMA weights)",
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "TransMix",
    "TL-Align",
    "none",
    "tokenmixup horizontal",
    "ninth",
]


def make_evaluation(count: int = 2, *, classes: int = 12, seed: int = 0) -> tuple[dict[str, Any], dict[str, dict]]:
    """Results and arrays with every question answered by each of `count` models."""
    draw = np.random.default_rng(seed)
    labels = [*LONG, *(f"model {i}" for i in range(len(LONG), count))][:count]
    makers = {
        "accuracy": lambda i: _accuracy(draw, i, classes),
        "shift": _shift,
        "outliers": lambda i: {"detection": [_outliers(i)]},
        "occlusion": _occlusion,
        "shuffle": lambda i: {
            "grids": [
                {"pieces per side": n, "pieces": n * n, "top-1 %": 80.0 - i - 8 * k}
                for k, n in enumerate((1, 2, 4, 7, 14))
            ]
        },
        "noise": lambda i: {"levels": _falling("sigma", (0, 0.1, 0.25, 0.5, 1.0), i)},
        "attack": lambda i: {"steps": _falling("step size", (0.0, 0.001, 0.003, 0.01), i)},
        "localisation": lambda i: {"scores": _scores(i, ("mIoU %", "box accuracy %", "MaxBoxAcc %"))},
        "segmentation": lambda i: {"scores": _scores(i, ("Jaccard %",))},
        "regions": lambda i: {
            "regions": [
                {
                    "query": q,
                    "key": k,
                    "mean attention": 0.005 + 0.0001 * i,
                    "times uniform": 1.3 - 0.6 * (q != k) + 0.05 * i,
                }
                for q in ("source", "target")
                for k in ("source", "target")
            ]
        },
        "sharpness": lambda i: {
            "maps": [{"map": "attention", "TV-L1": 0.0321 + i, "TV-L2": 2e-5, "variance": None}]
        },
        "fluctuation": lambda i: {
            "blocks": [
                {
                    "block": block,
                    "spread of presence": 0.02 * block + 0.01 * i,
                    "least presence": 0.9 - 0.02 * block,
                    "greatest presence": 1 + 0.03 * block,
                    "drift of the mixing ratio": 0.01 * block + 0.004 * i,
                    "drift carried along": 0.006 * block + 0.004 * i,
                }
                for block in range(12)
            ]
        },
        "mixed": lambda i: {
            "methods": [
                {"method": name, "images": 500, "top-1 %": 61.0 + i + k, "top-2 %": 78.0 - i + k}
                for k, name in enumerate(("cutmix", "transmix", "smmix", "tl-align", "mixup"))
            ]
        },
        "label-content": _labels,
        "pictures": _picture_tables,
    }
    abouts = {name: f"What {name} says (its paper, section 4)." for name in makers}
    questions = {
        name: {
            "about": abouts[name],
            "answers": {
                label: {
                    "values": {f"first {name} %": 61.25 + i, f"second {name}": 0.01234 * (i + 1), "never": None},
                    "tables": make(i),
                    "notes": ["Said of all models.", f"Model {i} only."],
                    "images": 500,
                    "skipped": ["broken.jpg"] if name == "accuracy" and not i else [],
                    "seconds": 12.4 + i,
                }
                for i, label in enumerate(labels)
            },
            "left_out": {},
        }
        for name, make in makers.items()
    }
    results = {
        "created": "2026-01-31T12:34:56+00:00",
        "command": "attnmix evaluate --models a,b --data pets",
        "settings": {"data": "Oxford-IIIT Pet, test images", "limit": 500, "attack": {"epsilon": 0.01}},
        "machine": {"device": "NVIDIA H200"},
        "models": [
            {"label": label, "source": "timm", "method": "smmix", "parameters": 22_050_664, "images size": 224}
            for label in labels
        ],
        "questions": questions,
    }
    return results, {label: _arrays(draw) for label in labels}


def _accuracy(draw: np.random.Generator, i: int, classes: int) -> dict[str, list]:
    edges = np.linspace(0, 1, 16)
    bins = []
    for low, high in pairwise(edges):
        empty = low < 0.1
        bins.append(
            {
                "from": round(float(low), 4),
                "to": round(float(high), 4),
                "images": 0 if empty else int(900 * high**3),
                "mean confidence %": None if empty else float(50 * (low + high)),
                "accuracy %": None
                if empty
                else float(np.clip(50 * (low + high) - 4 * i + draw.normal(0, 3), 0, 100)),
            }
        )
    names = [f"class {c} with a long name" if c % 5 == 0 else f"class_{c}$" for c in range(classes)]
    return {
        "classes": [
            {"class": name, "images": 50, "top-1 %": float(np.clip(draw.normal(75, 12), 0, 100))} for name in names
        ],
        "bins": bins,
    }


def _shift(i: int) -> dict[str, list]:
    return {
        "sets": [
            {
                "set": name,
                "images": 1000,
                "classes": 200,
                "top-1 %": 70.0 - 9 * k - i,
                "top-5 %": 90.0 - 5 * k,
                "ECE %": 3.0 + 2 * k,
                "RMS calibration error %": 4.0 + 2 * k,
                "AURRA %": None,
            }
            for k, name in enumerate(("imagenet-a", "imagenet-r", "imagenet-o", "sketch"))
        ]
    }


def _outliers(i: int) -> dict[str, Any]:
    return {"images": 500, "outliers": 300, "AUPR %": 20.5 + i, "AUROC %": 61.0, "AUPR of chance %": 16.0}


def _occlusion(i: int) -> dict[str, list]:
    falls = {"random": 40, "salient": 75, "non-salient": 20}
    return {
        "drops": [
            {"patches": way, "dropped %": 10 * step, "top-1 %": 80 - i - fall * (step / 9) ** 2}
            for way, fall in falls.items()
            for step in range(10)
        ]
    }


def _falling(key: str, steps: tuple[float, ...], i: int) -> list[dict[str, float]]:
    return [
        {key: step, "top-1 %": 80.0 - i - 14 * k, "change in points": -14.0 * k} for k, step in enumerate(steps)
    ]


def _scores(i: int, measures: tuple[str, ...]) -> list[dict[str, Any]]:
    base = {"attention": 40.0 + i, "untrained network": 21.0 + 0.3 * i, "centre prior": 35.5, "whole image": 30.0}
    return [
        {"map": name, **{measure: value + 7 * k for k, measure in enumerate(measures)}, "images": 500}
        for name, value in base.items()
    ]


def _labels(i: int) -> dict[str, list]:
    rows = [("cutmix", "method", 0.171), ("transmix", "method", 0.138 - 0.004 * i), ("smmix", "method", 0.12)]
    rows += [
        ("constant one half", "control", 0.235),
        ("an untrained network (TransMix)", "control", 0.16 + 0.003 * i),
    ]
    return {
        "labels": [
            {"label": label, "kind": kind, "label-content error": error, "standard error": 0.004, "bias": -0.01}
            for label, kind, error in rows
        ]
    }


def _picture_tables(i: int) -> dict[str, list]:
    return {
        "unmixed": [
            {
                "image": k,
                "label": "Egyptian Mau",
                "predicted": "Egyptian Mau" if (k + i) % 4 else "Bengal",
                "confidence %": 91.4,
            }
            for k in range(6)
        ],
        "mixed": [
            {"image": k, "source label": "pug", "target label": "$Birman", "first": "pug", "second": "Abyssinian"}
            for k in range(6)
        ],
        "gallery": [
            {
                "method": name,
                "source label": "pug",
                "target label": "Birman",
                "label": 0.31,
                "area": 0.25,
                "attention": 0.31,
                "visible": None,
            }
            for name in ("cutmix", "transmix", "smmix")
        ],
    }


def _arrays(draw: np.random.Generator, side: int = 32) -> dict[str, np.ndarray]:
    row, column = np.mgrid[:side, :side] / side
    images = np.stack(
        [np.sin(3 * row + k)[..., None] * np.array([1, 0.6, 0.3]) + column[..., None] for k in range(6)]
    )
    pixels = np.uint8(255 * np.clip(images / 2 + 0.3, 0, 1))
    boxes = np.array([[4 * k % 16, 8, 12, 14] for k in range(6)])
    pasted = np.zeros((6, side, side), dtype=bool)
    for mask, (top, left, height, width) in zip(pasted, boxes, strict=True):
        mask[top : top + height, left : left + width] = True
    return {
        "images": pixels,
        "attention": draw.random((6, 7, 7)),
        "activation": draw.random((6, 7, 7)),
        "mixed_images": pixels[::-1],
        "mixed_attention": draw.random((6, 7, 7)),
        "mixed_activation_source": draw.random((6, 7, 7)),
        "mixed_activation_target": draw.random((6, 7, 7)),
        "mixed_pasted": pasted,
        "gallery_source": pixels[:3],
        "gallery_target": pixels[3:],
        "gallery_mixed": pixels[:3],
        "gallery_attention": draw.random((3, 7, 7)),
        "gallery_pasted": pasted[:3] & np.array([True, True, False])[:, None, None],  # the last blended
    }
