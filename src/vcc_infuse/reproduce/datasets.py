"""Where the data of a cell lies: a zip or folder below `--data-root`, or the files torchvision knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..data.cache import cache_folder
from ..data.loading import load
from ..data.sources.torchvision import PUBLIC, find
from ..errors import UserError
from .cell import Cell

BUILT_IN = ("digits",)


def locate(data: str, root: str | None) -> dict[str, Any]:
    """The options that find a dataset."""
    home = Path(root).expanduser() if root else None
    if data in BUILT_IN or home is None:
        return {"data": data}
    for path in (home / f"{data}.zip", home / data):
        if path.exists():
            return {"data": str(path)}
    return {"data": data} if data == "fashion_mnist" else {"data": data, "root": str(home)}


def check(cells: Iterable[Cell], root: str | None) -> None:
    """Every dataset must be there before the first cell starts."""
    if root and not Path(root).expanduser().is_dir():
        raise UserError(f"--data-root {root}: no such folder; give the one that holds cifar10.zip and the others")
    for data in dict.fromkeys(str(cell.options["data"]) for cell in cells):
        found = locate(data, root)
        if found["data"] in PUBLIC:
            home = Path(root).expanduser() if root else cache_folder(None) / "datasets"
            try:
                find(data, home, download=False)
            except UserError as fault:
                raise UserError(
                    f"--data-root {root or home}: neither {data}.zip nor {data}/ nor torchvision's files of "
                    f"{data} are there; put one of them there or give another folder"
                ) from fault
        elif data == "fashion_mnist":
            load(data)
