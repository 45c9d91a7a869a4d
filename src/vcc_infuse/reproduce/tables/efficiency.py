"""The paper's efficiency table: VCC and INFUSE together, error and training time."""

from __future__ import annotations

from ..scales import Scale, column_name, default_column, with_steps
from ..table import Row, Table, TableColumn, method, paper_numbers, with_vcc

PAPER = paper_numbers(
    """
    Dash                 27.15
    MPL                  27.71
    FixMatch             28.03
    FlexMatch            26.49
    VCC-FlexMatch        25.26
    VCC-INFUSE-FlexMatch 25.41
    """,
    (column_name("cifar100", 2500),),
)
BOTH = {"algorithm": "FlexMatch", "calibrator": "VCC", "selector": "INFUSE", "selector.keep": 0.4}


def table(scale: Scale) -> Table:
    """Time is shown in hours and as a ratio. The paper's ratios are 1.132, 0.516 and, with VCC in both runs, 0.456."""
    both = PAPER["VCC-INFUSE-FlexMatch"]
    rows = (
        *(method(name, PAPER[name]) for name in ("Dash", "MPL", "FixMatch", "FlexMatch")),
        with_vcc("FlexMatch", PAPER["VCC-FlexMatch"]),
        Row("VCC-INFUSE-FlexMatch, 40 % kept", BOTH, "FlexMatch", both),
        Row("the same run against VCC-FlexMatch", BOTH, "VCC-FlexMatch", both),
    )
    return Table("efficiency", "Error and training time", rows, (efficiency_column(scale),), ("error", "hours"))


def efficiency_column(scale: Scale) -> TableColumn:
    """At cpu and frozen scale three times the steps of other tables, so that most of the time is spent on training."""
    column = default_column(scale)
    factor = 3 if scale in ("cpu", "frozen") else 1
    return with_steps(column, factor * int(column.options["steps"]))
