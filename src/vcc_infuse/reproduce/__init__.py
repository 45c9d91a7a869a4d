"""The paper's tables as grids of training runs."""

from .cell import Cell
from .grid import Outcome, run_grid
from .table import Column, Row, Table

__all__ = ["Cell", "Column", "Outcome", "Row", "Table", "run_grid"]
