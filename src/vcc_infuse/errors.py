"""The exceptions for a user's mistake: a single line that says what is wrong and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

__all__ = ["OptionError", "UserError"]


class UserError(ValueError):
    """Shown as one line with exit status 2 on the command line; a plain ValueError in Python."""


class OptionError(UserError):
    """A value that an option cannot take. The command line shows the option's full name, such as `--selector.keep`."""

    def __init__(self, option: str, value: Any, requirement: str, remedy: str = "") -> None:
        self.option, self.value = option, value
        self.problem = f"{requirement}, got {value!r}" + (f"; {remedy}" if remedy else "")
        super().__init__(f"{option} {self.problem}")


@contextmanager
def option_prefix(prefix: str) -> Iterator[None]:
    """Name a refused option as the user knows it: a class checks its arguments without knowing where it is used."""
    try:
        yield
    except OptionError as fault:
        fault.option = f"{prefix}.{fault.option}"
        fault.args = (f"{fault.option} {fault.problem}",)
        raise


Choice = TypeVar("Choice", bound=str)


def check_range(
    name: str, value: float, low: float = 0, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """A finite number in [low, high]; an open end is excluded."""
    above = isinstance(value, Real) and (value > low if open_low else value >= low)
    if not above or not math.isfinite(value) or not (value < high if open_high else value <= high):
        raise OptionError(name, value, _interval(low, high, open_low, open_high))
    return value


def check_integer(name: str, value: int, low: int = 1, high: int = 2**53) -> int:
    """An integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        least = f"must be an integer of at least {low}"
        raise OptionError(name, value, least if high == 2**53 else f"must be an integer from {low} to {high}")
    return int(value)


def check_choice(name: str, value: Choice, choices: Sequence[str]) -> Choice:
    """One of a few words."""
    if value not in choices:
        raise OptionError(name, value, f"must be one of {', '.join(choices)}")
    return value


def _interval(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if high == math.inf:
        return f"must be a finite number {'above' if open_low else 'of at least'} {low:g}"
    ends = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    return f"must be a number in {ends}"
