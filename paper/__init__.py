"""The paper's tables as grids of training runs: `python -m paper TABLE --scale smoke|frozen|paper`."""

from .cell import Cell
from .grid import Outcome, run_grid
from .table import Row, Table, TableColumn

__all__ = ["Cell", "Outcome", "Row", "Table", "TableColumn", "run_grid"]
