"""A cell of a table: the options of one training run, and the run folder it fills."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcc_infuse.utils.io import read_json

Options = Mapping[str, Any]
PARTS = ("model", "algorithm", "calibrator", "selector")
GROUPS = ("bank", "long_tail")
"""Options with dotted names that are not arguments of a part."""


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
    """A class and its arguments as in a config.yaml; a name without dots is a class of the library."""
    arguments = arguments_of(options, part)
    init_args = {name: value for name, value in arguments.items() if "." not in name}
    if "base" in arguments:  # of a wrapper around an algorithm
        init_args["base"] = component(arguments, "base")
    name = str(options[part])
    return {"class_path": name if "." in name else f"vcc_infuse.{name}", "init_args": init_args}


def arguments_of(options: Options, part: str) -> dict[str, Any]:
    """The options `part.name` as {name: value}."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
