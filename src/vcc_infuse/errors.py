"""The exceptions for a user's mistake: a single line that says what is wrong and what would be right."""

from typing import Any

__all__ = ["OptionError", "UserError"]


class UserError(ValueError):
    """Shown as one line with exit status 2 on the command line; a plain ValueError in Python."""


class OptionError(UserError):
    """A value that an option cannot take. The command line shows the option's full name, such as `--selector.keep`."""

    def __init__(self, option: str, value: Any, requirement: str, remedy: str = "") -> None:
        self.option, self.value = option, value
        self.problem = f"{requirement}, got {value!r}" + (f"; {remedy}" if remedy else "")
        super().__init__(f"{option} {self.problem}")
