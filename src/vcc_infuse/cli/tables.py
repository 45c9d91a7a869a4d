"""Small tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAMES = {
    "error": "error",
    "error_probe": "error of a linear probe",
    "error_top5": "top-5 error",
    "error_balanced": "balanced error",
    "error_head": "head classes",
    "error_medium": "medium classes",
    "error_tail": "tail classes",
    "ece": "ECE",
    "mce": "MCE",
    "ace": "ACE",
    "nll": "NLL",
    "brier": "Brier score",
    "ece_calibrated": "ECE, calibrated",
    "mce_calibrated": "MCE, calibrated",
    "ace_calibrated": "ACE, calibrated",
    "pseudo_label_coverage": "pseudo-label coverage",
    "pseudo_label_precision": "pseudo-label precision",
}


def two_columns(pairs: Sequence[tuple[str, str]]) -> str:
    """Names on the left, values on the right, a rule above and below."""
    left = max(len(name) for name, _ in pairs)
    right = max(len(value) for _, value in pairs)
    rule = "─" * (left + right + 2)
    return "\n".join([rule, *(f"{name:<{left}}  {value:>{right}}" for name, value in pairs), rule])


def summary_table(summary: dict[str, Any]) -> str:
    """The main metrics, rates in percent; calibrated ones only where they differ; and what they are taken on."""
    pairs = [] if "evaluated_on" not in summary else [("measured on", measured_on(summary))]
    for key, name in NAMES.items():
        value = summary.get(key)
        same = key.endswith("_calibrated") and value == summary.get(key.removesuffix("_calibrated"))
        if isinstance(value, float) and value == value and not same:
            rate = key.startswith(("error", "pseudo_label"))
            pairs.append((name, f"{100 * value:.2f} %" if rate else f"{value:.4f}"))
    return two_columns(pairs)


def measured_on(summary: dict[str, Any]) -> str:
    """Which images the figures are taken on."""
    images = f"{summary.get('evaluated_images', 0):,}"
    names = {"test": f"{images} test images", "validation": f"{images} labeled images kept for validation"}
    return names.get(summary["evaluated_on"], "nothing: no test images")
