"""Numbers and names as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

UNKNOWN = "–"
PLOTLY_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def known(value: Any) -> TypeGuard[float]:
    """Whether a value is a number, neither missing nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def percent(value: Any, digits: int = 1) -> str:
    """A fraction of 1 as percent."""
    return f"{100 * value:.{digits}f} %" if known(value) else UNKNOWN


def decimal(value: Any, digits: int = 3) -> str:
    """A number with a fixed number of digits."""
    return f"{value:.{digits}f}" if known(value) else UNKNOWN


def count(value: Any) -> str:
    """An integer with a thin space between thousands."""
    return f"{round(value):,}".replace(",", "\u202f") if known(value) else UNKNOWN


def elapsed(seconds: Any) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if not known(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def scaled(values: Sequence[Any], factor: float = 100.0) -> list[float | None]:
    """Fractions as percent for a chart; an unknown value leaves a gap."""
    return [factor * value if known(value) else None for value in values]


def label(name: str, limit: int = 24) -> str:
    """A name for a chart; a long one loses its middle, because similar names often differ at their ends.

    Plotly interprets tags and entities in its labels, so that `<b>` must be written as `&lt;b&gt;`.
    """
    half = limit // 2
    short = name if len(name) <= limit else f"{name[:half]}…{name[half + 1 - limit :]}"
    return short.translate(PLOTLY_ENTITIES)


def name_of(classes: Sequence[str], number: int) -> str:
    """The name of a class, its number if the run does not name it, a dash if it is unknown."""
    return UNKNOWN if number < 0 else classes[number] if number < len(classes) else str(number)
