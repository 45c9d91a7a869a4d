"""The classes a user can choose by name: those the package exports, without the abstract ones."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import algorithms, calibrators, models, selectors
from ..algorithms import Algorithm, PseudoLabeling, Wrapper
from ..calibrators import Calibrator
from ..errors import UserError
from ..models import Backbone, Embedded
from ..selectors import Selector
from ..utils.serialization import import_class
from ..utils.suggest import did_you_mean

KINDS: list[tuple[str, ModuleType, type]] = [
    ("algorithms", algorithms, Algorithm),
    ("calibrators", calibrators, Calibrator),
    ("selectors", selectors, Selector),
    ("models", models, Backbone),
]

# Embedded is not abstract, but made only by a run on a bank.
ABSTRACT = (Algorithm, PseudoLabeling, Wrapper, Calibrator, Selector, Backbone, Embedded)


def choices(module: ModuleType, base: type) -> list[type]:
    """The classes of a package that a user can choose where a `base` is asked for."""
    kinds = [getattr(module, name) for name in module.__all__]
    return [kind for kind in kinds if _usable(kind, base)]


def class_names(base: type) -> list[str]:
    """The names a user can choose where a `base` is asked for."""
    return sorted((kind.__name__ for _, module, _ in KINDS for kind in choices(module, base)), key=str.lower)


def find_class(option: str, name: str, base: type, trust_code: bool = True) -> type[Any]:
    """The class called `name`: one of ours by its bare name, or any other by its import path, if that is trusted."""
    kind = import_class(name, trust_code, f"--{option} ") if "." in name else OURS.get(name)
    if kind is None and name.lower() == "none":
        raise UserError(f"--{option} {name} is unknown; leave the option out, or write null")
    if kind is None:
        raise UserError(
            f"--{option} {name} is unknown{did_you_mean(name, class_names(base))}; `vcc-infuse list` shows all"
        )
    if not _usable(kind, base):
        raise UserError(f"--{option} {name} must be a concrete class derived from {base.__name__}")
    return kind


def _usable(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind not in ABSTRACT


OURS: dict[str, type[Any]] = {kind.__name__: kind for _, module, base in KINDS for kind in choices(module, base)}
