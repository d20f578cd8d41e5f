"""Trainings in processes of their own that can be killed: forked from one that has imported torch.

Run as a script it is that process: it reads a line of JSON for each child, forks, and answers
with how the child ended.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

READY = "ready"


class Nursery:
    """Context; `train(...)` forks a child that trains."""

    def __enter__(self) -> "Nursery":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no pool of threads that a fork would break
        command = [sys.executable, "-m", "tests.reliability.children"]
        self.parent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._answer() == READY
        return self

    def __exit__(self, *_: object) -> None:
        self.parent.stdin.close()
        self.parent.wait(30)

    def train(self, recipe: Path, out: Path, **told: object) -> dict:
        """Train, by `attnmix.training.train`, and say how it ended.

        Args:
            recipe: file of it.
            out: of the run.
            told: `resume`; `kill_after`, seconds from its first step; `kill_in`, [function, call]: SIGKILL
                as this function of `os` or torch is called for that time, from 1; `file_limit`, bytes of a file.

        Returns:
            `signal` that ended it, or 0; `error`, the line that the command would say; `seconds`.
        """
        self.parent.stdin.write(json.dumps({"recipe": str(recipe), "out": str(out), **told}) + "\n")
        self.parent.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        return self.parent.stdout.readline().strip()


def _child(told: dict) -> None:
    """In the child: kill itself where it was told to."""
    import signal
    import threading

    import torch

    import attnmix
    from attnmix.training import load_recipe, loop, train

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    loop.CHECK_EVERY = 2
    if "kill_in" in told:
        name, call = told["kill_in"]
        where = torch if name == "save" else os
        function, calls = getattr(where, name), []

        def counted(*args: object, **options: object) -> object:
            calls.append(1)
            if len(calls) == call:
                if name == "save":  # half of it is written
                    args[1].write(b"PK half a checkpoint")
                    args[1].flush()
                die()
            return function(*args, **options)

        setattr(where, name, counted)
    if "kill_after" in told:

        class Timed(attnmix.MixTask):
            def forward(self, *args: object, **options: object) -> dict:
                if not hasattr(Timed, "begun"):
                    Timed.begun = threading.Timer(told["kill_after"], die)
                    Timed.begun.daemon = True
                    Timed.begun.start()
                return super().forward(*args, **options)

        attnmix.MixTask = Timed
    if "file_limit" in told:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (told["file_limit"], told["file_limit"]))
    train(load_recipe(told["recipe"]), told["out"], resume=told.get("resume", False), progress=False)


def _serve() -> None:
    import attnmix.training.loop  # noqa: F401 (what takes seconds is done before the fork)

    print(READY, flush=True)
    for line in sys.stdin:
        told, started = json.loads(line), time.monotonic()
        reading, writing = os.pipe()
        number = os.fork()
        if number == 0:
            try:
                _child(told)
            except BaseException as error:
                os.write(writing, f"{type(error).__name__}: {error}".encode()[:2000])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            error = pipe.read().decode()
        _, status = os.waitpid(number, 0)
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        print(json.dumps({"signal": ended, "error": error, "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    _serve()
