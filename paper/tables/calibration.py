"""The paper's calibration table: error, ECE, MCE and ACE with and without VCC, and with the controls of VCC."""

from __future__ import annotations

from ..scales import FROZEN_SETTINGS, Scale, column, column_name, core_names
from ..table import Table, TableColumn, core_methods, paper_numbers

LABELS = (400, 2500, 10000)
METRICS = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
PAPER = paper_numbers(
    """
    FixMatch      46.42 .382 .573 .376  28.03 .208 .530 .199  22.20 .127 .322 .128
    VCC-FixMatch  43.29 .359 .560 .345  27.81 .195 .418 .182  22.01 .125 .317 .127
    FlexMatch     39.94 .291 .512 .286  26.49 .169 .369 .173  21.90 .120 .311 .126
    VCC-FlexMatch 37.52 .257 .446 .258  25.26 .147 .324 .163  21.55 .104 .269 .125
    SimMatch      37.81 .325 .510 .328  25.07 .157 .358 .179  20.58 .113 .295 .116
    VCC-SimMatch  37.20 .317 .514 .314  25.01 .155 .347 .173  20.61 .115 .291 .121
    """,
    tuple(column_name("cifar100", labels) for labels in LABELS),
    width=4,
)


def table(scale: Scale) -> Table:
    """CIFAR-100 as in the paper; at frozen scale every column of the main table, which has the same runs."""
    return Table("calibration", "Calibration with and without VCC", core_methods(PAPER), columns(scale), METRICS)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """The columns of the scale."""
    if scale == "frozen":
        return tuple(column(scale, *pair, rows=core_names(*pair)) for pair in FROZEN_SETTINGS)
    return tuple(column(scale, "cifar100", k) for k in ((40,) if scale == "smoke" else LABELS))
