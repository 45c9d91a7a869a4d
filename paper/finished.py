"""Finished runs in one file, so that a grid that takes hours can continue on another machine, or be read without one.

A line holds the options of a run and the part of its summary that tables are made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_json, write_text

from .cell import Cell

KEPT = ("parts", "pseudo_label_coverage_per_class")
"""What tables read of a summary beside plain numbers and texts."""


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """The runs in the file, with their summaries; none if there is no file yet."""
    runs = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [], 1):
        try:
            run = json.loads(line)
            runs[Cell(run["options"])] = dict(run["summary"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"--runs {path}: line {number} is not a finished run; delete it or the file") from error
    return runs


def restore(path: Path, cells: Path) -> None:
    """Let the runs of the file count as finished in the folder `cells`."""
    for cell, summary in read(path).items():
        if cell.summary(cells) is None:
            cell.folder(cells).mkdir(parents=True, exist_ok=True)
            write_json(cell.folder(cells) / "summary.json", summary)


def keep(path: Path, finished: Iterable[Cell], cells: Path) -> None:
    """Write the runs to the file, beside those that are in it."""
    summaries = read(path)
    for cell in finished:
        if (summary := cell.summary(cells)) is not None:
            summaries[cell] = compact(summary)
    lines = [json.dumps({"options": dict(cell.options), "summary": summaries[cell]}) for cell in summaries]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in sorted(lines)))


def compact(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without curves, images and tables that belong to the run alone."""
    plain = (int, float, str, type(None))
    return {name: value for name, value in summary.items() if name in KEPT or isinstance(value, plain)}
