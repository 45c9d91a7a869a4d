"""Augmentation by name: what the weak and the strong view of an image are made of, read from one line of text.

`natural` is RandAugment as FixMatch uses it. Other kinds of images keep their class under other changes: a cell has no
upside, a letter has no mirror image.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from ..errors import OptionError
from ..utils.suggest import did_you_mean
from .randaugment import POOL, WARPS, Change, Changes

DRAWS = 3
# What a single number means: an angle, slope or shift to both sides, a factor around 1, or up to the end of the range.
SIDES = {"rotate": 180.0, "shear_x": 1.0, "shear_y": 1.0, "translate_x": 1.0, "translate_y": 1.0}
FACTORS = {"brightness": 4.0, "contrast": 4.0, "color": 4.0, "sharpness": 4.0}
UPWARDS = {"posterize": (1.0, 8.0), "solarize": (0.0, 256.0)}
ALWAYS = {"crop": (0.125, 0.5), "cutout": (0.5, 1.0)}  # the share of the side if none is given, and the largest
WORDS = ("crop", "flip", "turns", "cutout", "draws", *POOL)


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


EVERY = ", ".join(POOL)
PRESETS = {
    "natural": ("crop, flip", f"crop, flip, {EVERY}, cutout"),
    "gentle": (
        "crop, flip",
        "crop, flip, identity, brightness 0.2, contrast 0.2, color 0.2, sharpness 0.5, rotate 10, translate_x 0.1, "
        "translate_y 0.1, draws 2",
    ),
    "microscopy": (
        "crop, flip, turns",
        "crop, flip, turns, identity, brightness 0.2, contrast 0.2, sharpness 0.5, draws 2, cutout 0.25",
    ),
    "satellite": (
        "crop, flip, turns",
        "crop, flip, turns, identity, autocontrast, brightness 0.3, contrast 0.3, color 0.5, sharpness 0.9, draws 2, "
        "cutout",
    ),
    "text": (
        "crop 0.0625",
        "crop 0.0625, identity, brightness 0.3, contrast 0.4, sharpness 0.9, rotate 8, shear_x 0.15, shear_y 0.05, "
        "translate_x 0.1, translate_y 0.1, draws 2, cutout 0.2",
    ),
    "none": ("", ""),
}  # fmt: skip


def read_augment(text: str) -> Augmentation:
    """The augmentation that a line of text describes.

    It is the name of a preset, a recipe per view (`weak=…; strong=…`), or a preset of which one view is replaced
    (`gentle; strong=…`). A recipe is the name of a preset or a list of operations with their magnitudes, such as
    `crop 0.1, flip, rotate 15, brightness 0.7..1.3, draws 2`. A view that is not named is that of `natural`.

    >>> read_augment("text").weak.flip
    False
    >>> read_augment("weak=none; strong=rotate 15").strong.changes
    (Change(name='rotate', low=-15.0, high=15.0),)
    """
    parts = [part.strip() for part in text.split(";")] if isinstance(text, str) else [""]
    name, views = (parts[0], parts[1:]) if "=" not in parts[0] else ("natural", parts)
    if name not in PRESETS:
        _refuse_name(text, name)
    lists = dict(zip(Augmentation._fields, PRESETS[name], strict=True))
    for part in views:
        view, equals, recipe = (word.strip() for word in part.partition("="))
        if view not in lists or not equals:
            _refuse(text, "has views that are written weak=… and strong=…, with ; between them", f"{part!r} is neither")
        lists[view] = PRESETS[recipe][Augmentation._fields.index(view)] if recipe in PRESETS else recipe
    return Augmentation(*(_recipe(each, text) for each in lists.values()))


def _recipe(words: str, text: str) -> Recipe:
    """The recipe that a list of operations describes; `text` is all that the user wrote."""
    recipe, seen = Recipe(), set[str]()
    for entry in filter(None, (each.strip() for each in words.split(","))):
        name, _, magnitude = entry.partition(" ")
        if name not in WORDS or name in seen:
            twice = "is there twice" if name in seen else f"is unknown{did_you_mean(name, WORDS)}"
            _refuse(text, f"may hold {', '.join(WORDS)}", f"{name!r} {twice}")
        seen.add(name)
        recipe = _with(recipe, name, magnitude.strip(), text)
    # Warps share one call, which takes the last in the pool.
    return recipe._replace(changes=tuple(sorted(recipe.changes, key=lambda each: each.name in WARPS)))


def _with(recipe: Recipe, name: str, magnitude: str, text: str) -> Recipe:
    """The recipe with one more entry."""
    if name in ("flip", "turns"):
        _no_number(magnitude, name, text)
        return recipe._replace(flip=True) if name == "flip" else recipe._replace(turns=True)
    if name in ALWAYS:
        usual, most = ALWAYS[name]
        share = _numbers(magnitude, name, text, 0, most)[-1] if magnitude else usual
        return recipe._replace(crop=share) if name == "crop" else recipe._replace(cutout=share)
    if name == "draws":
        if not magnitude.isdecimal() or not 1 <= int(magnitude) <= 10:
            _refuse(text, "takes draws from 1 to 10", f"{magnitude!r} is none")
        return recipe._replace(draws=int(magnitude))
    return recipe._replace(changes=(*recipe.changes, _change(name, magnitude, text)))


def _change(name: str, magnitude: str, text: str) -> Change:
    """An operation with the range of its magnitude."""
    operation = POOL[name]
    if not magnitude or not operation.high:
        _no_number(magnitude, name, text)
        return Change(name, operation.low, operation.high)
    if name in SIDES:
        most = SIDES[name]
        ends = _numbers(magnitude, name, text, -most, most)
        return Change(name, *(ends if len(ends) > 1 else (-abs(ends[0]), abs(ends[0]))))
    if name in FACTORS:
        ends = _numbers(magnitude, name, text, 0, FACTORS[name])
        return Change(name, *(ends if len(ends) > 1 else (max(0.0, 1 - ends[0]), 1 + ends[0])))
    ends = _numbers(magnitude, name, text, *UPWARDS[name])
    above = 1 if name == "posterize" else 0  # bits are truncated to whole numbers
    return Change(name, ends[0], above + (ends[1] if len(ends) > 1 else UPWARDS[name][1]))


def _numbers(magnitude: str, name: str, text: str, low: float, high: float) -> tuple[float, ...]:
    """One number, or two with .. between them, in their order."""
    try:
        ends = tuple(float(each) for each in magnitude.split(".."))
    except ValueError:
        ends = ()
    if not 1 <= len(ends) <= 2 or not all(low <= end <= high for end in ends) or ends[0] > ends[-1]:
        rule = f"takes {name} with a number from {low:g} to {high:g}, or with two such as {low:g}..{high:g}"
        _refuse(text, rule, f"{magnitude!r} is neither")
    return ends


def _no_number(magnitude: str, name: str, text: str) -> None:
    if magnitude:
        _refuse(text, f"takes {name} without a number", f"remove {magnitude!r}")


def _refuse_name(text: str, name: str) -> NoReturn:
    lists = "write weak=… and strong=…, separated by ;, for a list of operations"
    hint = did_you_mean(name, PRESETS).removeprefix("; ") if name not in WORDS and "," not in name else lists
    raise OptionError("augment", text, f"must be one of {', '.join(PRESETS)}, or a list of operations", hint or lists)


def _refuse(text: str, rule: str, problem: str) -> NoReturn:
    raise OptionError("augment", text, rule, problem)
