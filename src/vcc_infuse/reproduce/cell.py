"""A cell of a table: one `vcc-infuse train` command and the run folder it fills."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """Options of `vcc-infuse train`, named as on the command line. Equal options are one cell, whatever the table."""

    options: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """What tells cells apart."""
        return json.dumps(self.options, sort_keys=True)

    @property
    def name(self) -> str:
        """A readable folder name; the end keeps equal beginnings apart."""
        options = self.options
        words = [Path(str(options["data"])).stem, options.get("labels", "lt"), options["algorithm"]]
        words += [options.get("calibrator"), options.get("selector"), options.get("selector.keep")]
        stem = "-".join(re.sub(r"[^\w.]+", "_", str(word)) for word in words if word is not None)
        return f"{stem}-s{options['seed']}-{hashlib.sha256(self.key.encode()).hexdigest()[:10]}"

    def arguments(self) -> list[str]:
        """The words after `vcc-infuse train`."""
        return [word for name, value in self.options.items() for word in (f"--{name}", text(value))]

    def folder(self, cells: Path) -> Path:
        """Its run folder among those in `cells`."""
        return cells / self.name

    def summary(self, cells: Path) -> dict[str, Any] | None:
        """The figures of the finished run, or None."""
        path = self.folder(cells) / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def text(value: Any) -> str:
    """A value as the command line reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
