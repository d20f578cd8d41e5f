"""The report: figures as PNG files, and one HTML page that holds everything it shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnmix.report.ablation import ablation_notes, ablation_table
from attnmix.report.accuracy_cost import FEW, accuracy_cost, measured_points
from attnmix.report.confusion import confusion_matrix, summed_confusion
from attnmix.report.curves import learning_curves
from attnmix.report.gallery import GalleryRow, gallery
from attnmix.report.page_parts import as_picture, environment, file_names, moment, sections, write_pictures
from attnmix.report.pairs import ImagePairs
from attnmix.report.pairs import pairs as pairs_sheet
from attnmix.report.results import MISSING, Results, entries, method_labels, number, show_share, summary_of
from attnmix.report.style import method_styles
from attnmix.report.table import RUN_COLUMNS, SUMMARY_COLUMNS, control_table, run_table, summary_table

FOLDED_PAST = 8  # methods: then what shows each of them at length opens on a click


def write_report(
    results: dict[str, Any],
    gallery_rows: Sequence[GalleryRow],
    out_dir: Path,
    *,
    pairs: ImagePairs | None = None,
) -> Path:
    """Write `out_dir/figures/*.png` and `out_dir/report.html`, and return the page's path.

    The page needs neither network nor script nor the PNG files. What the results lack is shown as a dash.
    """
    out_dir = Path(out_dir)
    labels = method_labels(results)
    named = ", ".join(labels) or "no method"
    curves = as_picture(
        learning_curves(results),
        "learning-curves",
        f"Evaluation top-1 and training loss by epoch for {named}; final values: see the table.",
        wide=True,
    )
    points = measured_points(results)
    cost = as_picture(accuracy_cost(results), "accuracy-cost", _cost_in_words(points), wide=len(points) > FEW)
    same_pairs = None
    if pairs is not None:
        sheet = pairs_sheet(pairs, methods=labels)
        same_pairs = as_picture(sheet, "pairs", _pairs_in_words(pairs), wide=True)
    examples = None
    if gallery_rows:
        sheet = gallery(gallery_rows, methods=labels)
        examples = as_picture(sheet, "gallery", _gallery_in_words(gallery_rows), wide=True)
    many = len(entries(results, "class_names")) > 12
    confusions = [
        (label, as_picture(confusion_matrix(results, label), name, f"Confusion matrix of {label}.", wide=many))
        for label, name in zip(labels, file_names("confusion", labels), strict=True)
        if summed_confusion(results, label) is not None
    ]

    optional = [picture for picture in (same_pairs, examples) if picture is not None]
    write_pictures([curves, cost, *optional, *(picture for _, picture in confusions)], out_dir / "figures")

    template = environment().get_template("report.html.j2")
    page = template.render(
        title=str(results.get("title") or "attnmix report"),
        created=moment(results.get("created")),
        command=str(results.get("command") or MISSING),
        labels=labels,
        colors={label: style.color for label, style in method_styles(labels).items()},
        ablation=_ablation(results),
        summary_columns=SUMMARY_COLUMNS,
        summary=summary_table(results),
        controls=control_table(results),
        mixup_shares=_mixup_shares(results),
        run_columns=RUN_COLUMNS,
        runs=run_table(results),
        notes=[str(note) for note in entries(results, "notes")],
        curves=curves,
        cost=cost,
        not_in_cost=[label for label in labels if label not in {point.label for point in points}],
        pairs=same_pairs,
        gallery=examples,
        many=len(labels) > FOLDED_PAST,
        confusions=confusions,
        without_confusion=[label for label in labels if label not in dict(confusions)],
        settings=list(sections(results.get("recipe") or {})),
        versions=results.get("versions") or {},
        machine=results.get("machine") or {},
        missing=MISSING,
    )
    path = out_dir / "report.html"
    path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return path


def _ablation(results: Results) -> dict[str, Any] | None:
    """The table of a paper beside ours; None in a plain comparison."""
    if not results.get("ablation"):
        return None
    columns, rows = ablation_table(results)
    title = results["ablation"]["title"]
    return {"title": title, "columns": columns, "rows": rows, "notes": ablation_notes(results)}


def _mixup_shares(results: Results) -> list[tuple[str, list[str]]]:
    """Labels by the share of steps that draw Mixup: rows within one group may be compared."""
    groups: dict[str, list[str]] = {}
    for label in method_labels(results):
        share = summary_of(results, label).get("mixup_share")
        if number(share) is not None:
            groups.setdefault(show_share(share), []).append(label)
    return list(groups.items())


def _cost_in_words(points: Sequence[Any]) -> str:
    each = "; ".join(f"{p.label} {p.top1:.1f} % at {p.ratio:.2f} times CutMix" for p in points)
    return f"Top-1 against training time: {each or 'nothing measured yet'}."


def _pairs_in_words(found: ImagePairs) -> str:
    return f"{len(found.images)} pairs of images, the same ones mixed by {', '.join(found.mixed) or 'no method'}."


def _gallery_in_words(rows: Sequence[GalleryRow]) -> str:
    methods = ", ".join(dict.fromkeys(row.method for row in rows))
    return f"{len(rows)} mixed pictures by {methods}, each with source, target, attention and label weights."
