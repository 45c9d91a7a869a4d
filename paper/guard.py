"""Turns a user's mistake into one line and exit status 2, as the commands of `vcc-infuse` do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from vcc_infuse.cli.main import one_line
from vcc_infuse.errors import UserError
from vcc_infuse.training.signals import Interrupted


def run_guarded(run: Callable[[Sequence[str]], int | None], words: Sequence[str], prog: str) -> int:
    """The exit status of `run(words)`; errors that are not the user's pass through."""
    try:
        return run(words) or 0
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise
        print(f"{prog}: {' '.join(one_line(error, words).splitlines())}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"{prog}: {stop}", file=sys.stderr)
        return 128 + stop.signal
