"""The command line: the first word chooses the command. A user's mistake costs one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import OptionError, UserError
from ..utils.allocator import keep_freed_memory
from ..utils.suggest import did_you_mean
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
MODULES = {"list": "registry"}  # a command is the module of its name, but for these
SLOW_START = ("train", "embed")
DISK = {
    (errno.ENOSPC, errno.EDQUOT): "free some space",
    (errno.EROFS, errno.EACCES, errno.EPERM): "make it writable or choose another place",
    (errno.EIO, errno.ESTALE, errno.ENODEV): "check the disk",
}
NEXT = {
    "train": "continue with --resume, or start again if there is no checkpoint yet",
    "embed": "run the command again; finished chunks are kept",
}
"""What to do once the disk can be written again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    return run_guarded(dispatch, list(sys.argv[1:] if argv is None else argv), "vcc-infuse")


def run_guarded(run: Callable[[list[str]], int | None], words: list[str], prog: str) -> int:
    """Run a command so that whatever goes wrong costs the user one line.

    Args:
        run: the command; it gets the words without `--debug` and `--import FILE`, which work with every command.
        words: the words of the command line.
        prog: how the command is called, which the line begins with.

    Returns:
        The exit status: 2 after a mistake, 128 + its number after a signal.
    """
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    prepare_process()
    try:
        words, files = split_imports(words)
        for file in files:
            import_file(file)
        return run(words) or 0
    except SystemExit as leave:  # how argparse leaves after --help
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException as fault:
        answer = None if debug else explain(fault, words, Path(inspect.getfile(run)).parent)
        if answer is None:
            raise
        line, status = answer
        if getattr(fault, "every_process", False) or is_first_process():
            print(f"{prog}: {' '.join(line.splitlines())}", file=sys.stderr)  # a file name may hold line breaks
        return status


def prepare_process() -> None:
    """Settings of the process that every command needs."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if hasattr(sys.stdout, "reconfigure"):  # a file name may hold bytes that no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")


def dispatch(words: list[str]) -> int | None:
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
    name = words[0]
    if name not in COMMANDS:
        raise UserError(f"{name} is not a command{did_you_mean(name, COMMANDS)}; choose one of {', '.join(COMMANDS)}")
    announce(words)
    keep_freed_memory()
    module = importlib.import_module(f".{MODULES.get(name, name)}", __package__)
    status: int | None = module.run(words[1:])
    return status


def announce(words: list[str]) -> None:
    """Say that something happens, before importing torch takes seconds."""
    line = " ".join(words).replace("=", " ")
    quiet = any(text in line for text in ("-h", "help", "--print_config", "--progress false"))
    if words[0] in SLOW_START and not quiet and "torch" not in sys.modules and is_first_process():
        print(f"vcc-infuse {words[0]}: loading PyTorch", flush=True)


def is_first_process() -> bool:
    """Whether this is the only process of the run, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def explain(fault: BaseException, words: Sequence[str], command: Path) -> tuple[str, int] | None:
    """One line about what went wrong, and the exit status; None for a defect of this package."""
    if isinstance(fault, UserError) or (isinstance(fault, OSError) and fault.errno is not None):
        return one_line(fault, words), 2
    if isinstance(fault, KeyboardInterrupt):
        begun = "; --resume RUN continues a run that has begun" if words[:1] == ["train"] else ""
        return f"interrupted{begun}", 130
    if not isinstance(fault, Exception) or isinstance(fault, OSError):
        return None
    from ..training.trainer import Interrupted  # not before: it imports torch
    from ..utils.io import in_words

    if isinstance(fault, Interrupted):
        return str(fault), 128 + fault.signal
    if out_of_memory(fault):
        return "there is not enough memory; a smaller --size, --batch_size or model needs less", 2
    for cause in causes(fault):
        if (frame := foreign_frame(cause, command)) is not None:
            problem = f"{frame.filename}, line {frame.lineno}: {in_words(cause)}"
            return f"{problem}; correct that file (--debug shows the traceback)", 2
    return None


def out_of_memory(fault: BaseException) -> bool:
    """Whether memory was refused; torch says so in a RuntimeError, in words of its own for each device."""
    words = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(fault, MemoryError) or (isinstance(fault, RuntimeError) and any(w in str(fault) for w in words))


def foreign_frame(fault: BaseException, command: Path) -> traceback.FrameSummary | None:
    """Where an exception passed through the user's own code: not this package, the command's or an installed one."""
    ours = [
        str(Path(__file__).parents[1]),
        str(command),
        *sysconfig.get_paths().values(),
        sys.base_prefix,
        sys.prefix,
        "<",
    ]
    frames = traceback.extract_tb(fault.__traceback__)
    return next((frame for frame in reversed(frames) if not frame.filename.startswith(tuple(ours))), None)


def causes(fault: BaseException) -> Iterator[BaseException]:
    """An exception and those it was raised from, or while handling."""
    chain: list[BaseException] = []
    cause: BaseException | None = fault
    while cause is not None and cause not in chain:
        chain.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def one_line(fault: UserError | OSError, words: Sequence[str]) -> str:
    """What is wrong, as the user sees it."""
    if isinstance(fault, OptionError):
        return f"--{fault.option} {fault.problem}"
    if isinstance(fault, UserError):
        return str(fault)
    where = f": {fault.filename}" if fault.filename else ""
    cure = next((text for numbers, text in DISK.items() if fault.errno in numbers), None)
    again = NEXT.get(words[0] if words else "", "run the command again; it has left nothing half-written")
    return f"{fault.strerror}{where}" + (f"; {cure}, then {again}" if cure else "")


def usage() -> str:
    """The commands, one per line."""
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    head = "usage: vcc-infuse COMMAND [options]\n\nSemi-supervised image classification.\n"
    tail = "\n`vcc-infuse COMMAND --help` lists the options of a command. --version prints the version.\n"
    tail += "--import FILE.py loads classes of your own. --debug shows the traceback of an error."
    return "\n".join([head, *lines, tail])


if __name__ == "__main__":
    sys.exit(main())
