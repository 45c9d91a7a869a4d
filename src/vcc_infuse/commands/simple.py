"""Options of the commands that need no class arguments: argparse, with faults told in one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from ..errors import UserError
from .options import nearest


class Parser(argparse.ArgumentParser):
    """An argparse parser whose faults are UserErrors."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's message into our one line."""
        raise UserError(f"{message}; `{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, naming the nearest option where one is mistyped."""
        options, rest = self.parse_known_args(argv)
        if rest:
            known = [word for action in self._actions for word in action.option_strings]
            raise UserError(
                f"{rest[0]} is not understood{nearest(rest[0], known)}; `{self.prog} --help` lists the options"
            )
        return options
