"""The options of `train` by dotted name: their values and types, and what is wrong with one that was refused.

jsonargparse reads the options. This module knows which of them are switches and classes, and explains in one line what
jsonargparse refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser

from ..algorithms import Algorithm
from ..bank.bank import BankConfig
from ..calibrators import Calibrator
from ..data.loading import load_ssl
from ..errors import UserError
from ..models import Backbone
from ..selectors import Selector
from ..training.config import TrainConfig
from ..utils.serialization import check_trusted
from ..utils.suggest import did_you_mean
from .parsing import unknown_option
from .registry import find_class
from .trust import TRUST

Words = Mapping[str, str | None]
CLASSES: dict[str, type] = {"algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector, "model": Backbone}
NOT_DATA: set[str | int] = {"seed", "all_labels", "progress"}
"""Parameters of `load_ssl` that follow from the options of training."""
COMMAND_LINE = ("config", "resume")
PER_LINE = "one `name: value` per line"
NEEDED = {"algorithm": "FixMatch", "model": "SmallConv"}
NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def types_of(target: Any) -> dict[str, Any]:
    """The types of the parameters of a class or function."""
    return {name: p.annotation for name, p in inspect.signature(target, eval_str=True).parameters.items()}


DATA_OPTIONS = {name: kind for name, kind in types_of(load_ssl).items() if name not in NOT_DATA}
TRUST_CODE = TRUST.removeprefix("--")
TOP = {
    "config": str, "preset": str, "resume": str, "force": bool, "dry_run": bool, "bank": BankConfig, TRUST_CODE: bool,
    **DATA_OPTIONS, **CLASSES, **types_of(TrainConfig),
}  # fmt: skip


def read_words(argv: Sequence[str]) -> dict[str, str | None]:
    """`--name value` and `--name=value` as {name: value}; None for a name that stands alone."""
    words: dict[str, str | None] = {}
    name = None
    for word in ("--help" if word == "-h" else word for word in argv):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            words[name] = value if equals else None
        elif name is not None and words[name] is None:
            words[name] = word
        else:
            raise UserError(f"{word} belongs to no option; options are written --name value")
    return words


def check_keys(options: Mapping[str, Any], path: str) -> None:
    """Refuse what a configuration file cannot hold where it holds objects; `path` is that of the file."""
    for name, value in options.items():
        if name in COMMAND_LINE:
            raise UserError(f"--{name} belongs on the command line; remove it from {path}")
        if isinstance(value, Mapping):
            chooses = "class_path" in value or "init_args" in value
            if not isinstance(value.get("class_path", ""), str):
                raise UserError(f"--{name} must be the name of a class, got {value['class_path']!r} (in {path})")
            if other := [key for key in value if chooses and key not in ("class_path", "init_args")]:
                hint = did_you_mean(str(other[0]), ("class_path", "init_args"))
                raise UserError(f"--{name}.{other[0]} is not a key beside class_path{hint} (in {path})")
            below = (value.get("init_args") or {}) if chooses else value
            if not isinstance(below, Mapping):
                raise UserError(
                    f"--{name}.init_args must hold options, one `name: value` per line, got {below!r} (in {path})"
                )
            check_keys({f"{name}.{key}": each for key, each in below.items()}, path)
        elif is_dataclass(without_none(TOP.get(str(name)))) and value is not None:
            raise UserError(f"--{name} must hold options, {PER_LINE}, got {value!r} (in {path})")


def trusts_code(words: Words) -> bool:
    """Whether a configuration file may name classes of other packages. Only the command line says so."""
    value = words.get(TRUST_CODE, "false")
    if value not in (None, "true", "false"):
        raise UserError(f"{TRUST} stands alone, got {value!r} after it")
    return value != "false"


def check_code(value: Any, path: str, trust_code: bool) -> None:
    """Refuse a class of another package, wherever a configuration file names one, before anything is imported."""
    if isinstance(value, Mapping) and "config" in value:
        raise UserError(f"{path}: config cannot name another file here; copy its options into this one")
    if isinstance(value, Mapping):
        for key, each in value.items():
            if str(key).rpartition(".")[2] == "class_path" and isinstance(each, str) and "." in each:
                check_trusted(each, trust_code, f"{path}: ")
            elif str(key).rpartition(".")[2] != "class_path":
                check_code(each, path, trust_code)
    elif isinstance(value, list):
        for each in value:
            check_code(each, path, trust_code)
    elif isinstance(value, str) and ("class_path" in value or ("{" in value and "\\" in value)):
        # jsonargparse reads text that looks like YAML or JSON, where a backslash may spell any letter.
        raise UserError(f"{path}: {value[:80]!r} may describe a class as text; write its keys one per line")


def flatten(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested options as (dotted name, value). The value of a class is its path."""
    for name, value in options.items():
        below = value
        if isinstance(value, Mapping) and ("class_path" in value or "init_args" in value):
            below = value.get("init_args") or {}
            if "class_path" in value:
                yield f"{prefix}{name}", value["class_path"]
        if isinstance(below, Mapping) and (below or below is not value) and name != "augment":  # whose value is one
            yield from flatten(below, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", below


class Given:
    """The options of the preset, of the configuration file and of the command line; the later one wins."""

    def __init__(self, preset: Mapping[str, Any], config: Mapping[str, Any], words: Words) -> None:
        self.words, self.path, self.trust_code = words, words.get("config"), trusts_code(words)
        self.values: dict[str, Any] = {}
        self.own: set[str] = set()  # named by the user, not by the preset
        for layer in (preset, config, words):
            flat = dict(flatten(layer))
            self.own = (self.own | set(flat)) if layer is not preset else set()
            # A class that is chosen again loses the arguments given to the earlier one.
            kept = {old: v for old, v in self.values.items() if not any(old.startswith(f"{new}.") for new in flat)}
            self.values = kept | flat

    def annotation(self, name: str) -> Any:
        """The declared type of an option; None if there is no such option."""
        parent, _, last = name.rpartition(".")
        owner = self.owner(parent)
        return (types_of(owner) if owner else {} if parent else TOP).get(last)

    def is_switch(self, name: str) -> bool:
        """Whether an option is true or false."""
        return without_none(self.annotation(name)) is bool

    def is_class(self, name: str) -> bool:
        """Whether an option chooses a class, whose arguments are the options below it."""
        kind = without_none(self.annotation(name))
        return isinstance(kind, type) and issubclass(kind, tuple(CLASSES.values()))

    def owner(self, name: str) -> type | None:
        """What the options below `name` are arguments of: FixMatch for "algorithm", LongTail for "long_tail"."""
        kind: Any = without_none(self.annotation(name)) if name else None
        if name and self.is_class(name):
            chosen = self.values.get(name)
            trusted = self.trust_code or name in self.words  # what the user types is the user's own choice
            return None if chosen in (None, "null") else find_class(name, str(chosen), kind, trusted)
        return kind if isinstance(kind, type) and is_dataclass(kind) else None

    def check_classes(self) -> None:
        """Refuse a class that does not exist, is abstract, or is missing: jsonargparse would use the base class."""
        for name in self.values:
            parent, _, last = name.rpartition(".")
            if self.is_class(name):
                self.owner(name)
            elif parent and last != "help" and self.is_class(parent) and self.owner(parent) is None:
                raise UserError(f"--{name} is an argument of a class; choose the class with --{parent}")

    def check(self) -> None:
        """Refuse what the user wrote, on the command line or in a file, if it is no option or no value of its type.

        jsonargparse would take null for anything, and words its refusals for programmers.
        """
        for name in (name for name in self.values if name in self.own and name != "print_config"):
            if problem := self.problem(name):
                raise UserError(problem if name in self.words else f"{problem} (in {self.path})")

    def problem(self, name: str) -> str | None:
        """What is wrong with one option; None if nothing is."""
        kind, value = self.annotation(name), self.values[name]
        if kind is None:
            return self._unknown(name)
        if self.words.get(name, "") is None:
            return None if self.is_switch(name) else f"--{name} needs a value"
        if self.is_class(name):
            empty = name in NEEDED and value in (None, "null")
            return f"--{name} must be a class, got null; choose one, such as {NEEDED[name]}" if empty else None
        if isinstance(value, str) and "\0" in value:
            return f"--{name} must not hold a null character, got {value!r}"
        return None if accepts(kind, value) else f"--{name} must be {phrase(without_none(kind))}, got {value!r}"

    def _unknown(self, name: str) -> str | None:
        parent = name.rpartition(".")[0]
        owner = self.owner(parent)
        if parent and not owner and self.is_class(parent):
            return None  # a class that is missing was reported before
        known = [f"--{parent}.{each}" for each in types_of(owner)] if owner else [f"--{each}" for each in TOP]
        return str(unknown_option(f"--{name}", known, "vcc-infuse train", owner.__name__ if owner else ""))


def without_none(kind: Any) -> Any:
    """`int` for `int | None`; any other type as it is."""
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if NoneType in get_args(kind) and len(members) == 1 else kind


def accepts(kind: Any, value: Any) -> bool:
    """Whether jsonargparse takes `value`, a word or a YAML value, as one of type `kind`; it would always take null."""
    if value is None or value == "null":
        return NoneType in get_args(kind)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    try:
        if isinstance(value, str):
            parser.parse_args([f"--value={value}"])
        else:
            parser.parse_object({"value": value})
    except ArgumentError:
        return False
    return True


def phrase(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return NOUNS.get(kind) or " or ".join(map(phrase, get_args(kind))) or str(getattr(kind, "__name__", kind))
