"""Reading options: presets and configuration files first, the command line over them, mistakes told in one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace

from ..errors import UserError
from ..utils.suggest import did_you_mean
from .registry import class_names


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
    raise UserError(f"--{option} {name} is unknown{did_you_mean(name, known)}; `vcc-infuse list` shows all")


WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}


def explain(fault: Exception, parser: ArgumentParser) -> str:
    """A parser's message as one line, with the option the user may have meant or the values it takes."""
    text = one_line(str(fault))
    unknown = re.search(r"unrecognized arguments: (--[^\s=]+)", text)
    if unknown:
        options = [word for action in parser._actions for word in action.option_strings]
        return f"{unknown[1]} is not an option{did_you_mean(unknown[1], options)}; --help lists all"
    option = ".".join(re.findall(r'Parser key "([\w.]+)"', text))
    refused = re.search(r"Problem with given class_path '([\w.]+)': Option '(\w+)' is not accepted", text)
    if refused:
        kind = refused[1].rpartition(".")[2]
        return f"--{option}.{refused[2]} is not an option of {kind}; `vcc-infuse list --markdown` shows them"
    value = re.search(r"(?:Got value: |val='|Given value: )([^\s']+)", text)
    wanted = re.search(r"Expected a (?:typing\.)?(?:Literal\[(.+?)\]|<class '(int|float|bool|str)'>)", text)
    if option and value and wanted:
        right = f"one of {wanted[1]}".replace("'", "") if wanted[1] else WORDS[wanted[2]]
        return f"--{option} {value[1]} is not possible; give {right}"
    return f"--{option}: {text}" if option else text


def one_line(text: str) -> str:
    """Fold white space."""
    return re.sub(r"\s+", " ", text).strip()


class Parser(argparse.ArgumentParser):
    """An argparse parser whose faults are UserErrors."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's message into our one line."""
        raise UserError(f"{message}; `{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, naming the nearest option where one is mistyped."""
        options, rest = self.parse_known_args(argv)
        if rest:
            known = [word for action in self._actions for word in action.option_strings]
            raise UserError(
                f"{rest[0]} is not understood{did_you_mean(rest[0], known)}; `{self.prog} --help` lists the options"
            )
        return options
