"""The help of `train`: the options most users need, all of them, or those of one class; read from the docstrings."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from ..bank.bank import BankConfig
from ..data.loading import load_ssl
from ..training.config import TrainConfig
from ..training.presets import FINETUNE, FROZEN, SCRATCH
from .list import first_paragraph
from .options import CLASSES, DATA_OPTIONS, TOP, Words, phrase, types_of, without_none
from .parsing import unknown_option
from .registry import class_names, find_class

USAGE = "usage: vcc-infuse train --data DATA --labels N [options]"
ABOUT = """Train a classifier on few labels and many unlabeled images. Options come from the preset, then from the
--config file, then from the command line; the later one wins."""
EXAMPLES = """examples:
  vcc-infuse train --data photos --out runs/photos
  vcc-infuse train --data cifar10 --labels 250 --algorithm FlexMatch --calibrator VCC
  vcc-infuse train --resume runs/photos"""
CLASS = """A method, calibrator, selector or model is a class: one of those above, or your own (--import my_file.py
--algorithm my_file.MyMethod). Its arguments are options, too, such as --algorithm.threshold 0.9; --algorithm.help
FixMatch lists those of FixMatch, and --algorithm.help says what each method does."""
PROCESSES = """Several processes: `torchrun --nproc_per_node 2 -m vcc_infuse train ...` on CPUs,
`accelerate launch -m vcc_infuse train ...` on GPUs. The processes share each batch."""
TEXTS = {
    "preset": "auto (frozen or scratch, whichever fits the data), frozen (a head on embedded views, in minutes), "
    "finetune (all layers of a pretrained network), scratch (a small network), paper (2^20 steps, Wide ResNet), "
    "usb (pretrained ViT) (auto)",
    "config": "YAML file with options, such as the config.yaml of a run",
    "print_config": "print the options as YAML and stop",
    "resume": "continue the interrupted run in this folder; with --steps N extend a finished one to N steps",
    "force": "resume although options, data or the number of processes have changed",
    "trust-code": "import classes of other packages that the --config or --resume run names",
    "import": "Python file with classes of your own; may be given several times",
    "dry_run": "say what would be done and how long it takes, then stop",
    "algorithm": "the semi-supervised method (FixMatch)",
    "calibrator": "how far a pseudo label is trusted (Softmax)",
    "selector": "the unlabeled images to train on (all)",
    "model": "the network (by the preset)",
}
COMMON = {
    "data": ("data", "labels", "label_file", "validation", "size", "flip", "augment"),
    "method": ("preset", "algorithm", "calibrator", "selector", "model"),
    "training": ("steps", "batch_size", "lr", "init", "device", "seed"),
    "run folder": ("out", "config", "resume", "dry_run", "print_config"),
}
SELDOM = ("force", "trust-code", "import")
LEFT, SECTIONS = 22, re.compile(r"^(Args|Attributes|Example|References|Returns):$", re.M)
OFTEN_PRESET = {*FROZEN, *FINETUNE, *SCRATCH}


def answer(words: Words) -> str | None:
    """The help that the words ask for; None if they ask for none."""
    if "help" in words:
        return overview()
    if "help_all" in words:
        return everything()
    asked = next((name for name in words if name.endswith(".help")), None)
    return None if asked is None else help_on(asked.removesuffix(".help"), words[asked])


def overview() -> str:
    """What most users need, on one screen."""
    groups = [
        group(title, {name: text_of(name).split(". ")[0] for name in names if known(name)})
        for title, names in COMMON.items()
    ]
    return "\n\n".join([USAGE, wrapped(ABOUT), *groups, EXAMPLES, wrapped(f"{CLASS} --help_all lists all options.")])


def everything() -> str:
    """All options, grouped by what they are about."""
    train = [name for name in types_of(TrainConfig) if name != "preset"]
    run = [*(name for name in COMMON["run folder"] if name != "out"), *SELDOM]
    groups = {"data": list(DATA_OPTIONS), "method": COMMON["method"], "training": train, "run folder": run}
    shown = [group(title, {name: text_of(name) for name in names}) for title, names in groups.items()]
    bank = group("the bank of --preset frozen", class_options("bank", BankConfig))
    return "\n\n".join([USAGE, wrapped(ABOUT), *shown, bank, EXAMPLES, wrapped(CLASS), wrapped(PROCESSES)])


def help_on(option: str, name: str | None) -> str:
    """The options of one class, or the classes to choose from if none is named."""
    first = option.partition(".")[0]
    if first not in CLASSES:
        kind = without_none(TOP.get(option))
        if kind not in (BankConfig, *(without_none(TOP[name]) for name in ("long_tail", "limits"))):
            raise unknown_option(f"--{option}.help", [f"--{each}.help" for each in CLASSES], "vcc-infuse train")
        return described(option, kind)
    base = CLASSES[first]
    if name is None:
        lines = {each: first_paragraph(inspect.getdoc(find_class(option, each, base))) for each in class_names(base)}
        return group(f"--{option} CLASS, one of", {f" {each}": text for each, text in lines.items()})
    return described(option, find_class(option, name, base))


def described(option: str, kind: type) -> str:
    """What a class is for, and its options."""
    about = SECTIONS.split(inspect.getdoc(kind) or "")[0]
    options = class_options(option, kind)
    shown = group("options", options) if options else "It has no options."
    name = f" {kind.__name__}" if option.partition(".")[0] in CLASSES else ""
    return "\n\n".join([f"--{option}{name}", wrapped(about), shown])


def class_options(option: str, kind: type) -> dict[str, str]:
    """The options of a class by dotted name. What a base class says about an argument counts, too."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        texts |= descriptions(each)
    parameters = inspect.signature(kind, eval_str=True).parameters.values()
    own = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {f"{option}.{p.name}": labeled(p, texts.get(p.name, "")) for p in own}


def descriptions(target: Any) -> dict[str, str]:
    """The section Args of a docstring as {name: text}."""
    text = inspect.cleandoc(target.__doc__ or "")
    _, _, section = text.partition("Args:\n")
    section = SECTIONS.split(section.split("\n\n")[0])[0]
    items = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.M)
    return {name: " ".join(words.split()) for name, words in items}


def known(name: str) -> bool:
    """Whether there is such an option."""
    return name in TOP or name in TEXTS


def text_of(name: str) -> str:
    """What an option of the top level means."""
    if name in CLASSES:
        return f"{TEXTS[name]}: {', '.join(class_names(CLASSES[name]))}"
    if name in TEXTS:
        return TEXTS[name]
    target = load_ssl if name in DATA_OPTIONS else TrainConfig
    parameter = inspect.signature(target, eval_str=True).parameters[name]
    return labeled(parameter, descriptions(target)[name], name in OFTEN_PRESET)


def labeled(parameter: inspect.Parameter, text: str, preset: bool = False) -> str:
    """A description with the choices and the default, where the text does not name them."""
    text = text.rstrip(".")
    if get_origin(without_none(parameter.annotation)) is Literal and not all(
        str(choice) in text for choice in get_args(without_none(parameter.annotation))
    ):
        text = f"{text} ({phrase(without_none(parameter.annotation))})"
    default = parameter.default
    if preset:
        return f"{text} (by the preset)"
    shown = {True: "true", False: "false"}.get(default, default) if isinstance(default, bool) else default
    return text if default in (None, parameter.empty) or "default" in text else f"{text} ({shown})"


def group(title: str, lines: Mapping[str, str]) -> str:
    """A heading, and one entry per option."""
    return "\n".join([f"{title}:", *(entry(name, text) for name, text in lines.items())])


def entry(name: str, text: str) -> str:
    """A name on the left, its text on the right."""
    shown = f"  {name.strip()}" if name.startswith(" ") else f"  --{name}"
    lines = textwrap.wrap(text, width() - LEFT, break_long_words=False, break_on_hyphens=False) or [""]
    head = [f"{shown:<{LEFT - 1}} {lines[0]}"] if len(shown) < LEFT else [shown, " " * LEFT + lines[0]]
    return "\n".join([*head, *(" " * LEFT + line for line in lines[1:])]).rstrip()


def wrapped(text: str) -> str:
    """Paragraphs that fit the terminal."""
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(textwrap.fill(part, width(), break_on_hyphens=False) for part in paragraphs)


def width() -> int:
    """Columns of the terminal, within reason."""
    return min(max(shutil.get_terminal_size().columns, 60), 110)
