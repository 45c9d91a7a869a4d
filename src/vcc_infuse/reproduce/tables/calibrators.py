"""The paper's table of VCC against other calibrators."""

from __future__ import annotations

from ..scales import Scale, column, column_name, small_or_full
from ..table import Row, Table, figures, method, with_vcc

COLUMN = column_name("cifar100", 2500)


FIGURES = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated", "ece")


PAPER = figures(
    """
    FlexMatch     26.49 .169 .369 .173
    EnsembleTS    26.36 .165 .382 .174
    MMCE          28.44 .182 .374 .185
    VCC-FlexMatch 25.26 .147 .324 .163
    """,
    (COLUMN,),
    width=4,
)


HELD_OUT = {"algorithm": "FlexMatch", "calibrator": "VCC", "calibrator.share": 0.1}


RIVALS = ("TemperatureScaling", "EnsembleTS", "MMCE")


def table(scale: Scale) -> Table:
    """ECE, MCE and ACE are of the calibrated confidence; the last figure is the softmax's ECE."""
    rivals = (
        Row(f"FlexMatch + {name}", {"algorithm": "FlexMatch", "calibrator": name}, "FlexMatch", PAPER.get(name, {}))
        for name in RIVALS
    )
    held_out = Row("VCC-FlexMatch, a tenth of the labels held out", HELD_OUT, "FlexMatch")
    rows = (method("FlexMatch", PAPER["FlexMatch"]), *rivals, with_vcc("FlexMatch", PAPER["VCC-FlexMatch"]), held_out)
    columns = [small_or_full(scale)]
    if scale == "cpu":
        columns.append(column(scale, "cifar100", 2500))
    return Table("calibrators", "VCC and other calibrators on FlexMatch", rows, tuple(columns), FIGURES)
