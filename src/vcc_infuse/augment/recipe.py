"""What the weak and the strong view of an image are made of: a preset by name, or operations with their magnitudes.

`natural` is RandAugment as FixMatch uses it. Other kinds of images keep their class under other changes: a cell has no
upside, a letter has no mirror image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import yaml

from ..errors import OptionError
from ..utils.suggest import did_you_mean
from .randaugment import POOL, Change, Changes

Augment = str | Mapping[str, Any]
DRAWS = 3
FACTORS = ("brightness", "contrast", "color", "sharpness")
# The smallest and the largest magnitude; what is not listed takes none.
LIMITS = {
    "crop": (0.0, 0.5), "cutout": (0.0, 1.0), "posterize": (1.0, 8.0), "solarize": (0.0, 256.0),
    "rotate": (-180.0, 180.0),
    **dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y"), (-1.0, 1.0)),
    **dict.fromkeys(FACTORS, (0.0, 4.0)),
}  # fmt: skip
SHARES = {"crop": 0.125, "cutout": 0.5}  # of the side, if true
EXAMPLE = "for example {weak: gentle, strong: {crop: 0.1, rotate: 15}}"
WORDS = ("crop", "flip", "turns", "cutout", "draws", *POOL)

_FLIPPED = {"crop": True, "flip": True}
_TURNED = {"crop": True, "flip": True, "turns": True}
_SHIFTED = {"translate_x": 0.1, "translate_y": 0.1}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "natural": {"weak": _FLIPPED, "strong": {**_FLIPPED, **dict.fromkeys(POOL, True), "cutout": True}},
    "gentle": {
        "weak": _FLIPPED,
        "strong": {
            **_FLIPPED, "identity": True, "brightness": 0.2, "contrast": 0.2, "color": 0.2, "sharpness": 0.5,
            "rotate": 10, **_SHIFTED, "draws": 2,
        },
    },
    "microscopy": {
        "weak": _TURNED,
        "strong": {
            **_TURNED, "identity": True, "brightness": 0.2, "contrast": 0.2, "sharpness": 0.5, "draws": 2,
            "cutout": 0.25,
        },
    },
    "satellite": {
        "weak": _TURNED,
        "strong": {
            **_TURNED, "identity": True, "autocontrast": True, "brightness": 0.3, "contrast": 0.3, "color": 0.5,
            "sharpness": 0.9, "draws": 2, "cutout": True,
        },
    },
    "text": {
        "weak": {"crop": 0.0625},
        "strong": {
            "crop": 0.0625, "identity": True, "brightness": 0.3, "contrast": 0.4, "sharpness": 0.9, "rotate": 8,
            "shear_x": 0.15, "shear_y": 0.05, **_SHIFTED, "draws": 2, "cutout": 0.2,
        },
    },
    "none": {"weak": {}, "strong": {}},
}  # fmt: skip


class Recipe(NamedTuple):
    """One view: a crop, a mirror image and a quarter turn, then some of the changes, then a hole."""

    crop: float = 0.0
    flip: bool = False
    turns: bool = False
    changes: Changes = ()
    draws: int = DRAWS
    cutout: float = 0.0


class Augmentation(NamedTuple):
    """How weak and strong views are made."""

    weak: Recipe
    strong: Recipe


def read_augment(augment: Augment) -> Augmentation:
    """The recipes of the weak and the strong view.

    `augment` is the name of a preset; or a mapping of "weak" and "strong" to the name of a preset or to operations and
    their magnitudes, as a mapping or as YAML. A view that is not named is that of `natural`. A magnitude is true (the
    usual one), a number, or a range [low, high].

    Example:
        >>> read_augment("text").weak.flip
        False
        >>> read_augment({"weak": "none", "strong": {"rotate": 15}}).strong.changes
        (Change(name='rotate', low=-15.0, high=15.0),)
    """
    views: Any = augment if not isinstance(augment, str) else dict.fromkeys(Augmentation._fields, augment)
    if isinstance(augment, str) and augment.startswith("{"):
        try:
            views = yaml.safe_load(augment)
        except yaml.YAMLError:
            _refuse(augment, "must be YAML", EXAMPLE)
    if not isinstance(views, Mapping):
        _refuse_name(augment, "")
    unknown = [view for view in views if view not in Augmentation._fields]
    if unknown:
        _refuse(augment, "may hold the views weak and strong", f"{unknown[0]!r} is neither")
    return Augmentation(*(_recipe(view, views.get(view, "natural"), augment) for view in Augmentation._fields))


def _recipe(view: str, operations: Any, augment: Augment) -> Recipe:
    """The recipe of one view; `augment` is all that the user gave."""
    if isinstance(operations, str) and operations in PRESETS:
        operations = PRESETS[operations][view]
    if not isinstance(operations, Mapping):
        _refuse_name(augment, str(operations))
    options: dict[str, Any] = {"changes": []}
    for name, magnitude in operations.items():
        if name not in WORDS:
            _refuse(augment, f"may hold {', '.join(WORDS)}", f"{name!r} is unknown{did_you_mean(str(name), WORDS)}")
        if name == "draws":
            if type(magnitude) is not int or not 1 <= magnitude <= 10:
                _refuse(augment, "takes draws from 1 to 10", f"{magnitude!r} is none")
            options["draws"] = magnitude
            continue
        ends = None if magnitude is True else _numbers(name, magnitude, augment)
        if name in POOL:
            options["changes"].append(_change(name, ends))
        else:
            options[name] = ends[-1] if ends else SHARES.get(name, True)
    # Warps share one call, which takes the last of the changes.
    options["changes"] = tuple(sorted(options["changes"], key=lambda change: POOL[change.name].matrix is not None))
    return Recipe(**options)


def _change(name: str, ends: list[float] | None) -> Change:
    """An operation with a range of magnitudes; a single number is one side of it, or the distance of a factor to 1."""
    if ends is None:
        return Change(name, POOL[name].low, POOL[name].high)
    above = 1 if name == "posterize" else 0  # bits are truncated to whole numbers
    if len(ends) > 1:
        return Change(name, ends[0], above + ends[1])
    if POOL[name].matrix is not None:
        return Change(name, -abs(ends[0]), abs(ends[0]))
    if name in FACTORS:
        return Change(name, max(0.0, 1 - ends[0]), 1 + ends[0])
    return Change(name, ends[0], above + LIMITS[name][1])


def _numbers(name: str, magnitude: Any, augment: Augment) -> list[float]:
    """One number, or two in their order."""
    if name not in LIMITS:
        _refuse(augment, f"takes {name} without a number", f"write true instead of {magnitude!r}")
    low, high = LIMITS[name]
    ends = magnitude if isinstance(magnitude, list | tuple) else [magnitude]
    within = all(type(end) in (int, float) and low <= end <= high for end in ends)
    if not 1 <= len(ends) <= 2 or not within or ends[0] > ends[-1]:
        rule = f"takes {name} with a number from {low:g} to {high:g}, or with two such as [{low:g}, {high:g}]"
        _refuse(augment, rule, f"{magnitude!r} is neither")
    return [float(end) for end in ends]


def _refuse_name(augment: Augment, name: str) -> NoReturn:
    rule = f"must be one of {', '.join(PRESETS)}, or a mapping of weak and strong to operations"
    _refuse(augment, rule, did_you_mean(name, PRESETS).removeprefix("; ") or EXAMPLE)


def _refuse(augment: Augment, rule: str, problem: str) -> NoReturn:
    raise OptionError("augment", augment, rule, problem)
