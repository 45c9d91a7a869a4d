"""Tables the paper does not have: Evidence, its parts, and thresholds with a promise."""

from __future__ import annotations

from typing import Any

from ..confidences import COVERAGE, EVIDENCE_PARTS
from ..scales import Scale, column, default_column
from ..table import Row, Table, TableColumn
from .confidence import METRICS

SETTINGS = (
    ("cifar10", 250), ("cifar10", 40), ("stl10", 40), ("fashion_mnist", 100), ("cifar100", 400), ("cifar100", 2500),
    ("svhn", 250),
)  # fmt: skip
"""Evidence was chosen on the first four, with seeds 0 to 4."""
NAMES = {
    "softmax": "softmax", "visits": "mean over visits", "neighbors": "mean of the neighbors",
    "witness": "mean of the heads of label folds", "Evidence": "Evidence",
}  # fmt: skip
WATCHED = {"algorithm": "FixMatch", "calibrator": "vcc_infuse.reproduce.confidences.WatchedEvidence"}
MAX_ERRORS = (0.05, 0.1)
REMARK = (
    "All rows of a column come from the same runs of FixMatch, in which the softmax selects and the others are only "
    "measured, on the weak views of pool rows whose label the method never saw. "
    f"Precision is that of the {COVERAGE:.0%} most trusted."
    " Differences are of the AUROC at the end, where more is better."
)
ERROR_REMARK = (
    "Wrong in the pool: the part of the pool that is trained on with a wrong label, over the run; the last rows "
    "promise that it is at most 5 or 10 %."
)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """Every setting, or the default one."""
    return tuple(column(scale, *pair) for pair in SETTINGS) if scale == "frozen" else (default_column(scale),)


def confidence(scale: Scale) -> Table:
    """Differences are to the softmax."""
    base = NAMES["softmax"]
    rows = tuple(Row(NAMES[n], WATCHED, base if n != "softmax" else None, part=n) for n in EVIDENCE_PARTS)
    metrics = ("auroc_end", *(name for name in METRICS if name != "auroc_end"), "error")
    title = "Evidence: does it know a right pseudo label?"
    return Table("beyond-confidence", title, rows, columns(scale), metrics, REMARK)


def error(scale: Scale) -> Table:
    """FixMatch alone, with RobustVCC and with Evidence."""

    def row(name: str, calibrator: str, **options: Any) -> Row:
        own = {f"calibrator.{key}": value for key, value in options.items()}
        return Row(name, {"algorithm": "FixMatch", "calibrator": calibrator, **own}, "FixMatch")

    rows = (
        Row("FixMatch", WATCHED),  # trains as FixMatch alone does, and is run for the other table anyway
        row("RobustVCC-FixMatch", "RobustVCC"),
        row("Evidence-FixMatch", "Evidence"),
        *(row(f"Evidence-FixMatch, {part:.0%} promised", "Evidence", max_label_error=part) for part in MAX_ERRORS),
    )
    metrics = ("error", "ece_calibrated", "ece", "pseudo_label_coverage", "pseudo_label_precision", "trusted_and_wrong")
    return Table("beyond-error", "Error with Evidence", rows, columns(scale), metrics, ERROR_REMARK)
