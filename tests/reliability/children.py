"""Trainings that end where they are told to, for children of the nursery."""

import os
import resource
import signal
import threading

import torch

import attnmix
from attnmix.training import load_recipe, loop, train


def train_until(
    recipe: str,
    out: str,
    resume: bool = False,
    kill_after: float | None = None,
    kill_in: tuple[str, int] | None = None,
    file_limit: int | None = None,
) -> None:
    """Train, by `attnmix.training.train`, or until what is told here happens.

    Args:
        recipe: file of it.
        out: folder of the run.
        resume: go on from its checkpoint.
        kill_after: SIGKILL so many seconds after its first step.
        kill_in: function and call: SIGKILL as this function of `os` or torch is called for that time, from 1.
        file_limit: bytes that a file may hold.
    """
    loop.CHECK_EVERY = 2
    if kill_in is not None:
        _die_in(*kill_in)
    if kill_after is not None:
        _die_after(kill_after)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    train(load_recipe(recipe), out, resume=resume, progress=False)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in(name: str, call: int) -> None:
    where = torch if name == "save" else os
    function, calls = getattr(where, name), []

    def counted(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == call:
            if name == "save":  # half of it is written
                args[1].write(b"PK half a checkpoint")
                args[1].flush()
            _die()
        return function(*args, **options)

    setattr(where, name, counted)


def _die_after(seconds: float) -> None:
    class Timed(attnmix.MixTask):
        def forward(self, *args: object, **options: object) -> dict:
            if not hasattr(Timed, "begun"):
                Timed.begun = threading.Timer(seconds, _die)
                Timed.begun.daemon = True
                Timed.begun.start()
            return super().forward(*args, **options)

    attnmix.MixTask = Timed
