"""The sections of the page in their order. Each has charts of all runs, then what belongs to one run only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .charts import calibration, classes, training
from .charts.chart import Chart
from .charts.gallery import Strip, gallery
from .read import Run

SHARES = "pseudo_label_precision_per_class", "pseudo_label_coverage_per_class"
THRESHOLD = "threshold_per_class"


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
    """Every section that has something to show or to say."""
    found = [
        Section("curves", "Error and losses", drawn(training.error(runs), training.losses(runs), training.calibration(runs),
                training.pseudo_labels(runs)), absent="No evaluation was recorded yet."),
        Section("calibration", "Calibration", drawn(calibration.before(runs), calibration.after(runs)),
                [Part(run, drawn(calibration.histogram(run))) for run in runs], "No evaluation was recorded yet."),
        Section("pseudo", "Pseudo labels per class", drawn(*(classes.last(runs, key) for key in SHARES)),
                [Part(run, drawn(*(classes.over_time(run, key) for key in SHARES))) for run in runs]),
        Section("thresholds", "Thresholds per class", drawn(classes.last(runs, THRESHOLD)),
                [Part(run, drawn(classes.over_time(run, THRESHOLD))) for run in runs]),
        Section("confusion", "Confusion", [], [Part(run, drawn(classes.confusion(run))) for run in runs],
                "No predictions were kept: the run is unfinished, or older than this section."),
        Section("coreset", "Core set", drawn(training.kept(runs), training.composition(runs)),
                [Part(run, drawn(training.scores(run)), training.sentence(run)) for run in runs]),
        Section("gallery", "Images", [], [Part(run, strips=gallery(run)) for run in runs],
                "No images were kept: none was mistaken, the data are not images, or the run is unfinished."),
    ]  # fmt: skip
    return [section for section in found if section.absent or not section.is_empty]


def drawn(*charts: Chart | None) -> list[Chart]:
    """The charts that have data."""
    return [chart for chart in charts if chart is not None]
