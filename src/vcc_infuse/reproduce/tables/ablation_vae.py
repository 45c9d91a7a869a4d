"""The paper's ablation of the reconstruction, with the network without z that it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..scales import Scale, ablation, column_name
from ..table import Row, Table, figures, method, vcc_variant, with_vcc

COLUMN = column_name("cifar100", 2500)


PAPER = figures("none 25.76 .160 .411 .168\n vae 25.26 .147 .324 .163", (COLUMN,), width=4)


FIGURES = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")


def table(scale: Scale) -> Table:
    """Differences are to VCC with its VAE."""
    base, place = ablation(scale)
    papers = PAPER if base == "FlexMatch" else {}
    return Table("ablation-vae", "VCC without its reconstruction", rows(base, papers), (place,), FIGURES)


def rows(base: str, papers: Mapping[str, Mapping[str, Any]]) -> tuple[Row, ...]:
    """A method alone, with VCC, and with VCC whose target is used directly or learned otherwise."""
    return (
        method(base),
        with_vcc(base, papers.get("vae")),
        vcc_variant(base, "without reconstruction", papers.get("none"), reconstruct="none"),
        vcc_variant(base, "with an MLP instead of the VAE", reconstruct="mlp"),
    )
