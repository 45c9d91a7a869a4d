"""Curves over the evaluations: error, calibration error, losses, pseudo labels. page.js switches steps and time."""

from __future__ import annotations

from collections.abc import Sequence

from ..format import decimal, known, label, percent, scaled
from ..read import Run
from .chart import DASHES, Chart, Trace, color, layout
from .reliability import is_calibrated

Line = tuple[str, str]
"""The key of a metric in metrics.jsonl, and its name on the page."""


def error(runs: Sequence[Run]) -> Chart | None:
    """Test error, or error on the labels kept for validation."""
    kinds = " or ".join(sorted({run.measured_on for run in runs}))
    return lines(runs, f"{kinds} error".capitalize(), [("error", "error")])


def calibration(runs: Sequence[Run]) -> Chart | None:
    """ECE of the softmax confidence and, if any run has a calibrator, of the calibrated one."""
    calibrated = [("ece_calibrated", "calibrated")] if any(map(is_calibrated, runs)) else []
    return lines(runs, "Calibration error (ECE)", [*calibrated, ("ece", "softmax")])


def pseudo_labels(runs: Sequence[Run]) -> Chart | None:
    """The fraction of pseudo labels that are used, and the fraction of those that are correct."""
    keys = [("pseudo_label_precision", "precision"), ("pseudo_label_coverage", "coverage")]
    return lines(runs, "Pseudo labels", keys)


def losses(runs: Sequence[Run]) -> Chart | None:
    """Every loss term, averaged since the previous evaluation."""
    terms = dict.fromkeys(key for run in runs for line in run.metrics for key in line if key.startswith("loss_"))
    return lines(
        runs, "Losses", [(key, key.removeprefix("loss_").replace("_", " ")) for key in terms], as_percent=False
    )


def lines(runs: Sequence[Run], title: str, keys: Sequence[Line], as_percent: bool = True) -> Chart | None:
    """One line per run and key. Several runs differ by color and keys by dash; keys of a single run by color."""
    single = len(runs) == 1
    data, words = [], []
    for run in runs:
        for place, (key, name) in enumerate(keys):
            values = run.series(key)
            if any(map(known, values)):
                tint = color(place if single else run.number)
                full, dash = (name, 0) if single else (f"{run.name} · {name}", place)
                data.append(trace(run, values, full, tint, dash, as_percent))
                words.append(f"{name} of {run.name} {course(values, as_percent)}")
    if not data:
        return None
    dashes = " · ".join(f"{name} {DASHES[i % len(DASHES)]}" for i, (_, name) in enumerate(keys))
    shape = layout("steps", "percent" if as_percent else "loss", hovermode="x unified")
    shape["showlegend"] = single and len(keys) > 1
    shape["yaxis"]["rangemode"] = "tozero"
    note = "" if single or len(keys) == 1 else f"Line styles: {dashes}."
    return Chart(title, f"{title}: {'; '.join(words)}.", data, shape, note)


def trace(run: Run, values: Sequence[object], name: str, tint: str, dash: int, as_percent: bool) -> Trace:
    """One line, with its steps and its seconds."""
    steps, unit = run.series("step"), " %" if as_percent else ""
    return dict(
        type="scatter", mode="lines+markers", name=label(name, 48), x=steps, connectgaps=False,
        y=scaled(values, 100 if as_percent else 1), hovertemplate=f"%{{y:.{2 if as_percent else 3}f}}{unit}",
        line=dict(color=tint, width=2, dash=DASHES[dash % len(DASHES)]), marker=dict(size=5),
        meta=dict(run=run.number, steps=steps, seconds=run.series("seconds")),
    )  # fmt: skip


def course(values: Sequence[object], as_percent: bool) -> str:
    """A curve in words."""
    seen = [value for value in values if known(value)]
    ends = [percent(v) if as_percent else decimal(v) for v in (seen[0], seen[-1])]
    return f"is {ends[1]}" if len(seen) == 1 else f"goes from {ends[0]} to {ends[1]}"
