"""The sections of the page in their order. Each has charts of all runs, then parts that belong to one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .charts import calibration, classes, training
from .charts.chart import Chart
from .charts.gallery import Strip, gallery
from .read import Run

SHARES = ("pseudo_label_precision_per_class", "pseudo_label_coverage_per_class")
THRESHOLDS = ("threshold_per_class",)
NO_EVALUATION = "No evaluation was recorded yet."
NO_PREDICTIONS = "No predictions were kept: the run is unfinished, or older than this section."
NO_IMAGES = "No images were kept: none was mistaken, the data are not images, or the run is unfinished."


@dataclass
class Part:
    """What a section shows of one run."""

    run: Run
    charts: list[Chart] = field(default_factory=list)
    text: str = ""
    strips: list[Strip] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.charts or self.text or self.strips)


@dataclass
class Section:
    """A title, charts of all runs together, and one part per run."""

    key: str
    title: str
    charts: list[Chart]
    parts: list[Part] = field(default_factory=list)
    absent: str = ""
    """Shown if the section is empty; an empty section without it is left out."""

    @property
    def all_charts(self) -> list[Chart]:
        """The charts of all runs together, then those of each run."""
        return [*self.charts, *(chart for part in self.parts for chart in part.charts)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.charts and all(part.is_empty for part in self.parts)


def sections(runs: Sequence[Run]) -> list[Section]:
    """Every section that has something to show, or a sentence on why it has not."""
    curves = (training.error_curve, training.loss_curves, training.ece_curves, training.pseudo_label_curves)
    diagrams = (calibration.softmax_diagram, calibration.calibrated_diagram)
    kept = (training.kept_bars, training.true_class_bars)
    histograms = [Part(run, drawn(calibration.confidence_histogram(run))) for run in runs]
    matrices = [Part(run, drawn(classes.confusion_matrix(run))) for run in runs]
    scores = [Part(run, drawn(training.score_histogram(run)), training.coreset_sentence(run)) for run in runs]
    images = [Part(run, strips=gallery(run)) for run in runs]
    candidates = [
        Section("curves", "Error and losses", drawn(*(draw(runs) for draw in curves)), [], NO_EVALUATION),
        Section("calibration", "Calibration", drawn(*(draw(runs) for draw in diagrams)), histograms, NO_EVALUATION),
        per_class("pseudo", "Pseudo labels per class", runs, SHARES),
        per_class("thresholds", "Thresholds per class", runs, THRESHOLDS),
        Section("confusion", "Confusion", [], matrices, NO_PREDICTIONS),
        Section("coreset", "Core set", drawn(*(draw(runs) for draw in kept)), scores),
        Section("gallery", "Images", [], images, NO_IMAGES),
    ]
    return [section for section in candidates if section.absent or not section.is_empty]


def per_class(key: str, title: str, runs: Sequence[Run], metrics: Sequence[str]) -> Section:
    """A section on metrics per class, at the last evaluation and over time."""
    parts = [Part(run, drawn(*(classes.heatmap_over_time(run, metric) for metric in metrics))) for run in runs]
    return Section(key, title, drawn(*(classes.last_bars(runs, metric) for metric in metrics)), parts)


def drawn(*charts: Chart | None) -> list[Chart]:
    """The charts that have data."""
    return [chart for chart in charts if chart is not None]
