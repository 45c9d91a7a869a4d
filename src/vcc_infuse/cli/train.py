"""`vcc-infuse train`: options in, a run folder out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from ..algorithms import Algorithm
from ..bank.bank import BankConfig
from ..data.loading import load_ssl
from ..errors import OptionError, UserError
from ..runs.folder import RunFolder
from ..training.config import TrainConfig
from ..training.nonfinite import about_skipped
from ..training.presets import PAPER_REFRESH, method_options, preset
from ..training.trainer import Trainer
from .finished_run import read_config
from .options import (
    CLASSES,
    COMMAND_LINE,
    NOT_DATA,
    TRUST_CODE,
    Given,
    Words,
    check_code,
    check_keys,
    flatten,
    read_words,
    trusts_code,
    types_of,
)
from .plan import Plan, advise, decide, embed, frozen_trainer, load_data, say_costs
from .resume import resume_words
from .tables import summary_table
from .train_help import answer

AUTO, SCRATCH = "auto", "scratch"
DEFAULTS = {"algorithm": {"class_path": "vcc_infuse.FixMatch"}, "calibrator": {"class_path": "vcc_infuse.Softmax"}}


def run(argv: Sequence[str]) -> None:
    """Train, then print the summary and the path of the run folder."""
    words: Words = read_words(argv)
    if (shown := answer(words)) is not None:
        print(shown)
        return
    resume = words.get("resume")
    words = resume_words(words, resume) if resume else words
    chosen = plan_for(words)
    parser, options = parse({**words, "preset": chosen.preset})
    with full_names(options.as_dict()):
        if not resume:
            options.out = options.out or free_folder(options)
            RunFolder(options.out).check_free()
        objects, trainer = build(parser, options)
        options.size = chosen.size or options.size
        pretrained = chosen.preset in ("frozen", "finetune")
        data, bank = chosen.data or load_data(options, objects, resize=pretrained), None
        if chosen.preset == "frozen":
            trainer, bank = frozen_trainer(trainer, data, options, objects.bank)
        if not resume:
            say_costs(chosen, trainer, data, bank)
        if options.dry_run:
            print(*about_skipped(data.dataset.skipped, None), sep="\n", end="")
            return
        if bank is not None:
            data = embed(data, bank, objects.model, options)
            if chosen.reason and not resume:
                advise(data, objects.model, options)
        summary = trainer.fit(data, config=config_text(options), resume=bool(resume), force=options.force)
    if summary:  # only the first of several processes has one
        say_result(summary, options.out)
    trainer.close()


def plan_for(words: Words) -> Plan:
    """The preset that the user chose, or the one that fits the data."""
    path = words.get("config")
    name = words.get("preset") or (read_config(path, "--config ") if path else {}).get("preset") or AUTO
    if name != AUTO:
        return Plan(str(name))
    parser, options = parse({**{k: v for k, v in words.items() if k != "print_config"}, "preset": SCRATCH})
    with full_names(options.as_dict()):
        return decide(options, parser.instantiate(options), "model" in words)


def say_result(summary: dict[str, Any], out: str) -> None:
    """The summary, how it compares with a linear probe, and where everything is."""
    print(summary_table(summary))
    probe, error = summary.get("error_probe"), summary.get("error")
    if probe is not None and error is not None and summary["steps"]:
        print(f"a linear probe on the same features: {100 * probe:.2f} % error")
        if error > probe:
            print("this run ends above its probe: try more labels, more --steps, or --algorithm LinearProbe")
    print(f"run folder: {out}")
    if (page := Path(out) / "report.html").is_file():
        print(f"report: {page}")


def make_parser() -> ArgumentParser:
    """Every option, read from the signatures of `load_ssl`, `TrainConfig` and the classes."""
    parser = ArgumentParser(prog="vcc-infuse train", exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--preset", default=AUTO)
    parser.add_argument("--dry_run", type=bool, default=False)
    parser.add_argument("--resume")
    parser.add_argument("--force", type=bool, default=False)
    parser.add_function_arguments(load_ssl, skip=NOT_DATA)
    for option, kind in CLASSES.items():
        parser.add_subclass_arguments(kind, option, as_group=False, required=False)
    parser.add_class_arguments(TrainConfig, skip={"preset"})
    parser.add_class_arguments(BankConfig, "bank", as_group=True)
    return parser


def parse(words: Words) -> tuple[ArgumentParser, Namespace]:
    """The options of the preset, of the configuration file and of the command line; the later one wins."""
    path = words.get("config")
    config = read_config(path, "--config ") if path else {}
    config = {name: value for name, value in config.items() if value is not None or name not in COMMAND_LINE}
    check_keys(config, str(path))
    check_code(config, str(path), trusts_code(words))
    base = preset_options(words, config)
    given, parser = Given(base, config, words), make_parser()
    given.check_classes()
    given.check()
    parser.set_defaults({name: value for name, value in base.items() if not chooses_class(name, words, config)})
    try:
        return parser, parser.parse_args(spell_out(words, given))
    except ArgumentError as fault:
        raise UserError(" ".join(str(fault).split())) from fault


def preset_options(words: Words, config: dict[str, Any]) -> dict[str, Any]:
    """The options of the preset that the user chose."""
    name = words.get("preset") or config.get("preset") or SCRATCH
    with full_names({"preset": name}):
        return {**DEFAULTS, **preset(str(name), words.get("data") or str(config.get("data", "digits")))}


def chooses_class(option: str, words: Words, config: dict[str, Any]) -> bool:
    """Whether the user names a class, which the arguments of the preset's class must not reach."""
    written = config.get(option)
    return option in CLASSES and (option in words or isinstance(written, str) or "class_path" in (written or {}))


def spell_out(words: Words, given: Given) -> list[str]:
    """The command line in the form that jsonargparse needs.

    It applies words in their order, so the configuration file comes first, and a class before its arguments. A class
    that replaces another would keep the arguments that both have, so the option is set to null before. A switch that
    stands alone is true.
    """
    words = {name: word for name, word in {**protocol_words(given), **words}.items() if name != TRUST_CODE}
    spelled: list[str] = []
    for name in sorted(words, key=lambda name: (name != "config", name.count("."))):
        value = "true" if words[name] is None and given.is_switch(name) else words[name]
        spelled += [f"--{name}=null"] if given.is_class(name) else []
        spelled += [f"--{name}" if value is None else f"--{name}={value}"]
    return spelled


def protocol_words(given: Given) -> dict[str, str]:
    """What the protocol of a preset says about the chosen classes, as far as the user left it open."""
    name, data = (str(given.values.get(option)) for option in ("preset", "data"))
    found: dict[str, Any] = {}
    for option in ("algorithm", "algorithm.base"):
        method = given.owner(option)
        if method is not None and issubclass(method, Algorithm):
            own = method_options(name, data, method.__name__)
            found |= {f"{option}.{argument}": value for argument, value in own.items()}
            found |= {"unlabeled_ratio": method.unlabeled_ratio} if name == "paper" else {}
    selector = given.owner("selector")
    if name == "paper" and selector is not None and "every" in types_of(selector):
        found["selector.every"] = PAPER_REFRESH
    return {option: str(value) for option, value in found.items() if given.values.get(option) is None}


def build(parser: ArgumentParser, options: Namespace) -> tuple[Namespace, Trainer]:
    """The objects of the options, and the trainer of them."""
    objects = parser.instantiate(options)
    config = TrainConfig(**{field.name: objects[field.name] for field in fields(TrainConfig)})
    return objects, Trainer(objects.model, objects.algorithm, objects.calibrator, objects.selector, config)


@contextmanager
def full_names(options: dict[str, Any]) -> Iterator[None]:
    """Name a refused option as on the command line: a class checks its arguments without knowing where it is used."""
    try:
        yield
    except (ArgumentError, TypeError, ValueError) as fault:
        cause: BaseException | None = fault
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__  # jsonargparse raises errors of its own from those of a class
        if isinstance(cause, OptionError):
            raise UserError(f"--{full_name(cause, options)} {cause.problem}") from fault
        if cause is None or cause is fault:
            raise
        raise cause from fault


def full_name(mistake: OptionError, options: dict[str, Any]) -> str:
    """The dotted name of the option with the refused value."""
    values = dict(flatten(options))
    names = [name for name in values if f".{name}".endswith(f".{mistake.option}")]
    return min(names, key=lambda name: (values[name] != mistake.value, name.count(".")), default=mistake.option)


def config_text(options: Namespace) -> str:
    """config.yaml: every option, so that it runs the same again. Not `out`: a new run needs a folder of its own."""
    once = ("config", "resume", "out", "dry_run", "force")
    kept = {name: value for name, value in options.as_dict().items() if name not in once}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def free_folder(options: Namespace) -> str:
    """runs/<data>-<algorithm>-<number> with the first number that is free."""
    method = str(options.algorithm.class_path).rpartition(".")[2]
    stem = f"runs/{Path(options.data).stem}-{method}"
    number = next(n for n in range(1, 10**6) if not Path(f"{stem}-{n}").exists())
    return f"{stem}-{number}"
