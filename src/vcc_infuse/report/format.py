"""Numbers and names as a reader sees them. Class and file names come from strangers: they are shown, never obeyed."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, TypeGuard

UNKNOWN = "–"


def known(value: Any) -> TypeGuard[float]:
    """Whether a figure is there: neither missing nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def per_cent(value: Any, digits: int = 1) -> str:
    """A fraction of 1 as percent."""
    return f"{100 * value:.{digits}f} %" if known(value) else UNKNOWN


def decimal(value: Any, digits: int = 3) -> str:
    """A plain number."""
    return f"{value:.{digits}f}" if known(value) else UNKNOWN


def count(value: Any) -> str:
    """A whole number with thousands apart."""
    return f"{round(value):,}".replace(",", "\u202f") if known(value) else UNKNOWN


def duration(seconds: Any) -> str:
    """Seconds in the unit that suits them."""
    if not known(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def scaled(values: Sequence[Any], factor: float = 100.0) -> list[float | None]:
    """Fractions as percent for a chart; what is unknown leaves a gap."""
    return [factor * value if known(value) else None for value in values]


def label(name: str, limit: int = 24) -> str:
    """A name for a chart, a long one without its middle: names of a kind differ at their ends.

    Plotly reads tags and entities in its labels, so they are escaped there as in HTML.
    """
    half = limit // 2
    short = name if len(name) <= limit else f"{name[:half]}…{name[half + 1 - limit :]}"
    return html.escape(short, quote=False)


def name_of(classes: Sequence[str], number: int) -> str:
    """The class of that number, or the number where the run does not name it."""
    return classes[number] if 0 <= number < len(classes) else str(number)


def listed(items: Sequence[str], most: int = 5) -> str:
    """A few items of a list as words."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest
