"""SIGINT and SIGTERM as a request to stop: finish the step, save, report, exit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818 - not an error: the run is saved and can go on
    """Raised after the state was saved; `signal` is the number that asked for it."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal = signal_number


class StopRequest:
    """Which signal asked to stop, if any."""

    signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; a second one of the same kind gets the usual, immediate effect."""
        self.signal = number
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Watch for SIGINT and SIGTERM while training; handlers are put back afterwards."""
    request = StopRequest()
    watched = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, request) for number in watched}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
