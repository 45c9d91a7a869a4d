"""`vcc-infuse train`: options in, a run folder out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from ..algorithms import Algorithm, PseudoLabeling
from ..calibrators import Calibrator
from ..data.loading import load_ssl
from ..errors import UserError
from ..models import Backbone
from ..runs.folder import RunFolder
from ..selectors import Selector
from ..training.presets import preset
from ..training.trainer import Trainer
from .console import summary_table
from .launch import relaunch
from .parsing import instantiate, parse, read_config, value_of

CLASSES: dict[str, type] = {"algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector, "model": Backbone}


DEFAULTS = {
    "algorithm": {"class_path": "vcc_infuse.algorithms.FixMatch"},
    "calibrator": {"class_path": "vcc_infuse.calibrators.Softmax"},
}


def make_parser() -> ArgumentParser:
    """Every option, read from the signatures of `load_ssl`, `Trainer` and the chosen classes."""
    about = "Train a classifier. --print_config prints all options as YAML and stops."
    parser = ArgumentParser(prog="vcc-infuse train", description=about, exit_on_error=False)
    parser.add_argument("--config", type=str, help="YAML file with options; the command line wins over it")
    parser.add_argument("--preset", type=str, help="quick (the default, for a CPU) or paper (2^20 steps, WRN-28-2)")
    parser.add_argument("--resume", type=str, help="continue the run in this folder")
    parser.add_function_arguments(load_ssl, skip={"seed", "all_labels", "progress"})
    for option, kind in CLASSES.items():
        parser.add_subclass_arguments(kind, option, required=False, help=f"class and arguments of the {option}")
    parser.add_class_arguments(Trainer, skip=set(CLASSES))
    return parser


def run(argv: Sequence[str]) -> int | None:
    """Train as told; prints the summary and where it lies."""
    status = relaunch(["train", *argv])
    if status is not None:
        return status
    print_config, argv = "--print_config" in argv, [word for word in argv if word != "--print_config"]
    resume = value_of(argv, "--resume")
    if resume is not None:
        argv = resume_options(argv, resume)
    parser = make_parser()
    options = parse(parser, argv, base_options(argv), {**CLASSES, "algorithm.base": PseudoLabeling})
    text = config_text(parser, options)
    if print_config:
        print(text, end="")
        return None
    if resume is None:
        options.out = options.out or free_folder(options)
        RunFolder(options.out).check_free()
    trainer, data_options = build(parser, options)
    data = load_ssl(**data_options, seed=options.seed, all_labels=trainer.algorithm.all_labels)
    summary = trainer.fit(data, config=text, resume=resume is not None)
    if summary:
        print(summary_table(summary))
        print(f"run folder: {options.out}")
        if (page := Path(options.out) / "report.html").is_file():
            print(f"report: {page}")
    trainer.close()
    return None


def base_options(argv: Sequence[str]) -> dict[str, Any]:
    """Preset, then configuration file: what holds where the command line is silent."""
    path = value_of(argv, "--config")
    config = read_config(path) if path else {}
    data = value_of(argv, "--data") or str(config.get("data", "digits"))
    name = value_of(argv, "--preset") or config.get("preset") or "quick"
    return {**DEFAULTS, **preset(name, data), **config}


def resume_options(argv: Sequence[str], folder: str) -> list[str]:
    """The options of the run to continue; only where to look for data, and what to show, may be given anew."""
    config = Path(folder) / "config.yaml"
    if not config.is_file():
        raise UserError(f"--resume {folder}: there is no config.yaml; give the folder of an earlier run (its --out)")
    if (Path(folder) / "summary.json").is_file():
        raise UserError(f"--resume {folder}: this run is finished; its figures are in {folder}/summary.json")
    allowed = ("--resume", "--root", "--cache", "--progress", "--cpu")
    other = [word for word in argv if word.startswith("--") and word.split("=")[0] not in allowed]
    if other:
        raise UserError(f"--resume continues a run as it was; {other[0]} cannot change now (start anew with --config)")
    return [*argv, "--config", str(config), "--out", folder]


def build(parser: ArgumentParser, options: Namespace) -> tuple[Trainer, dict[str, Any]]:
    """The trainer, and the options that are about data."""
    objects = instantiate(parser, options)
    data_names = {action.dest.split(".")[0] for action in make_data_parser()._actions} - {"help", "config"}
    rest = {"config", "preset", "resume"} | data_names
    trainer = Trainer(**{k: v for k, v in vars(objects).items() if k not in rest})
    return trainer, {k: v for k, v in vars(objects).items() if k in data_names}


def make_data_parser() -> ArgumentParser:
    """Only the data options."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(load_ssl, skip={"seed", "all_labels", "progress"})
    return parser


def config_text(parser: ArgumentParser, options: Namespace) -> str:
    """config.yaml: complete, so that it runs the same again."""
    kept = options.clone()
    # Not `out`: the same configuration is meant to run again, into another folder.
    for name in ("config", "resume", "out"):
        kept.pop(name, None)
    return parser.dump(kept, skip_none=False, skip_validation=True)


def free_folder(options: Namespace) -> str:
    """runs/<data>-<algorithm>-<number>, the first number that is free."""
    method = str(options.algorithm.class_path).rpartition(".")[2]
    stem = f"runs/{Path(options.data).stem}-{method}"
    number = next(n for n in range(1, 10**6) if not Path(f"{stem}-{n}").exists())
    return f"{stem}-{number}"
