"""Ask of models what the papers measure: robustness, calibration, localisation, attention, mixed images.

MODEL is a run of `attnmix train`, a folder of runs (of `attnmix compare`), an exported model, a checkpoint.pt, one
of timm's names, or TIMM_NAME@WEIGHTS_FILE; LABEL=MODEL gives it a name. Several models are set side by side on the
same data. `attnmix list questions` tells the questions; all that the data allows are asked, or those of --suite.

Each answer is kept in OUT as soon as it is there: the same command goes on where it stopped, more questions join
those answered before, and of more models only the new ones are asked. OUT gets results.json, summary.md,
tables/*.csv, figures/*.png and report.html, which hold the models that the last command named.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from attnmix._nearest import nearest

if TYPE_CHECKING:
    from attnmix.evaluation.exam import Exam, Question

EXAMPLES = """
examples:
  attnmix evaluate runs/smmix
  attnmix evaluate runs/demo --suite accuracy,occlusion,localisation --out runs/demo/evaluation
  attnmix evaluate deit_tiny_patch16_224 deit_small_patch16_224 --data path/to/imagenet --split validation \\
    --shifted A=path/to/imagenet-a,R=path/to/imagenet-r --outliers path/to/imagenet-o --annotations path/to/xml
  attnmix evaluate mine=deit_small_patch16_224@weights.safetensors --data path/to/imagenet --limit 5000
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add MODEL..., what is asked, on what, and how."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="what to evaluate: see above")
    parser.add_argument(
        "--suite", default="all", help="all, or questions with commas between (`attnmix list questions`)"
    )
    parser.add_argument(
        "--data",
        default=None,
        help="folder of class folders, or a name of `attnmix list data`; default: the run's",
    )
    parser.add_argument("--split", default=None, help="of the data; default: the run's, or the evaluation split")
    parser.add_argument("--data_options", type=dict, default=None, help="options of the data set, as {key: value}")
    parser.add_argument(
        "--shifted",
        default=None,
        metavar="NAME=FOLDER,...",
        help="other images of (some of) the same classes, as ImageNet-A: class folders, or DATA@SPLIT",
    )
    parser.add_argument(
        "--outliers", default=None, metavar="FOLDER", help="images of other classes, as ImageNet-O; or DATA@SPLIT"
    )
    parser.add_argument(
        "--annotations",
        default=None,
        metavar="PATH",
        help="where the data's objects are: a folder of XML files (ImageNet, VOC) or a COCO .json; the embedded "
        "data knows",
    )
    parser.add_argument(
        "--voc", default=None, metavar="FOLDER", help="VOC2012: JPEGImages, SegmentationClass, ImageSets"
    )
    parser.add_argument("--voc_split", default="val", help="of its ImageSets/Segmentation")
    parser.add_argument(
        "--saliency", default=None, metavar="MODEL", help="whose attention says what is salient; default: its own"
    )
    parser.add_argument(
        "--pretrained", type=bool, default=True, help="timm's names: published weights; false: fresh ones"
    )
    parser.add_argument(
        "--model_options", type=dict, default=None, help="timm's names: keywords of timm.create_model"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=None,
        help="at most so many images of each set, evenly from the whole; default: the question's own, or all",
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn: patches, noise, boxes, pairs")
    parser.add_argument("--batch_size", type=int, default=64, help="images at once; changes no answer")
    parser.add_argument("--workers", type=int, default=0, help="processes that read images")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--out", default="runs/evaluation", metavar="DIR", help="folder of the answers and the report"
    )


def run(arguments: Namespace) -> int:
    """Ask what is not answered yet, write everything, print the summary."""
    for name, least in (("batch_size", 1), ("workers", 0), ("seed", 0)):
        if arguments[name] < least:
            raise ValueError(f"{name} is {arguments[name]}, but must be {least} or more")
    if arguments.limit is not None and arguments.limit < 1:
        raise ValueError(f"limit is {arguments.limit}, but must be 1 or more")

    # torch, timm and matplotlib take seconds to import: --help and wrong words do without
    from rich.console import Console

    from attnmix.benchmark.device import chosen_device
    from attnmix.commands.evaluation_results import collect, write
    from attnmix.commands.exams import Material, answer_settings, common_data, create_exam, parse_shifted
    from attnmix.commands.following import Following
    from attnmix.commands.sources import find_sources
    from attnmix.commands.subjects import open_subject
    from attnmix.evaluation.questions import QUESTIONS
    from attnmix.evaluation.store import AnswerStore
    from attnmix.evaluation.suite import Outcome, add_kept, ask_all
    from attnmix.report import evaluation_summary

    out = Path(arguments.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out is {str(out)!r}, which is a file: want a folder")
    console = Console()
    asked = parse_suite(arguments.suite, QUESTIONS)
    sources = find_sources(arguments.models)
    data = {"data": arguments.data} if arguments.data is not None else common_data(sources)
    typed = {"split": arguments.split, "data_options": arguments.data_options}
    keys = ("outliers", "annotations", "voc", "voc_split", "saliency", "limit", "seed")
    material = Material(
        **{**data, **{key: value for key, value in typed.items() if value is not None}},
        shifted=parse_shifted(arguments.shifted),
        **{key: arguments[key] for key in keys},
    )
    opening = {
        "device": chosen_device(arguments.device),
        "pretrained": arguments.pretrained,
        "model_options": arguments.model_options,
        "seed": arguments.seed,
    }
    with console.status("opening models and data"):
        saliency = None
        if material.saliency is not None:
            (source,) = find_sources([material.saliency])
            saliency = open_subject(source, **opening)
        exams = [
            create_exam(
                open_subject(source, **opening),
                material,
                saliency=saliency,
                batch_size=arguments.batch_size,
                workers=arguments.workers,
            )
            for source in sources
        ]
    if arguments.suite != "all":
        _check_askable(exams, asked)
    store, outcome = AnswerStore(out), Outcome()

    def settings(exam: "Exam", question: "Question") -> dict[str, Any]:
        return answer_settings(material, exam, question)

    page = None
    out.mkdir(parents=True, exist_ok=True)
    try:
        with Following(console, total=len(asked) * len(exams)) as following:
            for exam in exams:
                exam.progress = following
            ask_all(exams, asked, store, settings, outcome=outcome, begin=following.question)
        if following.kept:
            console.print(f"{following.kept} answers had been kept", highlight=False)
        others = {name: question for name, question in QUESTIONS.items() if name not in asked}
        add_kept(exams, others, store, settings, outcome=outcome)
    except KeyboardInterrupt:
        console.print(f"the answers so far are in {out}: the same command goes on", highlight=False, markup=False)
        raise
    finally:
        if outcome.answers:  # also of a round that was broken off
            with console.status("drawing figures"):
                results = collect(outcome, exams, QUESTIONS, material, arguments)
                page = write(results, outcome, out)
    if page is not None:
        console.print(evaluation_summary(results))
    for reason, names in left_out_by_reason(outcome.left_out).items():
        console.print(f"not asked: {names}: {reason}", highlight=False, markup=False)
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True, highlight=False)
    if outcome.failed:
        name, failures = next(iter(outcome.failed.items()))
        label, reason = next(iter(failures.items()))
        count = sum(map(len, outcome.failed.values()))
        raise ValueError(
            f"{count} of {len(asked) * len(exams)} questions failed, the first {name} of {label}: {reason}; the "
            f"answers to the others are in {out}"
        )
    return 0


def parse_suite(typed: str, known: "dict[str, Question]") -> "dict[str, Question]":
    """Read --suite.

    Raises:
        ValueError: an unknown question (the nearest is named), or none.
    """
    if "all" in (word.strip() for word in typed.split(",")):
        return known
    names = [word.strip().replace("_", "-") for word in typed.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown question {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    if not names:
        raise ValueError(f"suite {typed!r} names no question; known: {', '.join(known)}")
    return {name: question for name, question in known.items() if name in names}


def left_out_by_reason(left_out: dict[str, dict[str, str]]) -> dict[str, str]:
    """For each reason the questions that it kept from being asked, with their models: `occlusion (a, b)`."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, reasons in left_out.items():
        for label, reason in reasons.items():
            found.setdefault(reason, {}).setdefault(name, []).append(label)
    return {
        reason: ", ".join(f"{name} ({', '.join(labels)})" for name, labels in names.items())
        for reason, names in found.items()
    }


def _check_askable(exams: "list[Exam]", asked: "dict[str, Question]") -> None:
    """ValueError for a question asked for by name that no model can be asked."""
    for name, question in asked.items():
        reasons = [question.missing(exam) for exam in exams]
        if all(reason is not None for reason in reasons):
            raise ValueError(f"{name} cannot be asked: {reasons[0]}")
