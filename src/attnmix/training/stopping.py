"""Signals that ask a run to stop: it finishes its step, saves, and can be resumed."""

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

__all__ = ["StopRequests", "Stopped"]

# Ctrl-C; what schedulers send before they take a machine away; a closed terminal
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
INSISTS_AFTER = 1.0  # seconds: torchrun passes on a Ctrl-C that its processes have had already


class Stopped(KeyboardInterrupt):
    """A signal ended the run; its state is saved.

    Attributes:
        signal: the signal's number; 128 more is the customary exit code.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number

    def __reduce__(self) -> tuple[type, tuple[int]]:  # from a worker of a comparison
        return type(self), (self.signal,)


class StopRequests:
    """Context in which a signal is noted rather than obeyed; a second Ctrl-C is obeyed at once.

    Signals that are ignored (as by nohup) stay so. Outside the main thread, where Python allows no handlers,
    it notes nothing.

    Attributes:
        received: the first signal's number; 0 while there is none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def agreed(self, accelerator: Accelerator, *more: int) -> tuple[int, ...]:
        """What any process has received, and the largest of each further number or flag; all have to ask."""
        flags = [self.received, *map(int, more)]
        if accelerator.num_processes == 1:
            return tuple(flags)
        shared = torch.tensor(flags, device=accelerator.device)
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
        return tuple(shared.tolist())

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received and number == signal.SIGINT and now - self._when > INSISTS_AFTER:
            raise KeyboardInterrupt
        if not self.received:
            self.received, self._when = number, now
