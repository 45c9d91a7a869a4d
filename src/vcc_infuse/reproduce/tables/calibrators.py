"""The paper's comparison of VCC with other calibrators."""

from __future__ import annotations

from ..scales import Scale, column, column_name, default_column
from ..table import Row, Table, method, paper_numbers, with_vcc

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
HELD_OUT = {"algorithm": "FlexMatch", "calibrator": "VCC", "calibrator.holdout_fraction": 0.1}
OTHERS = ("TemperatureScaling", "EnsembleTS", "MMCE")


def table(scale: Scale) -> Table:
    """ECE, MCE and ACE are of the calibrated confidence; the last metric is the ECE of the softmax."""
    others = (
        Row(f"FlexMatch + {name}", {"algorithm": "FlexMatch", "calibrator": name}, "FlexMatch", PAPER.get(name, {}))
        for name in OTHERS
    )
    held_out = Row("VCC-FlexMatch, a tenth of the labels held out", HELD_OUT, "FlexMatch")
    rows = (method("FlexMatch", PAPER["FlexMatch"]), *others, with_vcc("FlexMatch", PAPER["VCC-FlexMatch"]), held_out)
    columns = [default_column(scale)]
    if scale == "cpu":
        columns.append(column(scale, "cifar100", 2500))
    return Table("calibrators", "VCC and other calibrators on FlexMatch", rows, tuple(columns), METRICS)
