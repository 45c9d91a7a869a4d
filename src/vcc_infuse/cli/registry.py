"""What a user can choose by name: the classes each package exports, without the templates they are made from."""

from __future__ import annotations

from types import ModuleType

from .. import algorithms, calibrators, imbalance, models, selectors
from ..algorithms import Algorithm, PseudoLabeling
from ..calibrators import Calibrator
from ..models import Backbone
from ..selectors import Selector

KINDS: list[tuple[str, ModuleType, type]] = [
    ("algorithms", algorithms, Algorithm),
    ("for class imbalance, as algorithms around a base", imbalance, Algorithm),
    ("calibrators", calibrators, Calibrator),
    ("selectors", selectors, Selector),
    ("models", models, Backbone),
]


def choices(module: ModuleType, base: type) -> list[type]:
    """The classes of a package that a user can name."""
    kinds = [getattr(module, name) for name in module.__all__]
    templates = (base, PseudoLabeling, imbalance.Plugin)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base) and kind not in templates]


def class_names(base: type) -> list[str]:
    """Names of all subclasses of `base` that a user can name."""
    return sorted(kind.__name__ for _, module, root in KINDS if root is base for kind in choices(module, base))
