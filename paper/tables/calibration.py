"""The paper's two tables on calibration: methods with and without VCC, and VCC beside other calibrators."""

from __future__ import annotations

from ..scales import (
    ABLATION_SETTINGS,
    FROZEN_SETTINGS,
    SCRATCH_SETTINGS,
    Scale,
    column,
    column_name,
    core_names,
    default_column,
)
from ..table import Row, Table, TableColumn, all_five, core_methods, paper_numbers

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
PAPER_OTHERS = paper_numbers(
    """
    FlexMatch     26.49 .169 .369 .173
    EnsembleTS    26.36 .165 .382 .174
    MMCE          28.44 .182 .374 .185
    VCC-FlexMatch 25.26 .147 .324 .163
    """,
    (column_name("cifar100", 2500),),
    width=4,
)
PAPER_OTHERS["EnsembleTS, pseudo labels"] = PAPER_OTHERS.pop("EnsembleTS")
OTHERS = {
    "TemperatureScaling": {"calibrator": "TemperatureScaling"},
    "EnsembleTS, held-out labels": {"calibrator": "EnsembleTS"},
    "EnsembleTS, pseudo labels": {"calibrator": "EnsembleTS", "calibrator.labels": "weak_strong"},
    "MMCE": {"calibrator": "MMCE"},
}


def table(scale: Scale) -> Table:
    """CIFAR-100 as in the paper; at frozen scale every column of the main table, which has the same runs."""
    return Table("calibration", "Calibration with and without VCC", core_methods(PAPER), columns(scale), METRICS)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """The columns of the scale."""
    if scale == "frozen":
        return tuple(column(scale, *pair, rows=core_names(*pair)) for pair in FROZEN_SETTINGS)
    if scale == "scratch":
        return tuple(column(scale, *pair) for pair in SCRATCH_SETTINGS)
    return tuple(column(scale, "cifar100", labels) for labels in ((40,) if scale == "smoke" else LABELS))


def calibrators(scale: Scale) -> Table:
    """ECE, MCE and ACE are of the calibrated confidence; the last metric is the ECE of the softmax.

    The paper fits Ensemble-TS to pseudo labels, so that its numbers stand in that row. Held-out labels are missing from
    training, which alone raises the error where there are few.
    """
    others = (
        Row(f"FlexMatch + {name}", {"algorithm": "FlexMatch", **options}, "FlexMatch", PAPER_OTHERS.get(name, {}))
        for name, options in OTHERS.items()
    )  # fmt: skip
    rows = (*all_five("FlexMatch", PAPER_OTHERS), *others)
    settings = ABLATION_SETTINGS if scale == "frozen" else ()
    columns = tuple(column(scale, *pair) for pair in settings) or (default_column(scale),)
    return Table("calibrators", "VCC and other calibrators on FlexMatch", rows, columns, (*METRICS, "ece"))
