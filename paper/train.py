"""Trains one cell, on images or on a bank of embedded views."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from vcc_infuse.algorithms import Algorithm
from vcc_infuse.bank.embed import head
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.data.loading import choose_split, load_ssl
from vcc_infuse.data.split import LongTail
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Backbone
from vcc_infuse.selectors import Selector
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import write_json
from vcc_infuse.utils.serialization import from_config, to_config

from .banks import BANK_OPTIONS, bank_config, bank_key, open_bank
from .cell import PARTS, Cell, Options, arguments_of, component
from .confidences import Watched
from .datasets import located
from .oracle import OracleINFUSE

KINDS: dict[str, type] = {"model": Backbone, "algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector}
# These three are options of the training as well.
DATA_OPTIONS = set(inspect.signature(load_ssl).parameters) - {"seed", "all_labels", "progress"}


def train(cell: Cell, folder: Path, data_root: str | None) -> None:
    """Start the run of a cell, or resume it. On a bank it takes seconds and leaves only its summary."""
    options = located(cell.options, data_root)
    if bank_config(options):
        write_summary(cell, folder, train_on_bank(options))
        return
    trainer = build_trainer(options, out=str(cell.folder(folder)))
    data = load_data(options, trainer)
    summary = fit(trainer, data, config=config_yaml(options, trainer), resume=cell.started(folder))
    if "parts" in summary:
        write_summary(cell, folder, summary)


def train_on_bank(options: Options) -> dict[str, Any]:
    """Train the head of one cell; returns its summary, with the seconds that all of it took."""
    key = bank_key(options)
    assert key is not None
    dataset = open_bank(key)
    began = time.perf_counter()
    trainer = build_trainer({"progress": False, **options})
    tail = arguments_of(options, "long_tail")
    split = choose_split(
        dataset, options.get("labels"), LongTail(**tail) if tail else None, options.get("include_labeled"),
        trainer.config.seed, trainer.algorithm.all_labels,
    )  # fmt: skip
    summary = fit(trainer, SSLData(dataset, split))
    return {**summary, "seconds": time.perf_counter() - began}


def write_summary(cell: Cell, folder: Path, summary: dict[str, Any]) -> None:
    """Mark a cell as finished."""
    cell.folder(folder).mkdir(exist_ok=True)
    write_json(cell.folder(folder) / "summary.json", summary)


def build_part(options: Options, part: str) -> Any:
    """The model, algorithm, calibrator or selector; None if it is not given."""
    if options.get(part) is None:
        return None
    return from_config(component(options, part), KINDS[part], trust_code=True)  # our tables and the user's words


def build_trainer(options: Options, out: str | None = None) -> Trainer:
    """The trainer of a run; on a bank, `model` is the frozen network, and a head is trained."""
    parts = {part: build_part(options, part) for part in PARTS}
    if bank := bank_config(options):
        parts["model"] = head(bank)
    known = {*PARTS, *DATA_OPTIONS, *BANK_OPTIONS}
    others = {name: value for name, value in options.items() if name.partition(".")[0] not in known}
    return Trainer(**parts, **{"report": False, **others, "out": out})


def fit(trainer: Trainer, data: SSLData, **options: Any) -> dict[str, Any]:
    """Train, with the truth shown to the parts that need it: an oracle, which no user has, and what only measures."""
    if isinstance(trainer.selector, OracleINFUSE):
        trainer.selector.attach(data.dataset)
    if isinstance(trainer.calibrator, Watched):
        trainer.calibrator.attach(data)
    summary = trainer.fit(data, **options)
    if isinstance(watched := trainer.state_.calibrator, Watched):
        summary["parts"] = watched.quality()
    trainer.close()
    return summary


def load_data(options: Options, trainer: Trainer) -> SSLData:
    """The data of a run, split with its seed."""
    named = {name: value for name, value in options.items() if name in DATA_OPTIONS}
    if tail := arguments_of(options, "long_tail"):
        named["long_tail"] = LongTail(**tail)
    return load_ssl(**named, seed=trainer.config.seed, all_labels=trainer.algorithm.all_labels)


def config_yaml(options: Options, trainer: Trainer) -> str:
    """The complete configuration: `vcc-infuse train --config` repeats the run from it, in another folder."""
    data = {name: value for name, value in options.items() if name in DATA_OPTIONS}
    if tail := arguments_of(options, "long_tail"):
        data["long_tail"] = tail
    parts = {name: getattr(trainer, name) for name in PARTS}
    described = {name: None if part is None else to_config(part) for name, part in parts.items()}
    config = {name: value for name, value in asdict(trainer.config).items() if name != "out"}
    return yaml.safe_dump({**data, **described, **config}, sort_keys=False)
