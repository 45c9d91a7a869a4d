"""A cell of a table: the options of one training run, its configuration, and the run folder it fills."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.run_config import PARTS, RunConfig, resolve
from vcc_infuse.utils.io import read_json

from .datasets import locate

Options = Mapping[str, Any]
GROUPS = ("bank", "long_tail")
"""Options with dotted names that are not arguments of a part."""
DEFAULTS = {"preset": "scratch", "report": False, "progress": False}


@dataclass(frozen=True)
class Cell:
    """Options of a run, named as on the command line; the arguments of a part have dotted names (`selector.keep`).

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

    @property
    def on_bank(self) -> bool:
        """Whether it trains a head on a bank of embedded views."""
        return any(name.startswith("bank.") for name in self.options)

    def config(self, data_root: str | None = None, **options: Any) -> RunConfig:
        """The complete configuration of the run.

        Args:
            data_root: folder with the datasets.
            options: further options of the run.
        """
        config = RunConfig.from_options({**DEFAULTS, **nested(self.options), **options})
        # Now, because protocols depend on the name of the dataset, which may become that of a zip file.
        config = resolve(config, config.preset)
        assert not isinstance(config.data, SSLData)
        return replace(config, data=replace(config.data, **locate(config.data.data, data_root)))

    def folder(self, cells: Path) -> Path:
        """Its run folder among those in `cells`."""
        return cells / self.name

    def started(self, cells: Path) -> bool:
        """Whether there is a run to resume."""
        return (self.folder(cells) / "config.yaml").is_file()

    def summary(self, cells: Path) -> dict[str, Any] | None:
        """The summary of the finished run; None if it is not finished."""
        return read_json(self.folder(cells) / "summary.json")


def nested(options: Options) -> dict[str, Any]:
    """Flat options as in a config.yaml: the dotted ones become arguments of their part."""
    config = {name: value for name, value in options.items() if "." not in name and name not in PARTS}
    config |= {part: component(options, part) for part in PARTS if part in options}
    return config | {group: arguments for group in GROUPS if (arguments := arguments_of(options, group))}


def component(options: Options, part: str) -> dict[str, Any]:
    """A class and its arguments as in a config.yaml."""
    arguments = arguments_of(options, part)
    init_args = {name: value for name, value in arguments.items() if "." not in name}
    if "base" in arguments:  # of a wrapper around an algorithm
        init_args["base"] = component(arguments, "base")
    return {"class_path": options[part], "init_args": init_args}


def arguments_of(options: Options, part: str) -> dict[str, Any]:
    """The options `part.name` as {name: value}."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
