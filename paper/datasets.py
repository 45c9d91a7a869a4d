"""Finds the data of a cell: a zip or folder in the data root, or the files torchvision downloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcc_infuse.data.cache import cache_folder
from vcc_infuse.data.loading import load
from vcc_infuse.data.sources.named import SPECS, find
from vcc_infuse.errors import OptionError, UserError

from .cell import Cell, Options
from .table import Table

BUILT_IN = ("digits",)


def located(options: Options, data_root: str | None) -> dict[str, Any]:
    """The options of a run, with those that find its data."""
    return {**options, **locate(str(options["data"]), data_root)}


def locate(data: str, data_root: str | None) -> dict[str, Any]:
    """The options that find a dataset."""
    home = Path(data_root).expanduser() if data_root else None
    if data in BUILT_IN or home is None:
        return {"data": data}
    for path in (home / f"{data}.zip", home / data):
        if path.exists():
            return {"data": str(path)}
    return {"data": data} if data == "fashion_mnist" else {"data": data, "root": str(home)}


def check_available(cells: Iterable[Cell], data_root: str | None) -> None:
    """Refuse a missing dataset before the first cell starts."""
    if data_root and not Path(data_root).expanduser().is_dir():
        raise OptionError("data_root", data_root, "must be a folder", "give the one with cifar10.zip and the others")
    for data in dict.fromkeys(str(cell.options["data"]) for cell in cells):
        source = locate(data, data_root)["data"]
        if source in SPECS:
            check_torchvision(data, data_root)
        elif source == "fashion_mnist":
            load(data)


def check_torchvision(data: str, data_root: str | None) -> None:
    """Look for the files of torchvision."""
    home = Path(data_root).expanduser() if data_root else cache_folder(None) / "datasets"
    try:
        find(data, home, download=False)
    except UserError as error:
        requirement = f"must hold {data}.zip, a folder {data} or torchvision's files of {data}"
        raise OptionError("data_root", str(data_root or home), requirement) from error


def without_missing(table: Table, data_root: str | None) -> Table:
    """At frozen scale, the table without Fashion-MNIST if it is not installed, and a remark that says so."""
    fashion = [column for column in table.columns if column.options["data"] == "fashion_mnist"]
    others = tuple(column for column in table.columns if column not in fashion)
    if table.reference is None or not fashion or not others:
        return table
    try:
        check_available([Cell(column.options) for column in fashion], data_root)
    except UserError:
        remark = f"{table.remark} Fashion-MNIST is skipped: apt-get install dataset-fashion-mnist."
        return replace(table, columns=others, remark=remark)
    return table
