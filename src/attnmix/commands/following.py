"""How far an evaluation has come: a bar for the questions, one for the images, a line for each answer."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Following:
    """A `Progress` of `attnmix.evaluation` that people can look at; nothing moves where there is no terminal.

    Args:
        console: where it is shown.
        total: questions times models.
    """

    def __init__(self, console: Console, *, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeRemainingColumn(),
        )
        self.console = console
        self.bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.overall = self.bars.add_task("evaluating", total=total, unit="questions")
        self.inner = self.bars.add_task("", total=None, unit="images", visible=False)
        self.current, self.started, self.kept = "", 0.0, 0

    def __enter__(self) -> "Following":
        self.bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close()
        self.bars.__exit__(kind, error, trace)

    def question(self, name: str, label: str, known: bool) -> None:
        """The next question is asked; `known`: its answer was kept by an earlier command."""
        self._close()
        self.current, self.started = f"{label}: {name}", time.perf_counter()
        if known:
            self.current = ""
            self.kept += 1
        self.bars.update(self.overall, advance=1, description=f"{label}: {name}")

    def begin(self, total: int | None, what: str = "") -> None:
        """A pass over so many images begins."""
        self.bars.reset(self.inner, total=total, description=what or "images", visible=True)

    def advance(self, asked: int, read: int) -> None:
        """So many images are done."""
        self.bars.advance(self.inner, asked)

    def _close(self) -> None:
        if self.current:
            seconds = time.perf_counter() - self.started
            self.console.print(f"{self.current}  {seconds:.1f} s", highlight=False, markup=False)
        self.current = ""
