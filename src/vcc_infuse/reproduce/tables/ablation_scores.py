"""The paper's ablation of the three consistency scores, with the control that uses none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..scales import Scale, ablation, column_name
from ..table import Row, Table, figures, method, vcc_variant, with_vcc

Figures = Mapping[str, Mapping[str, Any]]


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


FIGURES = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")


def table(scale: Scale) -> Table:
    """Differences are to VCC with all three scores."""
    base, place = ablation(scale)
    papers = PAPER if base == "FlexMatch" else {}
    return Table("ablation-scores", "VCC without one of its scores", rows(base, papers), (place,), FIGURES)


def rows(base: str, papers: Figures) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC lacking a score or all of them."""
    without = (subset(base, f"without {s}", [k for k in SCORES if k != s], papers.get(s)) for s in SCORES)
    return (method(base), with_vcc(base, papers.get("all")), *without, subset(base, "without any", [], None))


def subset(base: str, name: str, scores: list[str], paper: Mapping[str, Any] | None) -> Row:
    """VCC with some of the scores."""
    return vcc_variant(base, name, paper, scores=str(scores).replace("'", '"'))
