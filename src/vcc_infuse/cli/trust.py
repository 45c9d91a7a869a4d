"""Code that is not part of the package: `--import FILE` loads the user's own, `--trust-code` that of a run folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:  # it imports torch, for which `--help` should not wait
    from .parser import Parser

IMPORT, TRUST = "--import", "--trust-code"


def split_imports(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without `--import FILE`, which every command takes, and the files."""
    rest: list[str] = []
    files: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != IMPORT:
            rest.append(word)
            continue
        value = value if equals else next(remaining, "")
        if not value or value.startswith("--"):
            raise UserError(f"{IMPORT} needs the path of a Python file, such as my_method.py")
        files.append(value)
    return rest, files


def import_file(name: str) -> None:
    """Load a Python file as the module of its name, so that `my_file.MyMethod` is found. Its folder is not searched."""
    path = Path(name).expanduser().resolve()
    module_name = path.stem
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{IMPORT} {name} must be a Python file; a class of an installed package needs no {IMPORT}")
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return
    if loaded is not None or not module_name.isidentifier() or importlib.util.find_spec(module_name) is not None:
        raise UserError(f"{IMPORT} {name}: {module_name} is no name or that of another module; rename the file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[module_name]
        reason = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        raise UserError(f"{IMPORT} {name} cannot be run ({reason}); --debug shows where") from fault


def add_trust(parser: Parser) -> None:
    """Add the option of every command that builds the network of a run folder."""
    parser.add_argument(TRUST, action="store_true", help="import classes of other packages that RUN names")
