"""Processes of a test's own that start at once: forked from one that has imported torch, timm and attnmix.

Run as a script it is that process: it reads a line of JSON for each child, forks, and answers
with how the child ended.
"""

import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

READY = "ready"
DEADLINE = 300  # seconds after which a child that still runs says where it is, and ends


class Nursery:
    """Context; its children import in no time, may be killed, and leave the tests' own process as it was."""

    def __enter__(self) -> "Nursery":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no pool of threads that a fork would break
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._answer() == READY
        return self

    def __exit__(self, *_: object) -> None:
        self.parent.stdin.close()
        self.parent.wait(30)

    def run(self, function: Callable, *arguments: object, **options: object) -> dict:
        """Call it in a child, and say how that ended.

        Args:
            function: of a module that a child can import.
            arguments: of it, what JSON can say, or paths; `options` likewise.

        Returns:
            `signal` that ended the child, or 0; `error`, the line that a command would say; what the function
            `returned`; `seconds`.
        """
        name = [function.__module__, function.__qualname__]
        told = {"function": name, "arguments": arguments, "options": options}
        self.parent.stdin.write(json.dumps(told, default=os.fspath) + "\n")
        self.parent.stdin.flush()
        return json.loads(self._answer())

    def ranks(self, processes: int, function: Callable, *arguments: object) -> list:
        """Call it in so many processes at once, with torchrun's variables set; what each returned, by rank."""
        ended = self.run(_launch, processes, function.__module__, function.__qualname__, arguments)
        assert (ended["signal"], ended["error"]) == (0, ""), ended
        return ended["returned"]

    def _answer(self) -> str:
        return self.parent.stdout.readline().strip()


def _launch(processes: int, module: str, name: str, arguments: list) -> list:
    # Not torchrun's agent: it runs threads, and a fork beside them may wait for ever for a lock that one held.
    # So would the ranks for this process's watch; they have their own.
    faulthandler.cancel_dump_traceback_later()
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    function = getattr(import_module(module), name)  # once, before the forks
    with TemporaryDirectory() as folder:
        whole = (processes, get_free_port(), folder, function, arguments)
        start_processes(_rank, whole, nprocs=processes, start_method="fork")
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(processes)]


def _rank(rank: int, processes: int, port: int, folder: str, function: Callable, arguments: list) -> None:
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="localhost", MASTER_PORT=str(port),
    )  # fmt: skip
    (Path(folder) / str(rank)).write_text(json.dumps(function(*arguments)))


def _child(told: dict, answer: int) -> None:
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    os.dup2(2, 1)  # the other end of standard output waits for one line of JSON
    ended = {"error": "", "returned": None}
    try:
        module, name = told["function"]
        ended["returned"] = getattr(import_module(module), name)(*told["arguments"], **told["options"])
    except BaseException as error:
        ended["error"] = f"{type(error).__name__}: {error}"
    try:
        with os.fdopen(answer, "w") as pipe:
            json.dump(ended, pipe)
    finally:
        os._exit(0)


def _serve() -> None:
    import attnmix.training.loop  # noqa: F401 (what takes seconds is done before the fork)

    print(READY, flush=True)
    for line in sys.stdin:
        started = time.monotonic()
        reading, writing = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(reading)
            _child(json.loads(line), writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        ended = json.loads(said) if said else {"error": f"exit code {code}" if code > 0 else "", "returned": None}
        print(json.dumps({**ended, "signal": max(0, -code), "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    _serve()
