"""The paper's comparison of VCC with other calibrators."""

from __future__ import annotations

from ..scales import ABLATION_SETTINGS, Scale, column, column_name, default_column
from ..table import Row, Table, all_five, paper_numbers

METRICS = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated", "ece")
PAPER = paper_numbers(
    """
    FlexMatch     26.49 .169 .369 .173
    EnsembleTS    26.36 .165 .382 .174
    MMCE          28.44 .182 .374 .185
    VCC-FlexMatch 25.26 .147 .324 .163
    """,
    (column_name("cifar100", 2500),),
    width=4,
)
OTHERS = ("TemperatureScaling", "EnsembleTS", "MMCE")


def table(scale: Scale) -> Table:
    """ECE, MCE and ACE are of the calibrated confidence; the last metric is the ECE of the softmax."""
    others = (
        Row(f"FlexMatch + {name}", {"algorithm": "FlexMatch", "calibrator": name}, "FlexMatch", PAPER.get(name, {}))
        for name in OTHERS
    )
    rows = (*all_five("FlexMatch", PAPER), *others)
    pairs = ABLATION_SETTINGS if scale == "frozen" else ()
    columns = tuple(column(scale, *pair) for pair in pairs) or (default_column(scale),)
    return Table("calibrators", "VCC and other calibrators on FlexMatch", rows, columns, METRICS)
