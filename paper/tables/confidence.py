"""A table the paper does not have: does a confidence tell right pseudo labels from wrong ones, over a run?"""

from __future__ import annotations

from ..confidences import CONFIDENCES, COVERAGE, MOMENTS, SCORES
from ..scales import ABLATION_SETTINGS, SCRATCH_SETTINGS, Scale, column, default_column
from ..table import Row, Table

NAMES = {
    "softmax": "softmax", **{name: f"{name} score" for name in SCORES}, "target": "target r̃",
    "target, printed": "target r̃, fusion as printed", "VAE": "VCC: r of the VAE", "MLP": "r of an MLP",
    "temperature": "softmax at the temperature of RobustVCC", "RobustVCC": "RobustVCC: selection",
}  # fmt: skip
WATCHED = {"algorithm": "FixMatch", "calibrator": "paper.confidences.WatchedSoftmax"}
METRICS = tuple(f"{metric}_{moment}" for metric in ("auroc", "ece", "precision") for moment in MOMENTS)
REMARK = (
    "All rows of a column come from the same runs of FixMatch, in which the softmax selects and the others are only "
    "measured, on the weak views of pool rows whose label the method never saw. A row counts with its last visit in "
    "the tenth of the run before a quarter, before the half and before the end of it. Precision is that of the "
    f"{COVERAGE:.0%} most trusted. A score alone is no probability and has no ECE. Differences are of the AUROC at the "
    "end, where more is better."
)


def table(scale: Scale) -> Table:
    """Differences are to the softmax."""
    rows = tuple(
        Row(NAMES[name], WATCHED, NAMES["softmax"] if name != "softmax" else None, part=name) for name in CONFIDENCES
    )
    pairs = {"frozen": ABLATION_SETTINGS, "scratch": SCRATCH_SETTINGS}.get(scale, ())
    columns = tuple(column(scale, *pair) for pair in pairs) or (default_column(scale),)
    first = "auroc_end"
    metrics = (first, *(name for name in METRICS if name != first), "error")
    return Table("confidence", "Which confidence knows a right pseudo label?", rows, columns, metrics, REMARK)
