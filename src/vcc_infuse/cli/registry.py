"""The classes a user can choose by name, and `vcc-infuse list`, which shows them one line each.

Everything is read from the classes themselves: those the package exports, without the abstract ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .. import algorithms, calibrators, models, selectors
from ..algorithms import Algorithm, PseudoLabeling, Wrapper
from ..calibrators import Calibrator
from ..data.sources.named import SOURCES
from ..errors import UserError
from ..models import Backbone
from ..models.backbone import Embedded
from ..selectors import Selector
from ..utils.serialization import import_class
from ..utils.suggest import did_you_mean

KINDS: list[tuple[str, ModuleType, type]] = [
    ("algorithms", algorithms, Algorithm),
    ("calibrators", calibrators, Calibrator),
    ("selectors", selectors, Selector),
    ("models", models, Backbone),
]
# Embedded is not abstract, but only a run on a bank makes one.
ABSTRACT = (Algorithm, PseudoLabeling, Wrapper, Calibrator, Selector, Backbone, Embedded)
ABOUT = "Written by `vcc-infuse list --markdown`. Options are given as `--algorithm.threshold 0.9`."
COLUMNS = "| name | idea and source | what it does | defaults |\n|---|---|---|---|"


def choices(module: ModuleType, base: type) -> list[type]:
    """The classes of a package that a user can choose where a `base` is asked for."""
    return [kind for name in module.__all__ if _usable(kind := getattr(module, name), base)]


def class_names(base: type) -> list[str]:
    """The names a user can choose where a `base` is asked for."""
    return sorted((kind.__name__ for _, module, _ in KINDS for kind in choices(module, base)), key=str.lower)


def find_class(option: str, name: str, base: type, trust_code: bool = True) -> type[Any]:
    """The class called `name`: one of ours by its bare name, or any other by its import path, if that is trusted."""
    kind = import_class(name, trust_code, f"--{option} ") if "." in name else OURS.get(name)
    if kind is None and name.lower() == "none":
        raise UserError(f"--{option} {name} is unknown; leave the option out, or write null")
    if kind is None:
        nearest = did_you_mean(name, class_names(base))
        timm = f"; a network of timm is named by --model.name {name}" if option == "model" and not nearest else ""
        raise UserError(f"--{option} {name} is unknown{nearest or timm}; `vcc-infuse list` shows all")
    if not _usable(kind, base):
        raise UserError(f"--{option} {name} must be a concrete class derived from {base.__name__}")
    return kind


def _usable(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind not in ABSTRACT


OURS: dict[str, type[Any]] = {kind.__name__: kind for _, module, base in KINDS for kind in choices(module, base)}


def run(argv: Sequence[str]) -> None:
    """Print every choice."""
    from .parser import Parser  # it finds classes through this module

    parser = Parser("vcc-infuse list", "Show algorithms, calibrators, selectors, models and data sources.")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/methods.md")
    if parser.read(argv).markdown:
        print(markdown(), end="")
        return
    lists = {title: {kind.__name__: summary(kind) for kind in choices(module, base)} for title, module, base in KINDS}
    lists["data sources"] = {**SOURCES, "PATH": "a folder or zip of class folders, or labeled/ unlabeled/ test/"}
    for title, lines in lists.items():
        width = max(map(len, lines))
        print(f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in lines.items()), "", sep="\n")


def markdown() -> str:
    """One table per kind."""
    lines = ["# Methods\n", f"{ABOUT}\n"]
    for title, module, base in KINDS:
        rows = [f"| {' | '.join(row(kind))} |" for kind in choices(module, base)]
        lines += [f"## {title.capitalize()}\n", COLUMNS, *rows, ""]
    return "\n".join(lines)


def row(kind: type) -> tuple[str, str, str, str]:
    """Name, first paragraph of the module, docstring of the class without its arguments, defaults."""
    idea = summary(inspect.getmodule(kind)).replace("|", "\\|")
    text = (inspect.getdoc(kind) or "").split("Args:")[0]
    parameters = inspect.signature(kind).parameters.values()
    defaults = ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.default is not p.empty)
    return f"`{kind.__name__}`", idea, " ".join(text.split()), f"`{defaults}`" if defaults else "–"


def summary(documented: object) -> str:
    """The first paragraph of the docstring of a class or module, on one line."""
    return " ".join((inspect.getdoc(documented) or "").strip().split("\n\n")[0].split())
