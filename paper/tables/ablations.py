"""The paper's two ablations of VCC: of its three consistency scores and of its reconstruction.

Beyond the paper: VCC without any score, a network without z, and a loss that trains the classifier too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..scales import Scale, ablation_bases, ablation_columns, column_name
from ..table import PaperNumbers, Row, Table, method, paper_numbers, vcc_variant, with_vcc

SCORES = ("ensemble", "temporal", "view")
METRICS = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
COLUMNS = (column_name("cifar100", 2500),)
PAPER_SCORES = paper_numbers(
    """
    view     25.45 .148 .328 .167
    temporal 25.97 .166 .352 .168
    ensemble 25.65 .153 .337 .169
    all      25.26 .147 .324 .163
    """,
    COLUMNS,
    width=4,
)
PAPER_VAE = paper_numbers(
    """
    none 25.76 .160 .411 .168
    vae  25.26 .147 .324 .163
    """,
    COLUMNS,
    width=4,
)
Papers = Mapping[str, PaperNumbers]


def scores(scale: Scale) -> Table:
    """VCC without one of its scores; differences are to VCC with all three."""
    return ablation("ablation-scores", "VCC without one of its scores", scale, without_scores, PAPER_SCORES)


def vae(scale: Scale) -> Table:
    """VCC whose target is used directly or learned in another way; differences are to VCC with its VAE."""
    return ablation("ablation-vae", "VCC without its reconstruction", scale, other_reconstructions, PAPER_VAE)


def ablation(
    name: str, title: str, scale: Scale, rows_of: Callable[[str, Papers], tuple[Row, ...]], papers: Papers
) -> Table:
    """The rows of each base method; the paper has numbers for FlexMatch."""
    rows = {base: rows_of(base, papers if base == "FlexMatch" else {}) for base in ablation_bases(scale)}
    together = tuple(row for base in rows for row in rows[base])
    return Table(name, title, together, ablation_columns(scale, rows), METRICS)


def without_scores(base: str, papers: Papers) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC without one score or without any."""
    ablated = (
        vcc_variant(base, f"without {score}", papers.get(score), scores=[other for other in SCORES if other != score])
        for score in SCORES
    )
    return method(base), with_vcc(base, papers.get("all")), *ablated, vcc_variant(base, "without any", scores=[])


def other_reconstructions(base: str, papers: Papers) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC without its VAE, with an MLP instead, and with joint gradients."""
    return (
        method(base),
        with_vcc(base, papers.get("vae")),
        vcc_variant(base, "without reconstruction", papers.get("none"), reconstruct="none"),
        vcc_variant(base, "with an MLP instead of the VAE", reconstruct="mlp"),
        vcc_variant(base, "whose loss trains the classifier too", joint=True),
    )
