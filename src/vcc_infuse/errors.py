"""Errors that are the user's to fix, each one line long, and the checks of option values that raise them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

__all__ = ["OptionError", "UserError"]

Choice = TypeVar("Choice", bound=str)
NO_LIMIT = 2**53


class UserError(ValueError):
    """A mistake that the user can fix: one line with exit status 2 on the command line, a ValueError in Python.

    Attributes:
        every_process: whether every process of a distributed run prints the line, rather than only the first.
    """

    every_process: ClassVar[bool] = False


class OptionError(UserError):
    """A value that an option cannot take. The command line shows the option's full name, such as `--selector.keep`.

    Args:
        option: the name of the option.
        value: the value that was given.
        requirement: what the value must be, such as "must be an integer".
        remedy: what to do about it, if the requirement does not say so.

    >>> print(OptionError("keep", 3, "must be a number in [0, 1]"))
    keep must be a number in [0, 1], got 3
    """

    def __init__(self, option: str, value: Any, requirement: str, remedy: str = "") -> None:
        self.option = option
        self.value = value
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


def check_range(
    name: str, value: float, low: float = 0, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """Return `value` if it is a finite number in [low, high]; an open end is excluded."""
    above = isinstance(value, Real) and (value > low if open_low else value >= low)
    if above and math.isfinite(value) and (value < high if open_high else value <= high):
        return value
    if high == math.inf:
        raise OptionError(name, value, f"must be a finite number {'above' if open_low else 'of at least'} {low:g}")
    interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    raise OptionError(name, value, f"must be a number in {interval}")


def check_integer(name: str, value: int, low: int = 1, high: int = NO_LIMIT) -> int:
    """Return `value` as an int if it is an integer in [low, high]; NumPy integers count, booleans do not."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        interval = f"of at least {low}" if high == NO_LIMIT else f"from {low} to {high}"
        raise OptionError(name, value, f"must be an integer {interval}")
    return int(value)


def check_choice(name: str, value: Choice, choices: Sequence[str]) -> Choice:
    """Return `value` if it is one of the choices."""
    if value not in choices:
        raise OptionError(name, value, f"must be one of {', '.join(choices)}")
    return value
