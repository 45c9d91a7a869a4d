"""The paper's core-set table, with controls that the paper does not have.

RandomOnline draws a new random subset at each refresh; FullShort takes as few steps on the whole pool; lazy strong
views are computed only where the pseudo label counts; OracleINFUSE ranks by the gradient on the test set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..scales import FROZEN_SETTINGS, SCRATCH_SETTINGS, Scale, column, column_name
from ..table import Row, Table, TableColumn, names, paper_numbers

REMARK = (
    "Network passes: what the training steps would cost a network that is trained end to end, as a part of those on "
    "the full pool, counted from the measured steps and coverage (a backward pass counts as two forward passes; "
    "selecting a core set is not counted). OracleINFUSE sees the gradient on the test set: no user has it."
)
SETTINGS = tuple(
    (data, labels, keep)
    for data, labels, keeps in (
        ("cifar10", 250, (0.1, 0.2, 0.4)), ("cifar10", 4000, (0.4, 0.6)), ("cifar100", 2500, (0.1, 0.2, 0.4)),
        ("cifar100", 10000, (0.4, 0.6)), ("stl10", 250, (0.1, 0.2)), ("svhn", 250, (0.1, 0.2)),
    )
    for keep in keeps
)  # fmt: skip
PAPER = paper_numbers(
    """
    Random    9.12 6.87 6.51 5.26 5.01 31.55 31.11 28.86 23.19 22.51 16.62 14.37 3.85 4.65
    EarlyStop 7.47 6.03 6.85 4.86 4.52 29.21 28.85 27.30 23.03 22.61 16.31 13.20 2.93 3.08
    EL2N      8.55 7.47 6.70 4.94 4.54 31.55 31.27 28.42 23.12 22.21 16.27 12.92 3.66 3.61
    GradMatch 6.71 5.87 5.60 4.72 4.45 28.95 28.48 26.71 22.72 22.21 16.05 12.90 2.90 2.63
    RETRIEVE  6.60 6.02 5.48 4.68 4.41 28.75 28.34 26.68 22.56 22.18 16.05 12.90 2.90 2.63
    INFUSE    6.29 5.69 5.33 4.51 4.34 28.83 28.05 26.47 22.28 21.97 15.84 12.71 2.61 2.46
    Full      4.98 4.98 4.98 4.19 4.19 26.49 26.49 26.49 21.90 21.90  8.23  8.23 3.80 3.80
    """,
    tuple(column_name(*setting) for setting in SETTINGS),
)
SELECTORS = ("Random", "RandomOnline", "EarlyStop", "FullShort", "EL2N", "GradMatch", "RETRIEVE", "INFUSE",
             "RobustINFUSE")  # fmt: skip
SCRATCH_SELECTORS = (*SELECTORS[:-1], "AlignedINFUSE")
CONTROLS = ("Random", "RandomOnline", "EarlyStop", "FullShort")  # they do not look at the model
PRINTED: dict[str, dict[str, Any]] = {
    "INFUSE, as printed": {"selector": "INFUSE", "selector.rank": "printed"},
    "INFUSE, one score per batch": {"selector": "INFUSE", "selector.granularity": "batch"},
}
ORACLE = "paper.oracle.OracleINFUSE"
LAZY: dict[str, Any] = {"lazy": True, "joint_bn": False}
LAZY_FACTOR = 4 / 3
"""FixMatch selects about two thirds of the rows: lazy strong views then save a quarter of the passes."""
LAZY_SHORT = "FullShort, lazy, 4/3 of the steps"
BASES = ("FixMatch", "FlexMatch")
KEEPS = (0.1, 0.2, 0.4)
# At frozen scale these have all rows at every keep ratio; the other settings have a few rows at the largest.
FROZEN_FULL = (("cifar10", 250), ("cifar100", 2500), ("stl10", 40), ("svhn", 250))
SLOW = ("GradMatch", "RETRIEVE")
"""On a large pool a selection takes them longer than the whole training on a bank: they have fewer columns."""
FLEXMATCH_SETTINGS = (("cifar10", 250), ("cifar100", 2500))
FEW = ("full", "full, lazy", "RandomOnline", "FullShort", LAZY_SHORT, "INFUSE", "RobustINFUSE", "OracleINFUSE")
SELECTIONS = 6
"""Core sets per run at frozen scale, where the pool is scanned in a fraction of a second, and at scratch scale."""


def table(scale: Scale) -> Table:
    """FlexMatch as in the paper; at the other scales FixMatch, which does not learn from every pseudo label."""
    bases = {"frozen": BASES, "scratch": ("FixMatch",)}.get(scale, ("FlexMatch",))
    rows = tuple(row for base in bases for row in selections(base, scale))
    title = "Error with a part of the unlabeled examples"
    return Table("coreset", title, rows, columns(scale), ("error", "passes"), REMARK)


def selections(base: str, scale: Scale) -> Iterator[Row]:
    """The full pool and every selector; differences are to RandomOnline, a new random subset at each refresh."""
    papers = PAPER if base == "FlexMatch" else {}
    control = title(base, "RandomOnline")
    yield Row(title(base, "full"), {"algorithm": base}, control, papers.get("Full", {}))
    yield Row(title(base, "full, lazy"), {"algorithm": base, **LAZY}, control)
    for name in SCRATCH_SELECTORS if scale == "scratch" else SELECTORS:
        options = {"algorithm": base, **selector_options(name, scale)}
        yield Row(title(base, name), options, control if name != "RandomOnline" else None, papers.get(name, {}))
    short = {"algorithm": base, "selector": "FullShort", **LAZY}
    yield Row(title(base, LAZY_SHORT), short, control, keep_factor=LAZY_FACTOR)
    for name, options in PRINTED.items():
        yield Row(title(base, name), {"algorithm": base, **selector_options("INFUSE", scale), **options}, control)
    yield Row(title(base, "OracleINFUSE"), {"algorithm": base, **selector_options(ORACLE, scale)}, control)


def selector_options(name: str, scale: Scale) -> dict[str, Any]:
    """A selector. At frozen scale the head starts at the probe, so that the first core set can be scored as well."""
    scored = scale == "frozen" and name not in CONTROLS
    return {"selector": name, **({"selector.first_interval": "score"} if scored else {})}


def title(base: str, name: str) -> str:
    """The name of a row: a selector or a variant of one, or the full pool."""
    return f"{base}, {name}" if name.startswith("full") else f"{base} + {name}"


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """The paper's fourteen; those of the scale, at frozen scale four of them at all keep ratios."""
    if scale == "smoke":
        return (column(scale, "cifar10", 250, 0.4),)
    if scale == "paper":
        return tuple(column(scale, *setting) for setting in SETTINGS)
    if scale == "scratch":
        settings = ((*pair, keep) for pair in SCRATCH_SETTINGS for keep in KEEPS)
        return tuple(with_refresh(column(scale, *setting), setting[2]) for setting in settings)
    every = ((*pair, keep) for pair in FROZEN_SETTINGS for keep in KEEPS)
    return tuple(frozen_column(*setting) for setting in every if setting[:2] in FROZEN_FULL or setting[2] == max(KEEPS))


def frozen_column(data: str, labels: int, keep: float) -> TableColumn:
    """FixMatch in all rows or in few, and FlexMatch where the paper keeps 40 % as well."""
    rows = {base: names(selections(base, "frozen")) for base in BASES}
    # FlexMatch selects nearly every row, so that lazy views save nothing.
    left_out = {title("FlexMatch", name) for name in ("full, lazy", LAZY_SHORT, *SLOW)}
    if keep < max(KEEPS):
        left_out |= {title("FixMatch", name) for name in (*PRINTED, *(() if data == "stl10" else SLOW))}
    if keep < max(KEEPS) or (data, labels) not in FLEXMATCH_SETTINGS:
        left_out |= set(rows["FlexMatch"])
    if (data, labels) not in FROZEN_FULL:
        left_out |= set(rows["FixMatch"]) - {title("FixMatch", name) for name in FEW}
    shown = tuple(name for base in BASES for name in rows[base] if name not in left_out)
    return with_refresh(column("frozen", data, labels, keep, shown), keep)


def with_refresh(column: TableColumn, keep: float) -> TableColumn:
    """The column with the steps between two core sets."""
    interval = math.ceil(keep * int(column.options["steps"]) / SELECTIONS)
    return replace(column, options={**column.options, "selector.every": interval})
