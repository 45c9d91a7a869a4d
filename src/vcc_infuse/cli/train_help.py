"""The help of `train`: the options most users need, all of them, or those of one class; read from the docstrings."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Literal, get_args, get_origin

from docstring_parser.google import parse

from ..bank.bank import BankConfig
from ..data.ssl_data import load_ssl
from ..run_config import PARTS
from ..training.config import TrainConfig
from ..training.presets import FINETUNE, FROZEN, SCRATCH
from .parser import ALONE, DATA_OPTIONS, OPTIONS, phrase, types_of, unknown_option, without_none
from .registry import class_names, find_class, summary

USAGE = """vcc-infuse train --data photos --out runs/photos
       vcc-infuse train --data cifar10 --labels 250 --algorithm FlexMatch
       vcc-infuse train --resume runs/photos"""
ABOUT = """Train a classifier on few labels and many unlabeled images. Options come from the preset, then from the
--config file, then from the command line; the later one wins."""
CLASSES = """A method, calibrator, selector or model is a class: one of those above, or your own (--import my_file.py
--algorithm my_file.MyMethod). Its arguments are options, too, such as --algorithm.threshold 0.9; --algorithm.help
FixMatch lists those of FixMatch, and --algorithm.help says what each method does."""
PROCESSES = """Several processes share each batch: `torchrun --nproc_per_node 2 -m vcc_infuse train ...` on CPUs,
`accelerate launch -m vcc_infuse train ...` on GPUs."""
TEXTS = {
    "preset": "auto (frozen or scratch, whichever fits the data), frozen (a head on embedded views, in minutes), "
    "finetune (all layers of a pretrained network), scratch (a small network), paper (2^20 steps, Wide ResNet), "
    "usb (pretrained ViT) (auto)",
    "algorithm": "the semi-supervised method (FixMatch; on a bank, with no calibrator named, SelfTraining)",
    "calibrator": "how far a pseudo label is trusted (Softmax)",
    "selector": "the unlabeled images to train on (all)",
    "model": "the network (by the preset)",
    "config": "YAML file with options, such as the config.yaml of a run",
    "resume": "continue the interrupted run in this folder; with --steps N extend a finished one to N steps",
    "dry_run": "say what would be done and how long it takes, then stop",
    "print_config": "print the options as YAML and stop",
    "force": "resume although options, data or the number of processes have changed",
    "trust-code": "import classes of other packages that the --config or --resume run names",
    "import": "Python file with classes of your own; may be given several times",
}
COMMON = {
    "data": ("data", "labels", "label_file", "validation", "size", "flip", "augment"),
    "method": ("preset", "algorithm", "calibrator", "selector", "model"),
    "training": ("steps", "batch_size", "lr", "init", "device", "seed"),
    "run folder": ("out", "config", "resume", "dry_run", "print_config"),
}
EVERYTHING = {
    "data": tuple(DATA_OPTIONS),
    "method": COMMON["method"],
    "training": tuple(name for name in types_of(TrainConfig) if name not in TEXTS),
    "run folder": ("config", "resume", "dry_run", "print_config", "force", "trust-code", "import"),
}


def help_text(words: Mapping[str, Any]) -> str:
    """The help that the words ask for: some options, all, those of one class, or the classes to choose from."""
    if "help" in words:
        groups = {title: {name: text_of(name).split(". ")[0] for name in names} for title, names in COMMON.items()}
        return page(USAGE, ABOUT, groups, f"{CLASSES} --help_all lists all options.")
    if "help_all" in words:
        groups = {title: {name: text_of(name) for name in names} for title, names in EVERYTHING.items()}
        groups["the bank of --preset frozen"] = arguments("bank", BankConfig)
        return page(USAGE, ABOUT, groups, f"{CLASSES} {PROCESSES}")
    asked = next(name for name in words if name.endswith(".help"))
    option = asked.removesuffix(".help")
    base = PARTS.get(option.partition(".")[0])
    kind: Any = without_none(OPTIONS.get(option))
    if base is None and not is_dataclass(kind):
        raise unknown_option(f"--{asked}", [f"--{part}.help" for part in PARTS])
    if base is not None and words[asked] is ALONE:
        texts = {name: summary(find_class(option, name, base)) for name in class_names(base)}
        return page(f"vcc-infuse train --{option} CLASS", "", {"classes": texts}, prefix="")
    chosen: type = find_class(option, str(words[asked]), base) if base is not None else kind
    title = f"vcc-infuse train --{option}{f' {chosen.__name__}' if base is not None else '.NAME VALUE'}"
    return page(title, parse(chosen.__doc__ or "").description or "", {"options": arguments(option, chosen)})


def arguments(option: str, kind: type) -> dict[str, str]:
    """The options of a class by dotted name."""
    texts = descriptions(kind)
    parameters = inspect.signature(kind, eval_str=True).parameters
    return {f"{option}.{name}": with_default(parameters[name], texts.get(name, "")) for name in types_of(kind)}


def descriptions(target: Any) -> dict[str, str]:
    """What the docstring of a function or of a class and its bases says about each argument."""
    sources = reversed(inspect.getmro(target)) if isinstance(target, type) else [target]
    parameters = [item for source in sources for item in parse(source.__doc__ or "").params]
    return {item.arg_name: " ".join((item.description or "").split()) for item in parameters}


def text_of(name: str) -> str:
    """What an option of the top level means."""
    if name in PARTS:
        return f"{TEXTS[name]}: {', '.join(class_names(PARTS[name]))}"
    if name in TEXTS:
        return TEXTS[name]
    target: Any = load_ssl if name in DATA_OPTIONS else TrainConfig
    text = descriptions(target)[name]
    if name in {*FROZEN, *FINETUNE, *SCRATCH}:
        return f"{text.rstrip('.')} (by the preset)"
    return with_default(inspect.signature(target, eval_str=True).parameters[name], text)


def with_default(parameter: inspect.Parameter, text: str) -> str:
    """A description with the choices and the default, where the text does not name them."""
    kind = without_none(parameter.annotation)
    text = text.rstrip(".")
    if get_origin(kind) is Literal and not all(str(choice) in text for choice in get_args(kind)):
        text = f"{text} ({phrase(kind)})"
    default = str(parameter.default).lower() if isinstance(parameter.default, bool) else parameter.default
    return text if default in (None, parameter.empty) or "default" in text else f"{text} ({default})"


def page(usage: str, about: str, groups: Mapping[str, Mapping[str, str]], end: str = "", prefix: str = "--") -> str:
    """A help page as argparse lays it out, with texts in a column of their own, which few names are too long for."""
    layout = partial(argparse.HelpFormatter, max_help_position=26)
    parser = argparse.ArgumentParser(usage=usage, description=about, epilog=end, add_help=False, formatter_class=layout)
    for title, lines in groups.items():
        group = parser.add_argument_group(title)
        for name, text in lines.items():
            group.add_argument(prefix + name, metavar="" if prefix else None, help=text.replace("%", "%%"))
    return parser.format_help().rstrip()
