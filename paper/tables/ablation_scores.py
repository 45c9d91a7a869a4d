"""The paper's ablation of the three consistency scores, with a control that uses none."""

from __future__ import annotations

from collections.abc import Mapping

from ..scales import Scale, ablation_bases, ablation_columns, column_name
from ..table import PaperNumbers, Row, Table, method, paper_numbers, vcc_variant, with_vcc

SCORES = ("ensemble", "temporal", "view")
METRICS = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
PAPER = paper_numbers(
    """
    view     25.45 .148 .328 .167
    temporal 25.97 .166 .352 .168
    ensemble 25.65 .153 .337 .169
    all      25.26 .147 .324 .163
    """,
    (column_name("cifar100", 2500),),
    width=4,
)


def table(scale: Scale) -> Table:
    """Differences are to VCC with all three scores."""
    rows = {base: ablated(base, PAPER if base == "FlexMatch" else {}) for base in ablation_bases(scale)}
    every = tuple(row for own in rows.values() for row in own)
    return Table("ablation-scores", "VCC without one of its scores", every, ablation_columns(scale, rows), METRICS)


def ablated(base: str, papers: Mapping[str, PaperNumbers]) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC without one score or without any."""
    without = (
        vcc_variant(base, f"without {score}", papers.get(score), scores=[s for s in SCORES if s != score])
        for score in SCORES
    )
    return method(base), with_vcc(base, papers.get("all")), *without, vcc_variant(base, "without any", scores=[])
