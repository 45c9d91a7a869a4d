"""The paper's STL-10 table: three methods with and without VCC, and the controls of VCC."""

from __future__ import annotations

from ..scales import Scale, column, column_name
from ..table import Table, core_methods, paper_numbers

COLUMNS = tuple(column_name("stl10", labels) for labels in (40, 1000))
PAPER = paper_numbers(
    """
    FixMatch      35.97 6.25
    VCC-FixMatch  30.63 5.31
    FlexMatch     29.15 5.77
    VCC-FlexMatch 28.14 5.52
    SimMatch      27.84 5.91
    VCC-SimMatch  26.97 5.51
    """,
    COLUMNS,
)


def table(scale: Scale) -> Table:
    """At frozen scale the data is the labeled part of STL-10, where 1,000 labels would leave nothing unlabeled."""
    counts = (40, 1000) if scale == "paper" else (40,)
    columns = tuple(column(scale, "stl10", k) for k in counts)
    return Table("stl10", "Error on STL-10", core_methods(PAPER), columns, ("error", "ece_calibrated", "ece"))
