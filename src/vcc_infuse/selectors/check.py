"""Checks of a selector's options: one line that names the option, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..errors import UserError

Word = TypeVar("Word", bound=str)


def share(name: str, value: float, *, zero: bool = True, one: bool = True) -> float:
    """A fraction of 1, with or without its ends."""
    if not (0 <= value <= 1) or (value == 0 and not zero) or (value == 1 and not one):
        ends = ("[" if zero else "(") + "0, 1" + ("]" if one else ")")
        raise UserError(f"--selector.{name} {value}: must lie in {ends}; give a fraction such as 0.4")
    return float(value)


def at_least(name: str, value: float, low: float) -> float:
    """A number that is not below `low`."""
    if not value >= low or value == float("inf"):
        raise UserError(f"--selector.{name} {value}: must be a finite number of at least {low:g}")
    return value


def one_of(name: str, value: Word, known: Sequence[str]) -> Word:
    """One of a few words."""
    if value not in known:
        raise UserError(f"--selector.{name} {value}: unknown; choose one of {', '.join(known)}")
    return value
