"""Which figures belong to which question, and what they show in words."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from matplotlib.figure import Figure

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.bars import localisation_bars, mixed_bars, segmentation_bars, shift_bars
from attnmix.report.evaluation.calibration import reliability
from attnmix.report.evaluation.dots import class_dots, label_dots
from attnmix.report.evaluation.lines import (
    attack_lines,
    fluctuation_lines,
    noise_lines,
    occlusion_lines,
    shuffle_lines,
)
from attnmix.report.evaluation.pictures import MIXED, UNMIXED, mixed_gallery, picture_sheets
from attnmix.report.evaluation.regions import region_squares
from attnmix.report.page_parts import Picture, as_picture
from attnmix.report.results import Results

WIDE = 6.5  # inches from which a figure scrolls on a phone


class Drawing(NamedTuple):
    """One figure of a question."""

    name: str
    draw: Callable[[Results], Figure | None]
    alt: str
    caption: str = ""


GREY = (
    "Grey: controls, which a map has to beat to mean anything. The mark at their foot says whose they are; those "
    "that are the same for all models have none."
)
LAID_OVER = "one square for each token, bright where it is high; every map has its own scale."

DRAWINGS: dict[str, tuple[Drawing, ...]] = {
    "accuracy": (
        Drawing(
            "accuracy-reliability",
            reliability,
            "Accuracy against mean confidence of each bin",
            "On the dashed line a model is as often right as it is sure; below it, it is too sure. A dot is as "
            "large as the bin's share of the images.",
        ),
        Drawing("accuracy-classes", class_dots, "Top-1 of each class"),
    ),
    "shift": (Drawing("shift", shift_bars, "Top-1 and expected calibration error on each set"),),
    "occlusion": (
        Drawing(
            "occlusion",
            occlusion_lines,
            "Top-1 against the share of dropped patches, in a panel for each way to choose them",
            "Salient patches are those that attention favours: a model that leans on a few of them falls first.",
        ),
    ),
    "shuffle": (Drawing("shuffle", shuffle_lines, "Top-1 against the number of shuffled pieces per side"),),
    "noise": (Drawing("noise", noise_lines, "Top-1 against the sigma of the noise"),),
    "attack": (Drawing("attack", attack_lines, "Top-1 against the step size of the attack"),),
    "localisation": (
        Drawing(
            "localisation",
            localisation_bars,
            "How well each map finds the boxes of the objects, controls in grey",
            GREY,
        ),
    ),
    "segmentation": (
        Drawing(
            "segmentation",
            segmentation_bars,
            "Overlap of each map with the objects, controls in grey",
            GREY,
        ),
    ),
    "regions": (
        Drawing(
            "regions",
            region_squares,
            "Attention from each region of mixed images to each, over that of uniform attention",
            "1× is what uniform attention would give. One scale for all models.",
        ),
    ),
    "fluctuation": (
        Drawing(
            "fluctuation",
            fluctuation_lines,
            "Spread of presence and drift of the mixing ratio by block",
            "Thin lines: the drift carried along.",
        ),
    ),
    "mixed": (Drawing("mixed", mixed_bars, "Top-1 and top-2 on images mixed by each method"),),
    "label-content": (
        Drawing(
            "label-content",
            label_dots,
            "Label-content error of each mixing method, with its standard error, controls in grey",
            "0 means that the mixed label says exactly what can be seen. Bars reach one standard error to either "
            "side. Grey: controls; an upright stroke is one that is the same for all models.",
        ),
    ),
}


def figures_of(results: Results, arrays: read.Arrays, question: str) -> Iterator[tuple[Picture, str]]:
    """The pictures of a question with their captions; those that would be empty are left out."""
    named = ", ".join(read.answers(results, question))
    for drawing in DRAWINGS.get(question, ()):
        figure = drawing.draw(results)
        if figure is not None:
            yield _picture(figure, drawing.name, f"{drawing.alt}: {named}."), drawing.caption
    if question == "pictures":
        yield from _pictures(results, arrays)


def _pictures(results: Results, arrays: read.Arrays) -> Iterator[tuple[Picture, str]]:
    for kind, alt, caption in (
        (
            UNMIXED,
            "Images with attention and class activation laid over them",
            "Beneath the image its class, beneath the maps what the model takes it for, red where that is wrong. "
            f"Maps are laid over the grey image, {LAID_OVER}",
        ),
        (
            MIXED,
            "Mixed images with class activation for both of their classes laid over them",
            "The outline is the pasted box. Beneath the image the class of the source and that of the target, "
            "beneath the maps the model's first two guesses, red where a guess is neither. Maps are laid over the "
            f"grey image, {LAID_OVER}",
        ),
    ):
        for i, (labels, figure) in enumerate(picture_sheets(results, arrays, kind), start=1):
            name = f"pictures-{kind.table}" + (f"-{i}" if i > 1 else "")
            yield _picture(figure, name, f"{alt}: {', '.join(labels)}."), caption if i == 1 else ""
    sheet = mixed_gallery(results, arrays)
    if sheet is not None:
        named = ", ".join(read.table(results, "pictures", "gallery"))
        yield (
            _picture(
                sheet, "pictures-gallery", f"Mixed images with their source, target and label weights: {named}."
            ),
            f"The outline is the pasted box. Attention is laid over the mixed image, {LAID_OVER} Bars give the "
            "weight of the source in the label, by pasted area and by attention, and its visible share of all "
            "object pixels.",
        )


def _picture(figure: Figure, name: str, alt: str) -> Picture:
    return as_picture(figure, name, alt, wide=figure.get_figwidth() >= WIDE)
