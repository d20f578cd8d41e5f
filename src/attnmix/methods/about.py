"""What a table of methods says of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """One method in a table: who published it, what it does, what it costs and what it needs.

    Costs are of a step in which it mixes in its own way, with default options, beside the plain training step;
    they are counted by a test.

    Attributes:
        paper: authors, venue and year.
        images: what becomes of the pixels.
        labels: what the label follows from.
        forwards: further forwards of the model or a copy of it, whole or in part.
        backwards: further backward passes through either.
        teacher_forwards: forwards of another, frozen model.
        parameters: whether it adds parameters that are trained; they are saved, and never exported.
        more: further cost in words.
        needs: what has to be there: `a class token`, `a teacher`, `a teacher or label maps`, `the package NAME`.
    """

    paper: str
    images: str
    labels: str
    forwards: int = 0
    backwards: int = 0
    teacher_forwards: int = 0
    parameters: bool = False
    more: str = ""
    needs: tuple[str, ...] = ()

    @property
    def cost(self) -> str:
        """The cost in words; a dash where there is none."""
        parts = [
            *_count(self.forwards, "forward"),
            *_count(self.backwards, "backward"),
            *_count(self.teacher_forwards, "teacher forward"),
            *(["parameters"] if self.parameters else []),
            *([self.more] if self.more else []),
        ]
        return ", ".join(parts) or "-"


def _count(number: int, what: str) -> list[str]:
    if not number:
        return []
    return [f"{number} {what}" + ("s" if number > 1 else "")]
