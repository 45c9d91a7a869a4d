"""Finds datasets: a zip or folder in the data root, or the files torchvision downloads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vcc_infuse.data.cache import cache_folder
from vcc_infuse.data.sources.named import SPECS, find
from vcc_infuse.data.ssl_data import load
from vcc_infuse.errors import OptionError, UserError

BUILT_IN = ("digits",)


def locate(data: str, data_root: str | None) -> dict[str, Any]:
    """The options that find a dataset."""
    home = Path(data_root).expanduser() if data_root else None
    if data in BUILT_IN or home is None:
        return {"data": data}
    for path in (home / f"{data}.zip", home / data):
        if path.exists():
            return {"data": str(path)}
    return {"data": data} if data == "fashion_mnist" else {"data": data, "root": str(home)}


def check_available(names: Iterable[str], data_root: str | None) -> None:
    """Refuse a missing dataset before the first cell starts."""
    if data_root and not Path(data_root).expanduser().is_dir():
        raise OptionError("data_root", data_root, "must be a folder", "give the one with cifar10.zip and the others")
    for name in dict.fromkeys(names):
        source = locate(name, data_root)["data"]
        if source in SPECS:
            check_torchvision(name, data_root)
        elif source == "fashion_mnist":
            load(name)


def check_torchvision(name: str, data_root: str | None) -> None:
    """Look for the files of torchvision."""
    home = Path(data_root).expanduser() if data_root else cache_folder(None) / "datasets"
    try:
        find(name, home, download=False)
    except UserError as error:
        requirement = f"must hold {name}.zip, a folder {name} or torchvision's files of {name}"
        raise OptionError("data_root", str(data_root or home), requirement) from error
