"""A table the paper does not have: VCC under every reading of what the paper leaves open, beside what it must beat."""

from __future__ import annotations

from typing import Any

from ..scales import ABLATION_SETTINGS, FROZEN_SETTINGS, SCRATCH_SETTINGS, Scale, column, default_column
from ..table import Row, Table, TableColumn, controls, method, names, with_vcc

HALF = {"residual": False}
READINGS: dict[str, dict[str, Any]] = {
    "staged": {"start": "staged"},
    "r̃ selects": {"reconstruct": "none"},
    "−c²": {"fusion": "minus_square"},
    "c normalized": {"normalize_confidence": True},
    "VAE learns ten times as fast": {"lr_scale": 10.0},
    "MLP for the VAE": {"reconstruct": "mlp"},
    "joint": {"joint": True},
    "starts at ½": HALF,
    "starts at ½, staged": {"start": "staged", **HALF},
    "starts at ½, −c², staged": {"fusion": "minus_square", "start": "staged", **HALF},
    "−c², r̃ selects": {"fusion": "minus_square", "reconstruct": "none"},
}
THRESHOLDS = (0.8, 0.99)
METRICS = ("error", "ece", "ece_calibrated")
REMARK = (
    "VCC-FixMatch selects by r, which starts at the softmax confidence, from the first step. Staged: the VAE learns "
    "from 17 % of the run on, r̃ selects from 34 % and r from 51 %. −c²: the printed fusion with one sign changed. A "
    "threshold of 0.8 or 0.99 tells a better order from another coverage. ECE of softmax is that of the classifier; "
    "ECE that of the confidence r."
)


def table(scale: Scale) -> Table:
    """FixMatch, VCC-FixMatch in all readings, and what VCC has to beat; differences are to FixMatch."""
    return Table("readings", "VCC in every reading of the paper", rows(), columns(scale), METRICS, REMARK)


def columns(scale: Scale) -> tuple[TableColumn, ...]:
    """At frozen scale all readings in three settings, and in the others VCC beside what it must beat."""
    if scale == "scratch":
        return tuple(column(scale, *pair) for pair in SCRATCH_SETTINGS)
    if scale != "frozen":
        return (default_column(scale),)
    few = names((method("FixMatch"), with_vcc("FixMatch"), *thresholds(), *controls("FixMatch")))
    return tuple(column(scale, *pair, rows=None if pair in ABLATION_SETTINGS else few) for pair in FROZEN_SETTINGS)


def rows() -> tuple[Row, ...]:
    """All of them on FixMatch, whose fixed threshold leaves the most to a confidence."""
    base: dict[str, Any] = {"algorithm": "FixMatch"}
    readings = (
        Row(f"VCC-FixMatch, {name}", {**base, "calibrator": "VCC", **prefixed(arguments)}, "FixMatch")
        for name, arguments in READINGS.items()
    )
    evidence = Row("FixMatch + Evidence", {**base, "calibrator": "Evidence"}, "FixMatch")
    return method("FixMatch"), with_vcc("FixMatch"), *readings, *thresholds(), *controls("FixMatch"), evidence


def thresholds() -> tuple[Row, ...]:
    """FixMatch that selects more, or less."""
    base = {"algorithm": "FixMatch"}
    return tuple(Row(f"FixMatch at {cut}", {**base, "algorithm.threshold": cut}, "FixMatch") for cut in THRESHOLDS)


def prefixed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the calibrator as options of a run."""
    return {f"calibrator.{name}": value for name, value in arguments.items()}
