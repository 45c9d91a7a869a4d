"""How words become options: those of `train`, read from signatures, and a small parser for the other commands.

`read_train` checks that every option exists and that its value has the right type. What a preset adds, and whether the
values make sense, is decided where the run is put together.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from ..bank.bank import BankConfig
from ..bank.onnx_engine import ENGINES
from ..data.images.store import Limits
from ..errors import OptionError, UserError, check_choice, check_integer, check_range
from ..models import Timm
from ..models.concat import network_class
from ..run_config import DEFAULTS, PARTS, DataConfig
from ..training.config import TrainConfig
from ..training.presets import PRESETS, preset_options
from ..utils.io import read_yaml
from ..utils.serialization import class_path
from ..utils.suggest import did_you_mean
from .registry import find_class


def types_of(target: Any) -> dict[str, Any]:
    """The types of the parameters of a class or function."""
    parameters = inspect.signature(target, eval_str=True).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


DATA_OPTIONS = {**types_of(DataConfig), "cache": str | None}
OPTIONS = {**DATA_OPTIONS, **PARTS, "bank": BankConfig, **types_of(TrainConfig), "preset": str}
"""Every option of a configuration and its type."""
COMMAND_LINE = {"config": str, "resume": str} | dict.fromkeys(("force", "dry_run", "print_config", "trust-code"), bool)
"""Options that no configuration file may hold."""
EXAMPLES = {"algorithm": "FixMatch", "model": "SmallConv"}
"""For each part that cannot be left out, a class to choose."""
NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
LIMITS = {
    "image_mb": "skip images with more megabytes of pixels",
    "file_mb": "skip larger files and entries of a zip",
    "depth": "nested folders",
}
ALONE = object()
"""The value of an option that stands alone; for a switch it means true."""
SHOW_PARSER = "--show-parser"
"""The word on which a command hands over its parser and does nothing else."""


@dataclass(frozen=True)
class TrainWords:
    """What the user asked `train` for.

    `options` holds only what the configuration file and the command line set, in the form of config.yaml: a part is
    {"class_path": …, "init_args": {…}}, without a class path if the class is left to the preset.
    """

    options: dict[str, Any] = field(default_factory=dict)
    resume: str | None = None
    force: bool = False
    dry_run: bool = False
    print_config: bool = False
    trust_code: bool = False


def read_train(words: Mapping[str, Any]) -> TrainWords:
    """The options of a configuration file and of the command line, as `read_words` returns it; the latter win."""
    given = {name: convert(name, COMMAND_LINE[name], words[name]) for name in words if name in COMMAND_LINE}
    path = given.pop("config", None)
    trust_code = given.pop("trust-code", False)
    typed = {name: value for name, value in words.items() if name not in COMMAND_LINE}
    options = nested(read_yaml(path, "--config "), {}) if path else {}
    if misplaced := [name for name in options if name in COMMAND_LINE]:
        raise UserError(f"--{misplaced[0]} belongs on the command line; remove it from {path}")
    options = nested(typed, options)
    reader = Reader(options, trust_code=trust_code, typed=frozenset(typed))
    try:
        return TrainWords(reader.group("", OPTIONS, options), trust_code=trust_code, **given)
    except OptionError as fault:
        where = f" (in {path})" if path and fault.option not in words else ""
        raise UserError(f"--{fault.option} {fault.problem}{where}") from fault


def read_words(argv: Sequence[str]) -> dict[str, Any]:
    """`--name value` and `--name=value` as {name: value}; ALONE for a name without a value."""
    words: dict[str, Any] = {}
    name = None
    for word in argv:
        if word.startswith("--") or word == "-h":
            name, equals, value = "help".partition("=") if word == "-h" else word[2:].partition("=")
            words[name] = value if equals else ALONE
        elif name is not None and words[name] is ALONE:
            words[name] = word
        else:
            raise UserError(f"{word} belongs to no option; options are written --name value")
    return words


def nested(given: Mapping[Any, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Set options by dotted name. Naming a class drops the arguments of an earlier one."""
    for key in sorted(given, key=lambda key: str(key).count(".")):  # a class before its arguments
        *parents, last = str(key).split(".")
        target = options
        for parent in parents:
            below = target.get(parent, {})
            target[parent] = below if isinstance(below, dict) else {"class_path": below}
            target = target[parent]
            if "class_path" in target or "init_args" in target:
                target["init_args"] = target.get("init_args") or {}
                target = target["init_args"]
            if not isinstance(target, dict):
                raise UserError(f"--{parent}.init_args must hold options, one `name: value` per line, got {target!r}")
        target[last] = given[key]
    return options


class Reader:
    """Checks nested options against the types in signatures, and converts the values.

    The preset among `options` says which model arguments without a class belong to. A class that the user types on the
    command line (`typed`) needs no other sign of trust.
    """

    def __init__(self, options: Mapping[str, Any], *, trust_code: bool, typed: frozenset[str]) -> None:
        self.trust_code = trust_code
        self.typed = typed
        self.defaults = dict(DEFAULTS)
        preset = options.get("preset") or PRESETS[0]
        self.automatic = preset == PRESETS[0]
        if self.automatic:  # the pretrained network, if it has all arguments
            model = options.get("model")
            arguments = model.get("init_args", model) if isinstance(model, Mapping) else {}
            fits = set(arguments) <= set(types_of(Timm))
            self.defaults["model"] = "vcc_infuse.Timm" if fits else "vcc_infuse.SmallConv"
        elif preset in PRESETS:
            self.defaults["model"] = preset_options(preset, str(options.get("data")))["model"]["class_path"]

    def group(self, parent: str, kinds: Mapping[str, Any], options: Any, owner: str = "") -> dict[str, Any]:
        """The options below `parent`, whose types are `kinds`; `owner` is the class that they are arguments of."""
        if not isinstance(options, Mapping):
            raise OptionError(parent, options, "must hold options, one `name: value` per line")
        prefix = f"{parent}." if parent else ""
        for name in options:
            if name not in kinds:
                raise unknown_option(f"--{prefix}{name}", [f"--{prefix}{known}" for known in kinds], owner=owner)
        return {name: self.value(prefix + name, kinds[name], value) for name, value in options.items()}

    def value(self, name: str, kind: Any, value: Any) -> Any:
        """The value of one option: a part, a group of options, or a single value."""
        plain = without_none(kind)
        if value is ALONE or value in (None, "null"):
            return convert(name, kind if name not in PARTS or name in EXAMPLES else kind | None, value)
        if isinstance(plain, type) and issubclass(plain, tuple(PARTS.values())):
            return self.part(name, plain, value if isinstance(value, Mapping) else {"class_path": value})
        if isinstance(plain, type) and is_dataclass(plain):
            return self.group(name, types_of(plain), value, plain.__name__)
        return convert(name, kind, value)

    def part(self, name: str, base: type, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A class, if one is named, and the arguments given to it."""
        arguments = (spec.get("init_args") or {}) if "class_path" in spec else spec.get("init_args", spec)
        if "class_path" not in spec and name not in self.defaults:
            argument = next(iter(spec), "")
            raise UserError(f"--{name}.{argument} is an argument of a class; choose the class with --{name}")
        if other := [key for key in spec if arguments is not spec and key not in ("class_path", "init_args")]:
            raise unknown_option(f"--{name}.{other[0]}", [f"--{name}.class_path", f"--{name}.init_args"])
        chosen = spec.get("class_path", self.defaults.get(name))
        if not isinstance(chosen, str):
            raise OptionError(name, chosen, "must be the name of a class")
        kind = find_class(name, chosen, base, self.trust_code or name in self.typed)
        kind = network_class(kind, arguments)
        settled = "class_path" in spec or (name == "model" and self.automatic)
        named = {"class_path": class_path(kind)} if settled else {}
        return {**named, "init_args": self.group(name, types_of(kind), arguments, kind.__name__)}


def convert(name: str, kind: Any, value: Any) -> Any:
    """A word or a YAML value as one of type `kind`, by jsonargparse."""
    plain = without_none(kind)
    if value is ALONE:
        if plain is not bool:
            raise UserError(f"--{name} needs a value")
        return True
    if isinstance(value, str) and "\0" in value:
        raise OptionError(name, value, "must not hold a null character")
    if value in (None, "null") and plain is not kind:
        return None
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=plain)
    try:
        if value in (None, "null") or (plain is not str and names_class(value)):
            raise ArgumentError(None, "")
        words = [f"--value={value}"] if isinstance(value, str) else []
        result = (parser.parse_args(words) if words else parser.parse_object({"value": value})).value
    except ArgumentError as fault:
        remedy = f"choose one, such as {EXAMPLES[name]}" if name in EXAMPLES else ""
        raise OptionError(name, value, f"must be {phrase(plain)}", remedy) from fault
    return list(result) if isinstance(result, tuple) else result


def names_class(value: Any) -> bool:
    """Whether a value, or the text of one, describes a class, which jsonargparse would import."""
    try:
        return "class_path" in repr(yaml.safe_load(value) if isinstance(value, str) else value)
    except yaml.YAMLError:
        return False  # for jsonargparse, too, it is only text


def without_none(kind: Any) -> Any:
    """`int` for `int | None`; any other type as it is."""
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if NoneType in get_args(kind) and len(members) == 1 else kind


def phrase(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(phrase, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, tuple(PARTS.values())):
        return "a class"
    if get_origin(kind) in (dict, Mapping) or is_dataclass(kind):
        return "a mapping of plain values"
    return NOUNS.get(kind, "a list" if get_args(kind) else "a plain value")


def unknown_option(word: str, known: Iterable[str], *, owner: str = "", prog: str = "") -> UserError:
    """The error for a word that is no option of the command, or of the class `owner`; it suggests the nearest one."""
    of = f" of {owner}" if owner else ""
    command = f"{prog} --help" if prog else "vcc-infuse train --help_all"
    return UserError(f"{word} is not an option{of}{did_you_mean(word, known)}; `{command}` lists all")


class ParserShown(Exception):  # noqa: N818 - nothing went wrong
    """Carries the parser of a command to `vcc-infuse completion`, which describes it to a shell."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UserError instead of printing its usage and leaving."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        self.added: list[argparse.Action] = []
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False, exit_on_error=False)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an option and remember it, to suggest its name where the user mistypes it."""
        self.added.append(super().add_argument(*names, **options))
        return self.added[-1]

    def error(self, message: str) -> NoReturn:
        """Called by argparse where a required argument is missing."""
        raise UserError(f"{message}; `{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words of the command line."""
        if list(argv) == [SHOW_PARSER]:
            raise ParserShown(self)
        try:
            options, rest = self.parse_known_args(argv)
        except argparse.ArgumentError as fault:
            name = (fault.argument_name or "").rpartition("/")[2]  # "-o/--output" is one option
            raise UserError(f"{name} {fault.message}") from fault
        if rest:
            known = [name for action in self.added for name in action.option_strings if name.startswith("--")]
            raise unknown_option(rest[0].partition("=")[0], known, prog=self.prog)
        return options


def _reader(kind: str, parse: Callable[[str], Any], check: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Convert a word and check the value; argparse shows the text of an ArgumentTypeError after the option's name."""

    def read(text: str) -> Any:
        try:
            return check(parse(text))
        except OptionError as fault:
            raise argparse.ArgumentTypeError(fault.problem) from fault
        except ValueError as fault:
            raise argparse.ArgumentTypeError(f"must be {kind}, got {text!r}") from fault

    return read


def integer(low: int = 1) -> Callable[[str], int]:
    """The `type` of an option that takes an integer of at least `low`."""
    return _reader("an integer", int, lambda value: check_integer("", value, low))


def number(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    """The `type` of an option that takes a number in [low, high] or (low, high]."""
    return _reader("a number", float, lambda value: check_range("", value, low, high, open_low=open_low))


def one_of(*choices: str) -> dict[str, Any]:
    """The `type` and `metavar` of an option that takes one of a few words."""
    read = _reader("a word", str, lambda value: check_choice("", value, choices))
    return {"type": read, "metavar": f"{{{','.join(choices)}}}"}


def add_device(parser: Parser) -> None:
    """Add the option of every command that runs a network."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (auto)")
    parser.add_argument("--engine", **one_of(*ENGINES), default="auto",
                        help="what computes a frozen network on CPUs; onnx is ONNX Runtime (auto)")  # fmt: skip


def add_limits(parser: Parser) -> None:
    """Add the options of every command that reads images."""
    for name, text in LIMITS.items():
        value = getattr(Limits, name)
        parser.add_argument(f"--limits.{name}", type=integer(), default=value, metavar="N", help=f"{text} ({value})")


def limits_of(options: argparse.Namespace) -> Limits:
    """The values of these options."""
    return Limits(*(vars(options)[f"limits.{name}"] for name in LIMITS))
