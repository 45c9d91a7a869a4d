"""The paper's ablation of the three consistency scores, with the control that uses none."""

from ..rows import figures, method, with_vcc
from ..settings import Scale, column_name, small_or_full
from ..table import Row, Table

COLUMN = column_name("cifar100", 2500)
SCORES = ("ensemble", "temporal", "view")
PAPER = figures(
    """
    view     25.45 .148 .328 .167
    temporal 25.97 .166 .352 .168
    ensemble 25.65 .153 .337 .169
    all      25.26 .147 .324 .163
    """,
    (COLUMN,),
    width=4,
)
FULL = "VCC-FlexMatch"


def table(scale: Scale) -> Table:
    """Differences are to VCC with all three scores."""
    without = (subset(f"without {s}", [k for k in SCORES if k != s], PAPER[s]) for s in SCORES)
    rows = (method("FlexMatch"), with_vcc("FlexMatch", PAPER["all"]), *without, subset("without any", [], {}))
    columns = (small_or_full(scale),)
    figures = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
    return Table("ablation-scores", "VCC without one of its scores", rows, columns, figures)


def subset(name: str, scores: list[str], paper: dict[str, tuple[float, ...]]) -> Row:
    """VCC with some of the scores."""
    options = {"algorithm": "FlexMatch", "calibrator": "VCC", "calibrator.scores": str(scores).replace("'", '"')}
    return Row(f"{FULL} {name}", options, FULL, paper)
