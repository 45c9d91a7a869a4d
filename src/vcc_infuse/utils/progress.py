"""Progress of long work: phases that say what is going on, and bars with the remaining time.

On a terminal there is a bar or a running clock; elsewhere, as in a log file, there are lines now and then.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm.auto import tqdm

FIRST = 3.0  # seconds until the first line where there is no terminal
QUIET = 30.0  # seconds between further lines
TICK = 0.5  # seconds between two looks of a phase at the clock
REFRESH = 10  # steps between two looks at the figures, which make the device wait
BAR = 10  # columns that notes leave for the bar
FORMAT = "{desc}{percentage:3.0f} %|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
FIXED = len(": 100 %|| /, 12:34:56 left")
ERASE = "\r\033[K"
RATES = {"error": "error", "ece": "ECE", "pseudo_label_coverage": "coverage", "pseudo_label_precision": "precision"}


class Phase:
    """One phase of a run, made by `phase`."""

    def __init__(self, text: str, shown: bool) -> None:
        self.text = text
        self.shown = shown and os.environ.get("RANK", "0") == "0"
        self.began = self.last_line = time.monotonic()
        self.done = threading.Event()
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Print, if the phase is shown."""
        if self.shown:
            print(text, end="", flush=True)

    def tick(self) -> None:
        """Show the elapsed time if it is due: as a line, on a terminal as a clock that other output overwrites."""
        terminal = sys.stdout.isatty()
        now = time.monotonic()
        if _open[-1:] == [self] and now - self.last_line >= (1 if terminal else FIRST):
            self.last_line = now
            elapsed = duration(now - self.began)
            self.write(f"{ERASE}  {elapsed}\r" if terminal else f"{self.text}: {elapsed}\n")

    def watch(self) -> None:
        """Look at the clock until the phase is done."""
        while not self.done.wait(TICK):
            self.tick()


_open: list[Phase | Progress] = []  # the innermost last: it alone speaks


@contextmanager
def phase(text: str, *, shown: bool = True) -> Iterator[Phase]:
    """Say what is going on ("reading photos"), at once and again every three seconds; only on the first process.

    A `Progress` or another phase inside silences it meanwhile.
    """
    running = Phase(text, shown)
    depth = len(_open)
    _open.append(running)
    threading.Thread(target=running.watch, name=f"phase: {text}", daemon=True).start()
    try:
        yield running
    finally:
        running.done.set()
        del _open[depth:]
        running.write(ERASE if sys.stdout.isatty() else "")


class Progress:
    """Counts things that are being done, such as "embedding" of `total` "views", of which `start` were done before.

    Threads may share it. Where there is no terminal, the first line comes after three seconds, then one every half
    minute.
    """

    def __init__(self, doing: str, total: int, unit: str, shown: bool = True, start: int = 0) -> None:
        self.doing = doing
        self.total = total
        self.unit = unit
        self.start = start
        self.count = start
        self.shown = shown and total > start
        self.terminal = sys.stderr.isatty()
        if self.shown:
            _open.append(self)
        hidden = not (self.shown and self.terminal)
        self.bar = tqdm(total=total, initial=start, desc=doing, disable=hidden, dynamic_ncols=True, bar_format=FORMAT)
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.next_line = self.began + min(FIRST, QUIET)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def advance(self, count: int = 1, notes: Iterable[str] = ()) -> None:
        """Count `count` more as done; `notes` are shown beside the bar, the most important first."""
        with self.lock:
            self.count += count
            if notes := list(notes):
                taken = FIXED + len(self.doing) + 2 * len(str(self.total)) + BAR
                room = shutil.get_terminal_size().columns - taken
                self.bar.set_postfix_str(fitting(notes, room), refresh=False)
            self.bar.update(count)
            if self.line_due():
                rate = (self.count - self.start) / max(time.monotonic() - self.began, 1e-9)
                rest = self.total - self.count
                left = [f"{duration(rest / rate)} left"] if rate and rest > 0 else []
                done = f"{self.doing}: {self.count:,} of {self.total:,} {self.unit}"
                self.say(", ".join([done, f"{rate:,.3g} per second", *left, *notes]), sys.stderr)

    def line_due(self) -> bool:
        """Whether there is no terminal and it is time for a line."""
        return self.shown and not self.terminal and time.monotonic() >= self.next_line

    def say(self, line: str, stream: TextIO | None = None) -> None:
        """Print a line, above the bar if there is one; the next line of `advance` is due half a minute later."""
        self.next_line = time.monotonic() + QUIET
        if not self.bar.disable:
            self.bar.write(line)
        elif self.shown:
            print(line, file=stream or sys.stdout, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()
        if self in _open:
            _open.remove(self)


class TrainingProgress(Progress):
    """The progress of a run. Where there is no terminal, about ten evaluations are printed."""

    def __init__(self, steps: int, start: int, shown: bool) -> None:
        super().__init__("training", steps, "steps", shown, start)
        self.last_printed = start

    def due(self, step: int) -> bool:
        """Whether to read new figures: often enough for the bar, and where a line is due."""
        return self.line_due() if self.bar.disable else step % REFRESH == 0

    def step(self, figures: dict[str, Any] | None = None) -> None:
        """Count one step."""
        self.advance(1, brief(figures) if figures else ())

    def back_to(self, step: int) -> None:
        """Go back to `step`, because the steps after it are repeated."""
        self.count = step
        self.bar.n = step
        self.last_printed = min(self.last_printed, step)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Print the figures of an evaluation, unless there are too many evaluations to print all."""
        is_due = step == self.total or step - self.last_printed >= self.total / 10
        if not self.bar.disable or is_due or self.line_due():
            self.say(f"step {step}/{self.total}: {', '.join(brief(figures))}")
            self.last_printed = step


def brief(figures: dict[str, Any]) -> list[str]:
    """The most important figures in words, rates in percent; the ECE is that of the calibrated confidence.

    >>> brief({"error": 0.25, "ece": 0.2, "ece_calibrated": 0.05, "loss_labeled": 0.5})
    ['error 25.0 %', 'ECE 5.0 %', 'labeled 0.500']
    """
    ece = figures.get("ece") if figures.get("ece_calibrated") is None else figures["ece_calibrated"]
    values = {**figures, "ece": ece}
    names = {**RATES, "error": "validation error"} if figures.get("evaluated_on") == "validation" else RATES
    rates = [
        f"{name} {100 * values[key]:.1f} %"
        for key, name in names.items()
        if isinstance(values.get(key), float) and values[key] == values[key]
    ]
    losses = [f"{key.removeprefix('loss_')} {v:.3f}" for key, v in figures.items() if key.startswith("loss_")]
    return [*rates, *losses]


def fitting(notes: Iterable[str], room: int) -> str:
    """As many of the first notes as there is room for; each takes two columns for its comma."""
    kept: list[str] = []
    for note in notes:
        room -= len(note) + 2
        if room < 0:
            break
        kept.append(note)
    return ", ".join(kept)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42.4), duration(600), duration(7200)
    ('42 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def say(*lines: str, shown: bool) -> None:
    """Lines on the screen, from the first process only."""
    if shown and os.environ.get("RANK", "0") == "0":
        for line in lines:
            print(line, flush=True)
