"""Reading options: presets and configuration files first, the command line over them, mistakes told in one line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from ..errors import UserError


def value_of(argv: Sequence[str], option: str, default: str | None = None) -> str | None:
    """The value of `--option value` or `--option=value`, the last one given."""
    found = default
    for position, word in enumerate(argv):
        if word == option and position + 1 < len(argv):
            found = argv[position + 1]
        elif word.startswith(f"{option}="):
            found = word.split("=", 1)[1]
    return found


def read_config(path: str) -> dict[str, Any]:
    """A YAML configuration as a dict."""
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise UserError(f"--config {path} cannot be read: {one_line(str(fault))}") from fault
    if not isinstance(config, dict):
        raise UserError(f"--config {path} holds no options; write one `name: value` a line")
    return config


def parse(parser: ArgumentParser, argv: Sequence[str], base: dict[str, Any], classes: dict[str, type]) -> Namespace:
    """Parse `argv` over the defaults in `base`; `classes` maps options that name a class to its base class."""
    base = dict(base)
    for option, kind in classes.items():
        name = value_of(argv, f"--{option}")
        if name is not None:
            check_class(option, name, kind)
            base.pop(option, None)  # arguments of another class must not leak into the one now chosen
    try:
        parser.set_defaults(base)
        return parser.parse_args(with_values(parser, argv))
    except (argparse.ArgumentError, KeyError, TypeError, ValueError) as fault:
        raise UserError(explain(fault, parser)) from fault


def with_values(parser: ArgumentParser, argv: Sequence[str]) -> list[str]:
    """A switch may stand alone: `--download` means `--download true`."""
    switches = {f"--{a.dest}" for a in parser._actions if getattr(a, "_typehint", None) in (bool, bool | None)}
    words: list[str] = []
    for position, word in enumerate(argv):
        words.append(word)
        alone = position + 1 == len(argv) or argv[position + 1].startswith("--")
        if word in switches and alone:
            words.append("true")
    return words


def instantiate(parser: ArgumentParser, options: Namespace) -> Namespace:
    """Make the objects; a fault found by a class itself is told in its own words."""
    try:
        return parser.instantiate(options)
    except (argparse.ArgumentError, TypeError, ValueError) as fault:
        cause: BaseException | None = fault
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from fault
            cause = cause.__cause__
        raise


def check_class(option: str, name: str, kind: type) -> None:
    """A bare class name must be one we have; a dotted path is the user's own."""
    known = class_names(kind)
    if "." in name or name in known or name.startswith("{"):
        return
    raise UserError(f"--{option} {name} is unknown{nearest(name, known)}; `vcc-infuse list` shows all")


def class_names(kind: type) -> list[str]:
    """Names of the imported subclasses that a user can choose."""
    found: dict[str, type] = {}
    queue: list[type] = [kind]
    while queue:
        children: list[type] = queue.pop().__subclasses__()
        for child in children:
            queue.append(child)
            found[child.__name__] = child
    return sorted(found)


def explain(fault: Exception, parser: ArgumentParser) -> str:
    """A parser's message as one line, with the option the user may have meant."""
    text = one_line(str(fault))
    unknown = re.search(r"unrecognized arguments: (--[^\s=]+)", text)
    if unknown:
        options = [word for action in parser._actions for word in action.option_strings]
        return f"{unknown[1]} is not an option{nearest(unknown[1], options)}; --help lists all"
    key = re.search(r"(?:Parser key|key) \"?'?([\w.]+)\"?'?:?\s*(.*)", text)
    return f"--{key[1]}: {key[2]}" if key else text


def one_line(text: str) -> str:
    """Fold white space."""
    return re.sub(r"\s+", " ", text).strip()


def nearest(word: str, known: Sequence[str]) -> str:
    """What a mistyped word may have meant, as the end of a sentence."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
