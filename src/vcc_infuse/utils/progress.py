"""How far something is: a bar with the remaining time on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm.auto import tqdm

QUIET = 30.0  # seconds between lines where there is no terminal
BAR = 10  # columns that notes leave for the bar
FORMAT = "{desc}{percentage:3.0f} %|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
FIXED = len(": 100 %|| /, 12:34:56 left")


class Progress:
    """Counts things that are being done, such as (embedding, views).

    Off a terminal it says nothing about what takes less than half a minute. Threads may share it.
    """

    def __init__(self, doing: str, total: int, unit: str, shown: bool = True, start: int = 0) -> None:
        self.doing, self.total, self.unit, self.start = doing, total, unit, start
        self.shown, self.terminal = shown and total > start, sys.stderr.isatty()
        self.bar = tqdm(
            total=total, initial=start, desc=doing, disable=not (self.shown and self.terminal), dynamic_ncols=True,
            bar_format=FORMAT,
        )  # fmt: skip
        self.count, self.began, self.lock = start, time.monotonic(), threading.Lock()
        self.said = self.began

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def advance(self, count: int = 1, notes: Iterable[str] = ()) -> None:
        """So many more are done; notes are what is worth a glance besides, the most important first."""
        with self.lock:
            self.count += count
            if notes := list(notes):
                self.bar.set_postfix_str(fitting(notes, self.room()), refresh=False)
            self.bar.update(count)
            if self.line_due():
                self.say(self.line(notes), sys.stderr)

    def line_due(self) -> bool:
        """Whether there is no terminal, and the last line is half a minute old."""
        return self.shown and not self.terminal and time.monotonic() - self.said >= QUIET

    def say(self, line: str, stream: TextIO | None = None) -> None:
        """Print a line, above the bar if there is one; the next one of `advance` is due half a minute later."""
        self.said = time.monotonic()
        if not self.bar.disable:
            self.bar.write(line)
        elif self.shown:
            print(line, file=stream or sys.stdout, flush=True)

    def line(self, notes: Iterable[str] = ()) -> str:
        """How far it is, how fast, and how long it will take."""
        done, seconds = self.count - self.start, max(time.monotonic() - self.began, 1e-9)
        rate = done / seconds
        left = [f"{duration((self.total - self.count) / rate)} left"] if rate and self.count < self.total else []
        far = f"{self.doing}: {self.count:,} of {self.total:,} {self.unit}"
        return ", ".join([far, f"{rate:,.3g} per second", *left, *notes])

    def room(self) -> int:
        """Columns for notes beside a bar that can still be read."""
        return shutil.get_terminal_size().columns - FIXED - len(self.doing) - 2 * len(str(self.total)) - BAR

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()


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
    """A time for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


REFRESH = 10  # steps between two looks at the figures, which make the device wait


class TrainingProgress(Progress):
    """Shows how a run goes. Off a terminal about ten evaluations are told, and what happens in every half minute."""

    def __init__(self, steps: int, start: int, shown: bool) -> None:
        super().__init__("training", steps, "steps", shown, start)
        self.told = start

    def due(self, step: int) -> bool:
        """Whether to read new figures: often enough for the bar, and where a line is due."""
        return self.line_due() if self.bar.disable else step % REFRESH == 0

    def step(self, figures: dict[str, Any] | None = None) -> None:
        """One step further."""
        self.advance(1, brief(figures) if figures else ())

    def back_to(self, step: int) -> None:
        """Some steps are taken again."""
        self.bar.n = self.count = step
        self.told = min(self.told, step)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Tell an evaluation."""
        last = step == self.total
        if not self.bar.disable or last or step - self.told >= self.total / 10 or self.line_due():
            self.say(f"step {step}/{self.total}: {', '.join(brief(figures))}")
            self.told = step


def brief(figures: dict[str, Any]) -> list[str]:
    """The figures worth a glance, rates in percent."""
    losses = [f"{name.removeprefix('loss_')} {v:.3f}" for name, v in figures.items() if name.startswith("loss_")]
    error = "validation error" if figures.get("evaluated_on") == "validation" else "error"
    rates = [
        f"{label} {100 * figures[name]:.1f} %"
        for name, label in (
            ("error", error),
            ("ece", "ECE"),
            ("pseudo_label_coverage", "coverage"),
            ("pseudo_label_precision", "precision"),
        )
        if isinstance(figures.get(name), float) and figures[name] == figures[name]
    ]
    return [*rates, *losses]
