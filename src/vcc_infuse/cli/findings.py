"""What a run found, in lines for the screen: the worst classes, advice on them, and where `predict` should abstain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KINDS = {"test": "test images", "validation": "labeled images kept for validation"}
MOST_CLASSES = 6  # the report and summary.json have all
Row = dict[str, Any]


def findings(summary: dict[str, Any]) -> list[str]:
    """All lines; `summary` is that of a run, or what `Predictor.evaluate` returns with `evaluated_on`."""
    more_labels = [curve["text"]] if (curve := summary.get("learning_curve")) else []
    return [*class_lines(summary), *summary.get("advice", ()), *abstain_lines(summary), *more_labels]


def measured_on(summary: dict[str, Any]) -> str:
    """The images that the figures are taken on, such as `280 test images`; empty if there are none."""
    kind = KINDS.get(summary.get("evaluated_on") or "")
    return f"{summary.get('evaluated_images', 0):,} {kind}" if kind else ""


def class_lines(summary: dict[str, Any]) -> list[str]:
    """A table of the classes worth a look, the worst first."""
    measured = [row for row in summary["per_class"] if row.get("error") is not None]
    rows = errors_of_classes(measured, summary["error"]) if measured else labels_of_classes(summary["per_class"])
    more = len(rows) - 1 - MOST_CLASSES
    rest = [f"… and {more} more, in summary.json and the report"] if more > 0 else []
    return [*aligned(rows[: MOST_CLASSES + 1]), *rest] if len(rows) > 1 else []


def errors_of_classes(rows: Sequence[Row], error: float) -> list[tuple[str, ...]]:
    """The classes whose error is above that of all images, and what they are taken for; a header first."""
    worst = sorted((row for row in rows if row["error"] > error), key=lambda row: -row["error"])
    header = ("class", "error", "labels", "mostly taken for")
    return [header, *((
        row["class"], f"{100 * row['error']:.1f} %", f"{row['labels']:,}",
        f"{row['taken_for']} ({row['taken_for_images']:,} of {row['test_images']:,})",
    ) for row in worst)]  # fmt: skip


def labels_of_classes(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """What is known without a test set: labels and pseudo labels of each class, the rarest first; a header first."""
    rarest = sorted(rows, key=lambda row: (row["labels"], row.get("pseudo_label_share", 0)))
    shares = [f"{100 * row['pseudo_label_share']:.1f} %" if "pseudo_label_share" in row else "–" for row in rarest]
    cells = [(row["class"], f"{row['labels']:,}", share) for row, share in zip(rarest, shares, strict=True)]
    return [("class", "labels", "share of pseudo labels"), *cells]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines: the first and the last column to the left, numbers to the right."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    padded = [
        [cell.ljust(width) if i in (0, len(columns) - 1) else cell.rjust(width) for cell in column]
        for i, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def abstain_lines(summary: dict[str, Any]) -> list[str]:
    """What the suggested cut would answer; a word if there are no images to suggest one on."""
    if not (kind := measured_on(summary)):
        return ["no cut for `predict --abstain` can be suggested without test images"]
    return [f"`predict --abstain {cut['cut']:g}`: {at_cut(cut, kind)}" for cut in suggested(summary)]


def suggested(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The suggested cut of a run, if it has one."""
    return [cut for cut in summary.get("abstain") or () if cut["suggested"]]


def at_cut(cut: dict[str, Any], kind: str) -> str:
    """What a cut answers, and the error of the answers with its interval."""
    low, high = (f"{100 * cut[f'error_{end}']:.0f}" for end in ("low", "high"))
    wrong = f"{100 * cut['error']:.1f} % of the answers wrong (95 % interval {low} to {high} %)"
    return f"{100 * cut['coverage']:.0f} % answered, {wrong}, on {kind}"
