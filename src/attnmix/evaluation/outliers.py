"""Does a low confidence give away images of none of the model's classes? ImageNet-O in TransMix's Table 4."""

from attnmix.evaluation.confidence import aupr, auroc
from attnmix.evaluation.exam import Answer, Exam, Question
from attnmix.evaluation.scores import confidences, restriction, unread


def ask_outliers(exam: Exam) -> Answer:
    """AUPR and AUROC of the exam's outliers against its data, both among the data's classes."""
    assert exam.outliers is not None
    columns = exam.data.columns
    known = confidences(exam, exam.data.images, columns, what="known classes")
    outliers = confidences(exam, exam.outliers, columns, what="outliers")
    found = {"AUPR %": 100 * aupr(known, outliers), "AUROC %": 100 * auroc(known, outliers)}
    chance = 100 * len(outliers) / (len(known) + len(outliers))
    counts = {"images": len(known), "outliers": len(outliers)}
    return {
        "values": {**found},
        "tables": {"detection": [{**counts, **found, "AUPR of chance %": chance}]},
        "notes": [
            "outliers are the positives, found by a low maximum softmax probability; AUPR rises with their share "
            "of all images, which is what chance reaches",
            *restriction(exam, exam.data, "data and outliers"),
            *unread(exam.outliers, "outliers"),
        ],
    }


def _missing(exam: Exam) -> str | None:
    return "give images of none of the model's classes: --outliers FOLDER" if exam.outliers is None else None


QUESTION = Question(
    name="outliers",
    about="are images of unknown classes told by a low confidence? AUPR and AUROC (ImageNet-O, TransMix Table 4)",
    ask=ask_outliers,
    missing=_missing,
    uses=("outliers",),
)
