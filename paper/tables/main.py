"""The paper's tables of errors: of every method (Table 1), and of three methods with and without VCC on STL-10.

Beyond them, FixMatch, FlexMatch and SimMatch with the controls of VCC: a temperature alone, balance alone, RobustVCC.
"""

from __future__ import annotations

from ..scales import FROZEN_SETTINGS, SCRATCH_SETTINGS, Scale, column, column_name, core_names
from ..table import CORE, Row, Table, TableColumn, all_five, core_methods, method, names, paper_numbers

SETTINGS = tuple(
    (data, labels)
    for data, counts in (("cifar10", (40, 250, 2500)), ("cifar100", (400, 2500, 10000)), ("svhn", (40, 250, 1000)))
    for labels in counts
)
PAPER = paper_numbers(
    """
    PseudoLabel      76.29 48.28 14.90 87.15 59.09 38.86 75.95 16.60  9.33
    UDA               8.01  5.12  4.32 53.44 34.37 27.52  2.03  2.03  1.96
    VAT              76.42 42.58 10.97 83.11 53.17 36.58 77.00  4.59  4.09
    MeanTeacher      76.93 56.06 15.47 90.34 61.13 39.05 81.94 25.10 12.29
    MixMatch         70.67 37.28  7.38 79.95 49.58 32.10 79.63  3.71  3.12
    ReMixMatch       14.50  9.21  4.89 57.10 34.77 26.18 31.27  6.38  5.34
    Dash             15.01  5.13  4.35 53.98 34.47 27.72  2.08  1.97  2.03
    SoftMatch         5.06  4.84  4.27 49.64 33.05 27.26  2.31  2.15  2.08
    CoMatch           5.44  5.33  4.29 60.98 37.24 28.15  9.51  2.21  1.96
    FixMatch          7.52  4.90  4.28 46.47 28.09 22.21  2.96  1.99  1.96
    VCC-FixMatch      6.84  4.68  4.27 43.31 27.76 22.05  3.12  1.97  1.95
    FlexMatch         4.98  5.00  4.24 40.43 26.38 21.83  3.36  5.02  5.43
    VCC-FlexMatch     4.90  4.65  4.14 37.98 25.75 21.48  2.62  4.97  3.71
    SimMatch          5.60  4.84  3.96 37.81 25.07 20.58  3.70  2.27  2.07
    VCC-SimMatch      5.27  4.76  3.87 37.22 24.98 20.61  3.04  2.20  4.39
    FullySupervised   4.58  4.58  4.58 19.63 19.63 19.63  2.07  2.07  2.07
    """,
    tuple(column_name(*pair) for pair in SETTINGS),
)
PAPER_STL10 = paper_numbers(
    """
    FixMatch      35.97 6.25
    VCC-FixMatch  30.63 5.31
    FlexMatch     29.15 5.77
    VCC-FlexMatch 28.14 5.52
    SimMatch      27.84 5.91
    VCC-SimMatch  26.97 5.51
    """,
    tuple(column_name("stl10", labels) for labels in (40, 1000)),
)
METRICS = ("error", "ece_calibrated", "ece")
ALONE = (
    "Supervised", "PseudoLabel", "PiModel", "MeanTeacher", "VAT", "MixMatch", "ReMixMatch", "UDA", "Dash", "MPL",
    "CoMatch", "SoftMatch", "FreeMatch", "FixMatch", "FlexMatch", "SimMatch", "FullySupervised",
)  # fmt: skip
# Where all methods are run at frozen scale.
ALL_METHODS = (("cifar10", 40), ("cifar10", 250), ("cifar100", 400), ("stl10", 40), ("fashion_mnist", 100))


def table(scale: Scale) -> Table:
    """Every method, in the columns of the scale."""
    return Table("main", "Error of every method, with and without VCC", rows(), columns(scale), METRICS)


def stl10(scale: Scale) -> Table:
    """At frozen scale the data is the labeled part of STL-10, where 1,000 labels would leave nothing unlabeled."""
    counts = (40, 1000) if scale == "paper" else (40,)
    columns = tuple(column(scale, "stl10", labels) for labels in counts)
    return Table("stl10", "Error on STL-10", core_methods(PAPER_STL10), columns, METRICS)


def rows() -> tuple[Row, ...]:
    """Each method; FixMatch, FlexMatch and SimMatch also with VCC and its controls."""
    return tuple(row for name in ALONE for row in rows_of(name))


def rows_of(name: str) -> tuple[Row, ...]:
    """The rows of one method."""
    return all_five(name, PAPER) if name in CORE else (method(name, PAPER.get(name)),)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """The paper's nine with the paper's methods; at frozen scale those of its banks."""
    if scale == "smoke":
        return (column(scale, "digits", 40),)
    if scale == "frozen":
        return tuple(column(scale, *pair, rows=frozen_rows(*pair)) for pair in FROZEN_SETTINGS)
    if scale == "scratch":
        return tuple(column(scale, *pair) for pair in SCRATCH_SETTINGS)
    known = tuple(row.name for row in rows() if row.paper)
    return tuple(column(scale, *pair, rows=known) for pair in SETTINGS)


def frozen_rows(data: str, labels: int) -> tuple[str, ...]:
    """FixMatch, FlexMatch and SimMatch everywhere; the other methods where a run is cheap."""
    others = names(map(method, ALONE)) if (data, labels) in ALL_METHODS else ()
    return tuple(dict.fromkeys([*others, *core_names(data, labels)]))
