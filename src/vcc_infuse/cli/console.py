"""Small tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GROUPS = {"error_head": "head classes", "error_medium": "medium classes", "error_tail": "tail classes"}


PER_CENT = {"error", "error_best", "error_balanced", "error_top5", "pseudo_label_coverage", "pseudo_label_precision"}


PER_CENT |= set(GROUPS)


NAMES = {
    "error": "error",
    "error_top5": "top-5 error",
    "error_balanced": "balanced error",
    **GROUPS,
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


def rows(pairs: Sequence[tuple[str, str]]) -> str:
    """Two aligned columns between rules."""
    left = max(len(name) for name, _ in pairs)
    right = max(len(value) for _, value in pairs)
    rule = "─" * (left + right + 2)
    return "\n".join([rule, *(f"{name:<{left}}  {value:>{right}}" for name, value in pairs), rule])


def summary_table(figures: dict[str, Any]) -> str:
    """The headline figures, rates in percent; calibrated figures only where they differ."""
    pairs = []
    for key, name in NAMES.items():
        value = figures.get(key)
        same = key.endswith("_calibrated") and value == figures.get(key.removesuffix("_calibrated"))
        if isinstance(value, float) and value == value and not same:
            pairs.append((name, f"{100 * value:.2f} %" if key in PER_CENT else f"{value:.4f}"))
    return rows(pairs)
