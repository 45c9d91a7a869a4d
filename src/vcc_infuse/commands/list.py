"""`vcc-infuse list`: what there is to choose from, a line each, read from the classes themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType

from .. import algorithms, calibrators, imbalance, models, selectors
from ..algorithms import Algorithm, PseudoLabelling
from ..calibrators import Calibrator
from ..data.sources import SOURCES
from ..models import Backbone
from ..selectors import Selector
from .simple import Parser

KINDS: list[tuple[str, ModuleType, type]] = [
    ("algorithms", algorithms, Algorithm),
    ("for class imbalance, as algorithms around a base", imbalance, Algorithm),
    ("calibrators", calibrators, Calibrator),
    ("selectors", selectors, Selector),
    ("models", models, Backbone),
]


def run(argv: Sequence[str]) -> None:
    """Print every choice."""
    Parser(prog="vcc-infuse list", description="Show what there is to choose from.").read(argv)
    for title, module, base in KINDS:
        section(title, {kind.__name__: first_line(kind) for kind in choices(module, base)})
    section("data sources", {**SOURCES, "PATH": "a folder or zip of class folders, or labeled/ unlabeled/ test/"})


def choices(module: ModuleType, base: type) -> list[type]:
    """The classes of a package that a user can name."""
    kinds = [getattr(module, name) for name in module.__all__]
    templates = (base, PseudoLabelling, imbalance.Plugin)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base) and kind not in templates]


def first_line(kind: type) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")


def section(title: str, lines: dict[str, str]) -> None:
    """A heading and aligned lines."""
    width = max(len(name) for name in lines)
    print(f"{title}:")
    for name, text in lines.items():
        print(f"  {name:<{width}}  {text}")
    print()
