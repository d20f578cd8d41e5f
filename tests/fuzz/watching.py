"""Whether something ran, was fetched, or was opened outside, by Python's own audit events."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECRET = "secret"  # part of the names of files that nothing may open
CANARY = "canary_module"  # that nothing may import
_RUNS = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "subprocess.Popen", "os.startfile"}
_FETCHES = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOVES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "os.remove": 0, "os.truncate": 0}

_OURS = {"__pycache__", ".hypothesis"}  # what Python and hypothesis themselves keep

_places: list[str] | None = None  # where writing is right; None: nobody watches
_seen: list[str] = []


@contextmanager
def watched(*places: Path) -> Iterator[list[str]]:
    """Note what happens that no file may bring about; writing is right below `places` alone."""
    global _places
    _seen.clear()
    _places = [*(f"{place.resolve()}{os.sep}" for place in places), "/dev/", "/proc/"]
    try:
        yield _seen
    finally:
        _places = None


def _hear(event: str, arguments: tuple) -> None:
    if _places is None:
        return
    if event in _RUNS or event in _FETCHES:
        _seen.append(f"{event} {arguments!r}"[:300])
    elif event == "import" and arguments[0] == CANARY:
        _seen.append(f"import {CANARY}")
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if SECRET in path:
            _seen.append(f"open {path}")
        elif isinstance(arguments[2], int) and arguments[2] & _WRITES:
            _note_outside(event, path)
    elif event in _MOVES and isinstance(arguments[_MOVES[event]], (str, bytes)):
        _note_outside(event, os.fsdecode(arguments[_MOVES[event]]))


def _note_outside(event: str, path: str) -> None:
    # not realpath: that would look at files itself
    full = os.path.normpath(os.path.join(os.getcwd(), path))
    if not any(f"{full}/".startswith(place) for place in _places or []) and not _OURS & set(full.split(os.sep)):
        _seen.append(f"{event} {full}")


sys.addaudithook(_hear)
