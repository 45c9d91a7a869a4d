"""A cell of a table: the options of one training run, the objects they describe and the run folder it fills."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from vcc_infuse.algorithms import Algorithm
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import head
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.data.loading import load_ssl
from vcc_infuse.data.split import LongTail
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Backbone
from vcc_infuse.selectors import Selector
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import read_json
from vcc_infuse.utils.serialization import from_config, to_config

from .confidences import Watched
from .oracle import OracleINFUSE

Options = Mapping[str, Any]
PARTS: dict[str, type] = {"model": Backbone, "algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector}
# These three are options of the training as well.
DATA_OPTIONS = set(inspect.signature(load_ssl).parameters) - {"seed", "all_labels", "progress"}
BANK_OPTIONS = {"bank", "subset"}
"""Options of cells that are trained on a bank: of BankConfig, and how many images of each part are embedded."""


@dataclass(frozen=True)
class Cell:
    """Options of a run, named as in its config.yaml; the arguments of a part have dotted names (`selector.keep`).

    Cells with equal options are the same cell, whichever table they belong to.
    """

    options: Options

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """The options as text, in a fixed order."""
        return json.dumps(self.options, sort_keys=True)

    @property
    def name(self) -> str:
        """A readable folder name; a digest of all options makes it unique."""
        options = self.options
        words = [Path(str(options["data"])).stem, options.get("labels", "lt"), options["algorithm"]]
        words += [options.get(name) for name in ("algorithm.base", "calibrator", "selector", "selector.keep")]
        stem = "-".join(re.sub(r"[^\w.]+", "_", str(word)) for word in words if word is not None)
        return f"{stem}-s{options['seed']}-{hashlib.sha256(self.key.encode()).hexdigest()[:10]}"

    def folder(self, cells: Path) -> Path:
        """Its run folder among those in `cells`."""
        return cells / self.name

    def started(self, cells: Path) -> bool:
        """Whether there is a run to resume."""
        return (self.folder(cells) / "config.yaml").is_file()

    def summary(self, cells: Path) -> dict[str, Any] | None:
        """The summary of the finished run; None if it is not finished."""
        return read_json(self.folder(cells) / "summary.json")


def arguments_of(options: Options, part: str) -> dict[str, Any]:
    """The options `part.name` as {name: value}."""
    return {key.removeprefix(f"{part}."): value for key, value in options.items() if key.startswith(f"{part}.")}


def build_part(options: Options, part: str) -> Any:
    """The model, algorithm, calibrator or selector; None if it is not given. A dotted class name is imported as is."""
    name = options.get(part)
    if name is None:
        return None
    base = f"{part}.base"  # of a plug-in
    arguments = {k: v for k, v in arguments_of(options, part).items() if not k.startswith("base.")}
    if base in options:
        arguments["base"] = described(options[base], arguments_of(options, base))
    return from_config(described(name, arguments), PARTS[part], trust_code=True)  # our tables and the user's words


def described(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A class and its arguments as in a configuration file; a name without dots is a class of the library."""
    return {"class_path": name if "." in name else f"vcc_infuse.{name}", "init_args": arguments}


def bank_config(options: Options) -> BankConfig | None:
    """The views of the bank that a cell is trained on; None for cells that are trained on images."""
    arguments = arguments_of(options, "bank")
    return BankConfig(**arguments) if arguments else None


def build_trainer(options: Options, out: str | None = None) -> Trainer:
    """The trainer of a run; on a bank, `model` is the frozen network, and a head is trained."""
    parts = {part: build_part(options, part) for part in PARTS}
    if bank := bank_config(options):
        parts["model"] = head(bank)
    known = PARTS.keys() | DATA_OPTIONS | BANK_OPTIONS
    others = {name: v for name, v in options.items() if name.partition(".")[0] not in known}
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
    parts = {part: getattr(trainer, part) for part in PARTS}
    described = {name: None if part is None else to_config(part) for name, part in parts.items()}
    config = {name: value for name, value in asdict(trainer.config).items() if name != "out"}
    return yaml.safe_dump({**data, **described, **config}, sort_keys=False)
