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
from .randaugment import POOL, WARPS, Change, Changes

Augment = str | Mapping[str, Any]
DRAWS = 3
# What a single number means: an angle, slope or shift to both sides, a factor around 1, or up to the end of the range.
SIDES = {"rotate": 180.0, "shear_x": 1.0, "shear_y": 1.0, "translate_x": 1.0, "translate_y": 1.0}
FACTORS = {"brightness": 4.0, "contrast": 4.0, "color": 4.0, "sharpness": 4.0}
UPWARDS = {"posterize": (1.0, 8.0), "solarize": (0.0, 256.0)}
SHARES = {"crop": (0.125, 0.5), "cutout": (0.5, 1.0)}  # of the side: the usual one and the largest
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

    Args:
        augment: the name of a preset; or a mapping of "weak" and "strong" to the name of a preset or to operations and
            their magnitudes, as a mapping or as YAML. A view that is not named is that of `natural`. A magnitude is
            true (the usual one), a number, or a range [low, high].

    Example:
        >>> read_augment("text").weak.flip
        False
        >>> read_augment({"weak": "none", "strong": {"rotate": 15}}).strong.changes
        (Change(name='rotate', low=-15.0, high=15.0),)
    """
    views: Any = augment
    if isinstance(augment, str):
        views = _read_yaml(augment) if augment.startswith("{") else dict.fromkeys(Augmentation._fields, augment)
    if not isinstance(views, Mapping):
        _refuse_name(augment, "")
    unknown = [view for view in views if view not in Augmentation._fields]
    if unknown:
        _refuse(augment, "may hold the views weak and strong", f"{unknown[0]!r} is neither")
    return Augmentation(*(_recipe(view, views.get(view, "natural"), augment) for view in Augmentation._fields))


def _read_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        _refuse(text, "must be YAML", "for example {weak: gentle, strong: {crop: 0.1, rotate: 15}}")


def _recipe(view: str, operations: Any, augment: Augment) -> Recipe:
    """The recipe of one view; `augment` is all that the user gave."""
    if isinstance(operations, str) and operations in PRESETS:
        operations = PRESETS[operations][view]
    if not isinstance(operations, Mapping):
        _refuse_name(augment, str(operations))
    for name in operations:
        if name not in WORDS:
            _refuse(augment, f"may hold {', '.join(WORDS)}", f"{name!r} is unknown{did_you_mean(str(name), WORDS)}")
    changes = [_change(name, operations[name], augment) for name in operations if name in POOL]
    return Recipe(
        crop=_share("crop", operations, augment),
        flip=_switch("flip", operations, augment),
        turns=_switch("turns", operations, augment),
        changes=tuple(sorted(changes, key=lambda change: change.name in WARPS)),  # warps share one call, the last
        draws=_draws(operations.get("draws", DRAWS), augment),
        cutout=_share("cutout", operations, augment),
    )


def _share(name: str, operations: Mapping[str, Any], augment: Augment) -> float:
    usual, most = SHARES[name]
    magnitude = operations.get(name, 0.0)
    return usual if magnitude is True else _numbers(magnitude, name, augment, 0, most)[-1]


def _switch(name: str, operations: Mapping[str, Any], augment: Augment) -> bool:
    magnitude = operations.get(name, False)
    if not isinstance(magnitude, bool):
        _refuse(augment, f"takes {name} without a number", f"write true instead of {magnitude!r}")
    return magnitude


def _draws(draws: Any, augment: Augment) -> int:
    if type(draws) is not int or not 1 <= draws <= 10:
        _refuse(augment, "takes draws from 1 to 10", f"{draws!r} is none")
    return draws


def _change(name: str, magnitude: Any, augment: Augment) -> Change:
    """An operation with the range of its magnitude."""
    operation = POOL[name]
    if magnitude is True:
        return Change(name, operation.low, operation.high)
    if not operation.high:
        _refuse(augment, f"takes {name} without a number", f"write true instead of {magnitude!r}")
    if name in SIDES:
        ends = _numbers(magnitude, name, augment, -SIDES[name], SIDES[name])
        return Change(name, *(ends if len(ends) > 1 else (-abs(ends[0]), abs(ends[0]))))
    if name in FACTORS:
        ends = _numbers(magnitude, name, augment, 0, FACTORS[name])
        return Change(name, *(ends if len(ends) > 1 else (max(0.0, 1 - ends[0]), 1 + ends[0])))
    ends = _numbers(magnitude, name, augment, *UPWARDS[name])
    above = 1 if name == "posterize" else 0  # bits are truncated to whole numbers
    return Change(name, ends[0], above + (ends[1] if len(ends) > 1 else UPWARDS[name][1]))


def _numbers(magnitude: Any, name: str, augment: Augment, low: float, high: float) -> list[float]:
    """One number, or two in their order."""
    ends = magnitude if isinstance(magnitude, list | tuple) else [magnitude]
    within = all(type(end) in (int, float) and low <= end <= high for end in ends)
    if not 1 <= len(ends) <= 2 or not within or ends[0] > ends[-1]:
        rule = f"takes {name} with a number from {low:g} to {high:g}, or with two such as [{low:g}, {high:g}]"
        _refuse(augment, rule, f"{magnitude!r} is neither")
    return [float(end) for end in ends]


def _refuse_name(augment: Augment, name: str) -> NoReturn:
    rule = f"must be one of {', '.join(PRESETS)}, or a mapping of weak and strong to operations"
    hint = did_you_mean(name, PRESETS).removeprefix("; ")
    _refuse(augment, rule, hint or "for example {weak: gentle, strong: {crop: 0.1, rotate: 15}}")


def _refuse(augment: Augment, rule: str, problem: str) -> NoReturn:
    raise OptionError("augment", augment, rule, problem)
