"""What the tables have in common at frozen scale: the baselines on the same features, and no numbers of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .cell import Options
from .table import Row, Table, TableColumn, display_name, method, names

BASELINES = ("Supervised", "LinearProbe", "LabelSpreading")
REFERENCE = "LinearProbe"
METRICS = ("ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "seconds")
LEFT_OUT = {
    "ReMixMatch": "it rotates images, and features cannot be rotated",
    "FullySupervised": "a probe on all labels is slow",
}
NARROW = {"CoMatch": 256, "SimMatch": 256}
"""Hidden units of their projections: one as wide as the 1,280 features would be most of a step on a bank."""
PROTOCOL = (
    "Heads on a bank of frozen features (EfficientNet-Lite0 with ImageNet weights, images resized to 96×96, 1 plain, "
    "2 weak and 4 strong views). Every head starts at the linear probe. The paper trains other networks on more "
    "images, so its numbers are not shown."
)
SVHN = "Frozen ImageNet features are weak on SVHN's house numbers: expect high errors in all rows there."


def on_bank(table: Table) -> Table:
    """The table with the baselines first, without methods that need images and without the paper's numbers."""
    rows = (*map(method, BASELINES), *(row for row in table.rows if kept(row)))
    columns = tuple(without_paper(column, names(rows)) for column in table.columns)
    errors = table.metrics[0] == "error"  # else the baselines cannot be compared with the rows
    return replace(
        table,
        rows=tuple(replace(row, options=narrow(row.options), paper={}) for row in rows),
        columns=columns,
        metrics=tuple(dict.fromkeys([*table.metrics, *(METRICS if errors else ())])),
        remark=" ".join(filter(None, [table.remark, *remarks(table)])),
        reference=REFERENCE if errors else None,
    )


def kept(row: Row) -> bool:
    """Whether the row is neither a baseline, which is there already, nor left out."""
    alone = "calibrator" not in row.options and "selector" not in row.options
    algorithm = row.options["algorithm"]
    return algorithm not in LEFT_OUT and not (alone and algorithm in BASELINES)


def narrow(options: Options) -> Options:
    """The options of a row with a narrow projection, alone or as the base of a plug-in."""
    named = {part: NARROW.get(options.get(part, "")) for part in ("algorithm", "algorithm.base")}
    return {**options, **{f"{part}.hidden_dim": width for part, width in named.items() if width}}


def without_paper(column: TableColumn, known: Sequence[str]) -> TableColumn:
    """The column with the baselines and those of its rows that are known, compared with none of the paper's."""
    wanted = column.rows if column.rows is None else {*BASELINES, *column.rows}
    rows = None if wanted is None else tuple(name for name in known if name in wanted)
    return replace(column, stands_for=None, rows=rows)


def remarks(table: Table) -> list[str]:
    """What a reader has to know."""
    names = {row.options["algorithm"] for row in table.rows}
    out = [f"{display_name(name)} is left out: {reason}." for name, reason in LEFT_OUT.items() if name in names]
    return [PROTOCOL, *out, *([SVHN] if any("SVHN" in column.name for column in table.columns) else [])]
