"""The paper's ablation of the reconstruction, with what the paper leaves open: a network without z, joint gradients."""

from __future__ import annotations

from collections.abc import Mapping

from ..scales import Scale, ablation_bases, ablation_columns, column_name
from ..table import PaperNumbers, Row, Table, method, paper_numbers, vcc_variant, with_vcc

METRICS = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
PAPER = paper_numbers("none 25.76 .160 .411 .168\n vae 25.26 .147 .324 .163", (column_name("cifar100", 2500),), width=4)


def table(scale: Scale) -> Table:
    """Differences are to VCC with its VAE."""
    rows = {base: ablated(base, PAPER if base == "FlexMatch" else {}) for base in ablation_bases(scale)}
    every = tuple(row for own in rows.values() for row in own)
    return Table("ablation-vae", "VCC without its reconstruction", every, ablation_columns(scale, rows), METRICS)


def ablated(base: str, papers: Mapping[str, PaperNumbers]) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC whose target is used directly or learned in another way."""
    return (
        method(base),
        with_vcc(base, papers.get("vae")),
        vcc_variant(base, "without reconstruction", papers.get("none"), reconstruct="none"),
        vcc_variant(base, "with an MLP instead of the VAE", reconstruct="mlp"),
        vcc_variant(base, "whose loss trains the classifier too", joint=True),
    )
