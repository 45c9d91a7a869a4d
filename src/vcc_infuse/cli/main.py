"""The command line: the first word chooses the command. A user's mistake costs one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean

COMMANDS = {
    "train": "train a classifier and write a run folder",
    "embed": "embed images by a pretrained network, for runs with --preset frozen",
    "evaluate": "measure a trained run on a test set",
    "calibrate": "fit a temperature to a trained run, on labeled images it was not trained on",
    "predict": "label images with a trained run",
    "export": "write a trained run as one ONNX or PyTorch file",
    "select": "rank unlabeled images by how much training on them would help a trained run",
    "audit": "list the images of a run to look at: unknown ones, copies, doubtful labels",
    "suggest": "suggest which images to label next, from no label on",
    "label": "label photos in the browser while a model learns from them",
    "report": "write a web page about one run, or a comparison of several",
    "list": "show algorithms, calibrators, selectors, models and data sources",
    "doctor": "check the installation: versions, device, weights, cache, disk",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
}
DISK = {
    (errno.ENOSPC, errno.EDQUOT): "free some space",
    (errno.EROFS, errno.EACCES, errno.EPERM): "make it writable or choose another place",
    (errno.EIO, errno.ESTALE, errno.ENODEV): "check the disk",
}
# torch says so in a RuntimeError, in words of its own for each device.
MEMORY_REFUSED = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")
NEXT = {
    "train": "continue with --resume, or start again if there is no checkpoint yet",
    "embed": "run the command again; finished chunks are kept",
}
"""What to do once the disk can be written again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    return run_guarded(dispatch, list(sys.argv[1:] if argv is None else argv), "vcc-infuse")


def run_guarded(run: Callable[[list[str]], int | None], words: list[str], prog: str) -> int:
    """Run a command so that whatever goes wrong costs the user one line, which begins with `prog`.

    `run` gets the words without `--debug` and `--import FILE`, which work with every command. Returns the exit status:
    2 after a mistake, 128 + its number after a signal.
    """
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if hasattr(sys.stdout, "reconfigure"):  # a file name may hold bytes that no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        check_working_directory()
        words = import_files(words)
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


def check_working_directory() -> None:
    """Refuse to start in a deleted folder, where libraries end the process with messages of their own."""
    try:
        os.getcwd()
    except FileNotFoundError as gone:
        raise UserError("the working directory no longer exists; change to another one") from gone


def import_files(words: Sequence[str]) -> list[str]:
    """Load the file of every `--import FILE`, which all commands take; returns the other words."""
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != "--import":
            rest.append(word)
            continue
        value = value if equals else next(remaining, "")
        if not value or value.startswith("--"):
            raise UserError("--import needs the path of a Python file, such as my_method.py")
        import_file(value)
    return rest


def import_file(name: str) -> None:
    """Load a Python file as the module of its name, so that `my_file.MyMethod` is found. Its folder is not searched."""
    path = Path(name).expanduser().resolve()
    module_name = path.stem
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--import {name} must be a Python file; a class of an installed package needs no --import")
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return
    if loaded is not None or not module_name.isidentifier() or importlib.util.find_spec(module_name) is not None:
        raise UserError(
            f"--import {name}: {module_name} is not a valid module name, or is already taken; rename the file"
        )
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[module_name]
        reason = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        raise UserError(f"--import {name} cannot be run ({reason}); --debug shows where") from fault


def dispatch(words: list[str]) -> int | None:
    """Import the command and run it with the other words."""
    for word in words:
        if "\0" in word:
            raise UserError(f"{word!r} contains a null character, which file names cannot; remove it")
    name = words[0] if words else "help"
    if name in ("-h", "--help", "help", "--version"):
        from .. import __version__

        print(f"vcc-infuse {__version__}" if name == "--version" else usage())
        return 0
    if name not in COMMANDS:
        raise UserError(f"{name} is not a command{did_you_mean(name, COMMANDS)}; choose one of {', '.join(COMMANDS)}")
    if name == "doctor":  # it has to work where packages are missing
        from .doctor import run

        return run(words[1:])
    try:
        module = load_command(name, words)
    except ModuleNotFoundError as fault:
        raise UserError(f"{fault.name} cannot be found; `vcc-infuse doctor` says what is missing") from fault
    status: int | None = module.run(words[1:])
    return status


def load_command(name: str, words: Sequence[str]) -> ModuleType:
    """Import the module of a command, and PyTorch with it, which takes seconds."""
    from ..utils.progress import phase

    line = " ".join(words).replace("=", " ")
    quiet = any(text in line for text in ("-h", "help", "--print_config", "--progress false"))
    slow = name in ("train", "embed") and not quiet and "torch" not in sys.modules
    with phase(f"vcc-infuse {name}: loading PyTorch", shown=slow):
        from ..utils.memory import keep_freed_memory

        keep_freed_memory()
        return importlib.import_module(f".{'registry' if name == 'list' else name}", __package__)


def is_first_process() -> bool:
    """Whether this is the only process of the run, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def explain(fault: BaseException, words: Sequence[str], command: Path) -> tuple[str, int] | None:
    """One line about what went wrong, and the exit status; None for a defect of this package."""
    if isinstance(fault, UserError):
        return f"--{fault.option} {fault.problem}" if isinstance(fault, OptionError) else str(fault), 2
    if isinstance(fault, OSError) and fault.errno is not None:
        where = f": {fault.filename}" if fault.filename else ""
        cure = next((text for numbers, text in DISK.items() if fault.errno in numbers), None)
        again = NEXT.get(words[0] if words else "", "run the command again; it has left nothing half-written")
        return f"{fault.strerror}{where}" + (f"; {cure}, then {again}" if cure else ""), 2
    if isinstance(fault, KeyboardInterrupt):
        begun = "; --resume RUN continues a run that has begun" if words[:1] == ["train"] else ""
        return f"interrupted{begun}", 130
    if not isinstance(fault, Exception) or isinstance(fault, OSError):
        return None
    from ..training.interrupt import Interrupted  # not before: it imports torch
    from ..utils.io import in_words

    if isinstance(fault, Interrupted):
        return str(fault), 128 + fault.signal
    refused = isinstance(fault, RuntimeError) and any(text in str(fault) for text in MEMORY_REFUSED)
    if refused or isinstance(fault, MemoryError):
        return "there is not enough memory; a smaller --size, --batch_size or model needs less", 2
    installed = (*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix)
    known = (str(Path(__file__).parents[1]), str(command), *installed, "<")
    seen: list[BaseException] = []
    cause: BaseException | None = fault
    while cause is not None and cause not in seen:  # did it, or what it was raised from, pass through the user's code?
        seen.append(cause)
        frames = reversed(traceback.extract_tb(cause.__traceback__))
        if (frame := next((frame for frame in frames if not frame.filename.startswith(known)), None)) is not None:
            problem = f"{frame.filename}, line {frame.lineno}: {in_words(cause)}"
            return f"{problem}; correct that file (--debug shows the traceback)", 2
        cause = cause.__cause__ or cause.__context__
    return None


def usage() -> str:
    """The commands, one per line."""
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    return f"""usage: vcc-infuse COMMAND [options]

Semi-supervised image classification.

{lines}

`vcc-infuse COMMAND --help` lists the options of a command. --version prints the version.
--import FILE.py loads classes of your own. --debug shows the traceback of an error."""


if __name__ == "__main__":
    sys.exit(main())
