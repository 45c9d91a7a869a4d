"""Tables the paper does not have: Evidence, its parts, thresholds with a promise, and AlignedINFUSE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..confidences import COVERAGE, EVIDENCE_PARTS
from ..scales import Scale, column, default_column
from ..table import Row, Table, TableColumn, method
from . import coreset
from .confidence import METRICS

SETTINGS = (
    ("cifar10", 250), ("cifar10", 40), ("stl10", 40), ("fashion_mnist", 100), ("cifar100", 400), ("cifar100", 2500),
    ("svhn", 250),
)  # fmt: skip
"""Evidence was chosen on the first four, with seeds 0 to 4."""
NAMES = {
    "softmax": "softmax", "visits": "mean over visits", "neighbors": "mean of the neighbors",
    "witness": "mean of the witness's heads", "Evidence": "Evidence",
}  # fmt: skip
WATCHED = {"algorithm": "FixMatch", "calibrator": "paper.confidences.WatchedEvidence"}
SCORES: dict[str, list[str]] = {
    "without neighbors": ["witness"], "without witness": ["neighbors"], "without either": [],
    "and visits": ["neighbors", "witness", "visits"],
}  # fmt: skip
"""Other scores for Evidence to learn from."""
MAX_ERRORS = (0.05, 0.1)
PROMISES = {"pool": "max_pool_error", "trusted": "max_trusted_error"}
OTHER_BASES = ("FlexMatch", "FreeMatch")
REMARK = (
    "All rows of a column come from runs of FixMatch, in which the softmax selects and the others are only measured, "
    "on the weak views of pool rows whose label the method never saw. Evidence with fewer or more scores has runs of "
    "its own, on the same seeds; the others share one. "
    f"Precision is that of the {COVERAGE:.0%} most trusted, and of as many as the softmax trusts at 0.95."
    " Differences are of the AUROC at the end, where more is better."
)
ERROR_REMARK = (
    "Wrong in the pool: the part of the pool that is trained on with a wrong label, over the run; wrong of the "
    "trusted: their part of what is trained on. Where 5 or 10 % of one are promised, it should be at most that on "
    "average. Weighed: each label counts by its "
    "probability (option weigh), because FlexMatch and FreeMatch trust nearly every one on banks."
)
SELECTORS = ("FullShort", "INFUSE", "RobustINFUSE", "AlignedINFUSE")
SELECTION_REMARK = (
    "Balance gives pseudo labels the shares of the labels, as AlignedINFUSE tries to by its choice of examples: its "
    "rows show how much of a gain is that. " + coreset.REMARK
)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """Every setting, or the default one."""
    return tuple(column(scale, *pair) for pair in SETTINGS) if scale == "frozen" else (default_column(scale),)


def confidence(scale: Scale) -> Table:
    """Differences are to the softmax."""
    base = NAMES["softmax"]
    parts = (Row(NAMES[part], WATCHED, base if part != "softmax" else None, part=part) for part in EVIDENCE_PARTS)
    others = (
        Row(f"Evidence {name}", {**WATCHED, "calibrator.scores": scores}, base, part="Evidence")
        for name, scores in SCORES.items()
    )
    rows = (*parts, *others)
    metrics = ("auroc_end", *(name for name in METRICS if name != "auroc_end"), "precision_matched_end", "error")
    title = "Evidence: does it know a right pseudo label?"
    return Table("beyond-confidence", title, rows, columns(scale), metrics, REMARK)


def error(scale: Scale) -> Table:
    """FixMatch alone, with RobustVCC and with Evidence; other methods alone and with Evidence."""

    def row(name: str, calibrator: str, base: str = "FixMatch", **options: Any) -> Row:
        arguments = {f"calibrator.{key}": value for key, value in options.items()}
        return Row(name, {"algorithm": base, "calibrator": calibrator, **arguments}, base)

    others = ((method(base), row(f"Evidence-{base}, weighed", "Evidence", base, weigh=True)) for base in OTHER_BASES)
    rows = (
        Row("FixMatch", WATCHED),  # trains as FixMatch alone does, and is run for the other table anyway
        row("RobustVCC-FixMatch", "RobustVCC"),
        row("Evidence-FixMatch", "Evidence"),
        *(
            row(f"Evidence-FixMatch, {part:.0%} of the {whole} promised", "Evidence", "FixMatch", **{option: part})
            for whole, option in PROMISES.items()
            for part in MAX_ERRORS
        ),
        *(row for pair in others for row in pair),
    )
    metrics = (
        "error",
        "ece_calibrated",
        "ece",
        "pseudo_label_coverage",
        "pseudo_label_precision",
        "trusted_and_wrong",
        "trusted_error",
    )
    return Table("beyond-error", "Error with Evidence", rows, columns(scale), metrics, ERROR_REMARK)


def selection(scale: Scale) -> Table:
    """AlignedINFUSE, the paper's INFUSE, and what needs no scores; differences are to RandomOnline."""

    def row(selector: str, algorithm: str = "FixMatch", **more: Any) -> Row:
        options = coreset.selector_options(selector, scale)
        name = "OracleINFUSE" if selector == coreset.ORACLE else selector
        title = coreset.title("Balance-FixMatch" if more else algorithm, name)
        return Row(title, {"algorithm": algorithm, **options, **more}, None if title == control else control)

    control = coreset.title("FixMatch", "RandomOnline")
    balance = {"algorithm": "Balance", "algorithm.base": "FixMatch"}
    rows = (
        Row("FixMatch, full", {"algorithm": "FixMatch"}, control),
        Row("Balance-FixMatch, full", balance, control),
        row("RandomOnline"), *(row(name) for name in SELECTORS),
        *(row(name, **balance) for name in ("RandomOnline", "AlignedINFUSE")), row(coreset.ORACLE),
    )  # fmt: skip
    title = "Error with a part of the unlabeled examples, chosen by AlignedINFUSE"
    return Table("beyond-selection", title, rows, selection_columns(scale), ("error", "passes"), SELECTION_REMARK)


def selection_columns(scale: Scale) -> tuple[TableColumn, ...]:
    """Every setting at every keep ratio, with all rows; or those of the core-set table at smoke scale."""
    if scale != "frozen":
        return coreset.columns("scratch" if scale == "scratch" else "smoke")
    settings = ((*pair, keep) for pair in SETTINGS for keep in coreset.KEEPS)
    return tuple(replace(coreset.frozen_column(*setting), rows=None) for setting in settings)
