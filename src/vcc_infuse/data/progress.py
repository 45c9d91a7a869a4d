"""How far the embedding of views is."""

from __future__ import annotations

import sys
import time

from tqdm.auto import tqdm

QUIET = 30.0  # seconds between lines where there is no terminal


class Progress:
    """A bar with rate and remaining time on a terminal; elsewhere one line every half minute."""

    def __init__(self, views: int, shown: bool) -> None:
        self.views, self.began, self.count = views, time.monotonic(), 0
        self.terminal, self.shown = sys.stderr.isatty(), shown and views > 0
        self.bar = tqdm(total=views, unit="view", desc="embedding", disable=not (self.shown and self.terminal))
        self.printed = self.began

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *fault: object) -> None:
        self.bar.close()

    def advance(self, views: int) -> None:
        """So many views more are embedded."""
        self.count += views
        self.bar.update(views)
        now = time.monotonic()
        if self.shown and not self.terminal and now - self.printed >= QUIET:
            self.printed, rate = now, self.count / (now - self.began)
            left = (self.views - self.count) / rate / 60
            done = f"embedded {self.count:,} of {self.views:,} views"
            print(f"{done}, {rate:,.0f} per second, {left:,.1f} minutes left", file=sys.stderr, flush=True)
