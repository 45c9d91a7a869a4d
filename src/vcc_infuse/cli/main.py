"""The command line: the first word chooses the command. A user's mistake costs one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import OptionError, UserError
from .trust import import_file, split_imports

COMMANDS = {
    "train": "train a classifier and write a run folder",
    "embed": "embed images by a pretrained network, for runs with --preset frozen",
    "evaluate": "measure a trained run on a test set",
    "calibrate": "fit a temperature to a trained run, on labeled images it was not trained on",
    "predict": "label images with a trained run",
    "export": "write a trained run as one ONNX or PyTorch file",
    "select": "rank unlabeled images by how much training on them would help a trained run",
    "report": "write a web page about one run, or a comparison of several",
    "list": "show algorithms, calibrators, selectors, models and data sources",
}
DISK = {
    (errno.ENOSPC, errno.EDQUOT): "free some space",
    (errno.EROFS, errno.EACCES, errno.EPERM): "make it writable or choose another place",
    (errno.EIO, errno.ESTALE, errno.ENODEV): "check the disk",
}
# What has to be done after the disk is well again.
AGAIN = {
    "train": "continue with --resume, or start again if there is no checkpoint yet",
    "embed": "run the command again; finished chunks are kept",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if hasattr(sys.stdout, "reconfigure"):  # a file name may hold bytes that no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        words, files = split_imports(words)
        for file in files:
            import_file(file)
        return dispatch(words)
    except (UserError, OSError) as fault:
        if debug or (isinstance(fault, OSError) and fault.errno is None):
            raise
        return complain(one_line(fault, words), 2, type(fault).__name__ == "ProcessLost")
    except KeyboardInterrupt:
        if debug:
            raise
        begun = "; --resume RUN continues a run that has begun" if words[:1] == ["train"] else ""
        return complain(f"interrupted{begun}", 130)
    except Exception as fault:
        if not debug and out_of_memory(fault):
            return complain("there is not enough memory; a smaller --size, --batch_size or model needs less", 2)
        found = ((cause, foreign_frame(cause)) for cause in causes(None if debug else fault))
        cause, own = next((pair for pair in found if pair[1] is not None), (fault, None))
        if own is None:
            raise
        from ..utils.io import in_words

        problem = f"{own.filename}, line {own.lineno}: {in_words(cause)}"
        return complain(f"{problem}; correct that file (--debug shows the traceback)", 2)


def dispatch(words: list[str]) -> int:
    """Import the command and run it with the other words."""
    for word in words:
        if "\0" in word:
            raise UserError(f"{word!r} holds a null character, which no name of a file can; remove it")
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from .. import __version__

        print(f"vcc-infuse {__version__}")
        return 0
    if words[0] not in COMMANDS:
        from ..utils.suggest import did_you_mean

        nearest = did_you_mean(words[0], COMMANDS)
        raise UserError(f"{words[0]} is not a command{nearest}; choose one of {', '.join(COMMANDS)}")
    return run_command(*words)


def run_command(name: str, *words: str) -> int:
    """The exit status of one command. Its module, and with it torch, is imported only now."""
    from ..training.signals import Interrupted
    from ..utils.allocator import keep_freed_memory

    keep_freed_memory()
    try:
        return importlib.import_module(f".{name}", __package__).run(words) or 0
    except SystemExit as leave:  # argparse leaves in this way after --help, jsonargparse after --print_config
        return leave.code if isinstance(leave.code, int) else complain(str(leave.code), 1) if leave.code else 0
    except Interrupted as stop:
        return complain(str(stop), 128 + stop.signal)


def out_of_memory(fault: BaseException) -> bool:
    """Whether memory was refused; torch says so in a RuntimeError, in words of its own for each device."""
    words = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(fault, MemoryError) or (isinstance(fault, RuntimeError) and any(w in str(fault) for w in words))


def foreign_frame(fault: BaseException) -> traceback.FrameSummary | None:
    """Where an exception passed through the user's own code: neither this package nor an installed one; else None."""
    ours = [str(Path(__file__).parents[1]), *sysconfig.get_paths().values(), sys.base_prefix, sys.prefix, "<"]
    frames = traceback.extract_tb(fault.__traceback__)
    return next((frame for frame in reversed(frames) if not frame.filename.startswith(tuple(ours))), None)


def causes(fault: BaseException | None) -> Iterator[BaseException]:
    """An exception and those it was raised from, or while handling."""
    seen: list[BaseException] = []
    while fault is not None and fault not in seen:
        seen.append(fault)
        yield fault
        fault = fault.__cause__ or fault.__context__


def one_line(fault: UserError | OSError, words: Sequence[str]) -> str:
    """What is wrong, as the user sees it."""
    if isinstance(fault, OptionError):
        return f"--{fault.option} {fault.problem}"
    if isinstance(fault, UserError):
        return str(fault)
    where = f": {fault.filename}" if fault.filename else ""
    cure = next((text for numbers, text in DISK.items() if fault.errno in numbers), None)
    again = AGAIN.get(words[0] if words else "", "run the command again; it has left nothing half-written")
    return f"{fault.strerror}{where}" + (f"; {cure}, then {again}" if cure else "")


def complain(line: str, status: int, every: bool = False) -> int:
    """Print one line to stderr, from the first process only unless `every` one has something to say."""
    if every or os.environ.get("RANK", "0") == "0":
        print(f"vcc-infuse: {' '.join(line.splitlines())}", file=sys.stderr)  # a file name may hold line breaks
    return status


def usage() -> str:
    """The commands, one per line."""
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    head = "usage: vcc-infuse COMMAND [options]\n\nSemi-supervised image classification.\n"
    tail = "\n`vcc-infuse COMMAND --help` lists the options of a command. --version prints the version.\n"
    tail += "--import FILE.py loads classes of your own. --debug shows the traceback of an error."
    return "\n".join([head, *lines, tail])


if __name__ == "__main__":
    sys.exit(main())
