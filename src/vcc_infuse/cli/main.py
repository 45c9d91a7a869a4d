"""The command line: one word chooses the command, a user's mistake costs one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import UserError

COMMANDS = {
    "train": "train a classifier and write a run folder",
    "evaluate": "measure a trained run on a test set",
    "calibrate": "fit a temperature to a trained run, on labeled images it has not seen",
    "predict": "label images with a trained run",
    "select": "rank a pool of images by how much they would teach a trained run",
    "reproduce": "run a table of the paper and write it",
    "report": "draw a run, or compare several, on one page",
    "bench": "measure speed as ratios on this machine",
    "list": "show algorithms, calibrators, selectors, models and data sources",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # so that `--algorithm my_file.MyMethod` finds the user's file
    try:
        return dispatch(words)
    except UserError as mistake:
        if debug:
            raise
        return complain(str(mistake), 2)
    except OSError as fault:
        if debug or fault.errno is None:
            raise
        where = f": {fault.filename}" if fault.filename else ""
        remedy = "; free some, then go on with --resume" if fault.errno == errno.ENOSPC else ""
        return complain(f"{fault.strerror}{where}{remedy}", 2)


def dispatch(words: list[str]) -> int:
    """Find the command and hand it its options."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from .. import __version__

        print(f"vcc-infuse {__version__}")
        return 0
    if words[0] not in COMMANDS:
        from ..utils.suggest import did_you_mean

        raise UserError(
            f"{words[0]} is not a command{did_you_mean(words[0], list(COMMANDS))}; choose {', '.join(COMMANDS)}"
        )
    from ..training.signals import Interrupted

    try:
        return importlib.import_module(f".commands.{words[0]}", __package__).run(words[1:]) or 0
    except Interrupted as stop:
        return complain(str(stop), 128 + stop.signal)


def complain(line: str, status: int) -> int:
    """One line on stderr, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        print(f"vcc-infuse: {line}", file=sys.stderr)
    return status


def usage() -> str:
    """The commands, a line each."""
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    head = "usage: vcc-infuse COMMAND [options]\n\nSemi-supervised image classification.\n"
    tail = "\n`vcc-infuse COMMAND --help` lists a command's options; --debug shows the traceback of an error."
    return "\n".join([head, *lines, tail])


if __name__ == "__main__":
    sys.exit(main())
