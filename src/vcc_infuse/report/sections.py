"""What is on the page, in order: a section is a title with charts of all runs, then what belongs to one run only."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from .charts import classes, confidence, confusion, coreset, curves, reliability
from .charts.chart import Chart
from .charts.gallery import gallery
from .read import Run

SHARES = "pseudo_label_precision_per_class", "pseudo_label_coverage_per_class"


THRESHOLD = "threshold_per_class"


class Section(NamedTuple):
    """A part of the page: charts of all runs together, and for each run its own charts and markup."""

    key: str
    title: str
    charts: list[Chart]
    own: list[tuple[Run, list[Chart], str]]
    absent: str = ""
    """What to say where there is nothing to show; without it the section is left out."""


def sections(runs: Sequence[Run]) -> list[Section]:
    """Everything there is to show."""
    return [
        Section("curves", "Error and losses", drawn(curves.error(runs), curves.losses(runs), curves.calibration(runs),
                curves.pseudo_labels(runs)), [], "No evaluation was noted yet."),
        Section("calibration", "Calibration", drawn(reliability.before(runs), reliability.after(runs)),
                [(run, drawn(confidence.histogram(run)), "") for run in runs],
                "No evaluation was noted yet."),
        Section("pseudo", "Pseudo labels per class", drawn(*(classes.last(runs, key) for key in SHARES)),
                [(run, drawn(*(classes.over_time(run, key) for key in SHARES)), "") for run in runs]),
        Section("thresholds", "Thresholds per class", drawn(classes.last(runs, THRESHOLD)),
                [(run, drawn(classes.over_time(run, THRESHOLD)), "") for run in runs]),
        Section("confusion", "Confusion", [], [(run, drawn(confusion.confusion(run)), "") for run in runs],
                "No predictions were kept: the run is unfinished, or older than this section."),
        Section("coreset", "Core set", drawn(coreset.kept(runs), coreset.composition(runs)),
                [(run, drawn(coreset.scores(run)), paragraph(coreset.sentence(run))) for run in runs]),
        Section("gallery", "Images", [], [(run, [], gallery(run)) for run in runs],
                "No images were kept: the data are no images, or the run is unfinished or older than this section."),
    ]  # fmt: skip


def drawn(*charts: Chart | None) -> list[Chart]:
    """The charts that have data."""
    return [chart for chart in charts if chart is not None]


def paragraph(text: str) -> str:
    """A line of text, if there is any."""
    return f"<p>{html.escape(text)}</p>" if text else ""
