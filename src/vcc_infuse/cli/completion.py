"""`vcc-infuse completion bash|zsh|fish`: a script that lets the shell complete commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import shtab

from ..run_config import PARTS
from ..training.presets import PRESETS
from .main import COMMANDS
from .parser import COMMAND_LINE, OPTIONS, SHOW_PARSER, Parser, ParserShown, one_of, types_of, without_none
from .registry import KINDS, choices, class_names
from .train_help import EVERYTHING, arguments, text_of

SHELLS = ("bash", "zsh", "fish")
ABOUT = "Print a script that completes commands, options and values in a shell."
INSTALL = """bash: vcc-infuse completion bash > ~/.local/share/bash-completion/completions/vcc-infuse;
zsh: vcc-infuse completion zsh > a folder of $fpath, as _vcc-infuse;
fish: vcc-infuse completion fish > ~/.config/fish/completions/vcc-infuse.fish"""


def run(argv: Sequence[str]) -> None:
    """Print the script."""
    parser = Parser("vcc-infuse completion", ABOUT, INSTALL)
    one = one_of(*SHELLS)["type"]
    parser.add_argument("shell", type=one, metavar="SHELL", help=", ".join(SHELLS))
    shell = parser.read(argv).shell
    print(shtab.complete(whole_command(), shell))


def whole_command() -> argparse.ArgumentParser:
    """One parser for all commands, made only to be described."""
    parser = argparse.ArgumentParser("vcc-infuse")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        described = train_parser() if name == "train" else parser_of(name)
        commands.add_parser(name, parents=[described], add_help=False, help=text)
    return parser


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that a command makes, instead of what the command does."""
    module = import_module(f".{'registry' if command == 'list' else command}", __package__)
    if command == "doctor":  # it does without our Parser, to work where packages are missing
        described: argparse.ArgumentParser = module.make_parser()
        return described
    try:
        module.run([SHOW_PARSER])
    except ParserShown as shown:
        for action in shown.parser.added:
            suggest_values(action)
        return shown.parser
    raise AssertionError(f"{command} reads its words without a Parser")


def suggest_values(action: argparse.Action) -> None:
    """Values to offer for an option: the words it takes, files where it takes any text, nothing for numbers."""
    metavar = action.metavar
    if isinstance(metavar, str) and metavar.startswith("{"):
        action.choices = metavar.strip("{}").split(",")
    elif action.type is None and action.nargs != 0 and action.choices is None:
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def train_parser() -> argparse.ArgumentParser:
    """The options of `train`, which are read from signatures."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, kind, text in train_options():
        plain = without_none(kind)
        if name in COMMAND_LINE and plain is bool:
            parser.add_argument(f"--{name}", action="store_true", help=text)
        else:
            known = words_of(name, plain)
            typed: dict[str, Any] = {"type": plain} if not known and plain in (int, float) else {}
            suggest_values(parser.add_argument(f"--{name}", choices=known, help=text, **typed))
    return parser


def train_options() -> Iterator[tuple[str, Any, str]]:
    """Name, type and description of every option, with the arguments of every class."""
    described: dict[str, tuple[Any, str]] = {}
    for name in (name for names in EVERYTHING.values() for name in names):
        described[name] = (OPTIONS.get(name, COMMAND_LINE.get(name, str)), text_of(name))
    for option, base in PARTS.items():
        for kind in (kind for _, module, _ in KINDS for kind in choices(module, base)):
            types = types_of(kind)
            for name, text in arguments(option, kind).items():
                described.setdefault(name, (types[name.partition(".")[2]], text))
    bank = types_of(OPTIONS["bank"])
    described |= {
        name: (bank[name.partition(".")[2]], text) for name, text in arguments("bank", OPTIONS["bank"]).items()
    }
    # A shell shows one line; argparse expands percent signs.
    return ((name, kind, text.split(". ")[0].replace("%", "%%")) for name, (kind, text) in described.items())


def words_of(name: str, kind: Any) -> list[str] | None:
    """The words that an option takes, if they are few."""
    if name in PARTS:
        return class_names(PARTS[name])
    if name == "preset":
        return list(PRESETS)
    if kind is bool:
        return ["true", "false"]
    return list(map(str, get_args(kind))) if get_origin(kind) is Literal else None
