"""A signal to stop: it is remembered until the current step ends, and a line then says what was saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class Interrupted(Exception):  # noqa: N818 - not an error: the run is saved and can go on
    """Raised after the state was saved; `signal` is the number that asked for it."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal = signal_number


class StopRequest:
    """Watches for SIGINT and SIGTERM while training: which of them asked to stop, if any."""

    signal: int | None = None

    def __enter__(self) -> Self:
        watched = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
        self.before = {number: signal.signal(number, self._remember) for number in watched}
        return self

    def __exit__(self, *fault: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """A second signal of the same kind gets the usual, immediate effect."""
        self.signal = number
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
