"""Reading a command's words. Every mistake becomes one line that names the option and the value."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..data.images.store import Limits
from ..errors import OptionError, UserError, check_choice, check_integer, check_range
from ..utils.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UserError instead of printing its usage and leaving."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        self.known: list[str] = []
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False, exit_on_error=False)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an option and remember its names, to suggest one where the user mistypes it."""
        self.known += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Called by argparse where a required argument is missing."""
        raise UserError(f"{message}; `{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words of the command line."""
        try:
            options, rest = self.parse_known_args(argv)
        except argparse.ArgumentError as fault:
            name = (fault.argument_name or "").rpartition("/")[2]  # "-o/--output" is one option
            raise UserError(f"{name} {fault.message}") from fault
        if rest:
            raise unknown_option(rest[0].partition("=")[0], self.known, self.prog)
        return options


def unknown_option(word: str, known: Sequence[str], prog: str, owner: str = "") -> UserError:
    """The error for a word that is no option of the command, or of the class `owner`; it suggests the nearest one."""
    of = f" of {owner}" if owner else ""
    every = "--help_all" if prog.endswith(" train") else "--help"
    return UserError(f"{word} is not an option{of}{did_you_mean(word, known)}; `{prog} {every}` lists all")


def integer(low: int = 1) -> Callable[[str], int]:
    """The `type` of an option that takes an integer of at least `low`."""
    return _reader("an integer", int, lambda value: check_integer("", value, low))


def number(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    """The `type` of an option that takes a number in [low, high] or (low, high]."""
    return _reader("a number", float, lambda value: check_range("", value, low, high, open_low=open_low))


def one_of(*choices: str) -> dict[str, Any]:
    """The `type` and `metavar` of an option that takes one of a few words."""
    read = _reader("a word", str, lambda value: check_choice("", value, choices))
    return {"type": read, "metavar": f"{{{','.join(choices)}}}"}


def add_device(parser: Parser) -> None:
    """Add the option of every command that runs a network."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (auto)")


def add_limits(parser: Parser) -> None:
    """Add the options of every command that reads images."""
    parser.add_argument("--limits.image_mb", type=integer(), default=Limits.image_mb, metavar="MB",
                        help="skip images whose pixels take more (%(default)s)")  # fmt: skip
    parser.add_argument("--limits.file_mb", type=integer(), default=Limits.file_mb, metavar="MB",
                        help="skip larger files and entries of a zip (%(default)s)")  # fmt: skip
    parser.add_argument("--limits.depth", type=integer(), default=Limits.depth, metavar="N",
                        help="nested folders (%(default)s)")  # fmt: skip


def limits_of(options: argparse.Namespace) -> Limits:
    """The values of these options."""
    return Limits(*(vars(options)[f"limits.{name}"] for name in ("image_mb", "file_mb", "depth")))


def _reader(kind: str, convert: Callable[[str], Any], check: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Convert a word and check the value; argparse shows the text of an ArgumentTypeError after the option's name."""

    def read(text: str) -> Any:
        try:
            return check(convert(text))
        except OptionError as fault:
            raise argparse.ArgumentTypeError(fault.problem) from fault
        except ValueError as fault:
            raise argparse.ArgumentTypeError(f"must be {kind}, got {text!r}") from fault

    return read
