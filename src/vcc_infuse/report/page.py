"""The page: run folders in, one self-contained HTML file out.

A headline (cards with the metrics of one run, or a table of several runs with the best values marked), then sections
with charts of all runs and parts that belong to one run. Jinja2 escapes every value, because class and file names come
from outside and must stay text; a content security policy allows only the page's own scripts and styles.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError

from ..errors import OptionError
from ..utils.io import MALFORMED, nan_to_none, reading, write_text
from .charts import calibration, training
from .charts.calibration import COLORS, Chart
from .charts.gallery import Cell, Strip, audit_strips, confusion_cells, gallery
from .read import UNKNOWN, Run, count, decimal, elapsed, known, percent, read_runs

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
CLEAR = "rgba(0,0,0,0)"
# Colors of text, grid and hover labels, and the scale of heatmaps.
PALETTES = {
    "light": ("#3d4451", "#e6e8ec", "#ffffff", ("#f4f6fa", "#bcd3fb", "#5b93f5", "#1d4fc4", "#12306f")),
    "dark": ("#c3c9d4", "#2c323d", "#1b2029", ("#1b212c", "#1d3a74", "#2f63c9", "#6fa3ff", "#d6e5ff")),
}


def write_report(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Write one self-contained page about a run, or a comparison of several.

    Args:
        folders: run folders, also of unfinished runs.
        output: the HTML file to write.

    Returns:
        The path of the page.

    >>> write_report(["runs/a", "runs/b"], "comparison.html")  # doctest: +SKIP
    """
    path = Path(output)
    runs = read_runs([Path(folder) for folder in folders])
    try:
        text = page(runs)
    except (*MALFORMED, UndefinedError):  # a changed file holds values that no chart can show: the error names its run
        for run in runs:
            with reading(run.name, "some of its metrics are not those of a run; restore its files from a copy"):
                try:
                    page([run])
                except UndefinedError as fault:  # a template met a number where it expected a table
                    raise TypeError(str(fault)) from fault
        raise
    try:
        # A file name may hold bytes that are not UTF-8.
        write_text(path, text, errors="replace")
    except OSError as fault:
        reason = f"it cannot be written: {fault.strerror}"
        raise OptionError("output", str(path), "must be a file in a writable folder", reason) from fault
    return path


def page(runs: Sequence[Run]) -> str:
    """The page as text."""
    single = len(runs) == 1
    style, script = ((files(__package__) / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    heading = runs[0].name if single else f"{len(runs)} runs compared"
    shown = sections(runs)
    charts = [chart for section in shown for chart in section.all_charts]
    data = {
        "charts": [{"data": chart.data, "layout": chart.layout} for chart in charts],
        "themes": {name: {"layout": theme(*palette)} for name, palette in PALETTES.items()},
    }
    return render(
        "page.html",
        runs=runs,
        single=single,
        title=f"{heading}: report" if single else heading,
        heading=heading,
        colors=COLORS,
        cards=cards(runs[0]),
        columns=columns(runs),
        sections=shown,
        numbers={chart: number for number, chart in enumerate(charts)},
        data=nan_to_none(data),
        style=style + "".join(f".c{i}{{--run:{color}}}" for i, color in enumerate(COLORS)),
        script=script,
        plotly=plotly_library(),
    )


class Card(NamedTuple):
    """One metric, with a detail in small print."""

    name: str
    value: str
    detail: str


class Column(NamedTuple):
    """One metric of the table; `best` is 1 if the highest value is best, -1 if the lowest, 0 if neither."""

    key: str
    name: str
    form: Callable[[Any], str]
    best: int = -1

    def text(self, run: Run) -> str:
        """The cell of a run."""
        return self.form(run.latest.get(self.key))

    def is_best(self, run: Run, runs: Sequence[Run]) -> bool:
        """Whether no other run is better and at least one is worse, among those measured on the same kind of images."""
        rivals = [r for r in runs if self.key not in MEASURED or r.measured_on == run.measured_on]
        values = [self.best * v for r in rivals if known(v := r.latest.get(self.key))]
        value = run.latest.get(self.key)
        return bool(self.best and known(value) and self.best * value == max(values) > min(values))


MEASURED = ("error", "error_probe", "ece", "ece_calibrated", "nll")
COLUMNS = (
    Column("error", "error", lambda v: percent(v, 2)),
    Column("error_probe", "linear probe", lambda v: percent(v, 2), 0),
    Column("ece", "ECE softmax", decimal),
    Column("ece_calibrated", "ECE calibrated", decimal),
    Column("nll", "NLL", decimal),
    Column("pseudo_label_precision", "precision", percent, 1),
    Column("pseudo_label_coverage", "coverage", percent, 0),
    Column("trusted_and_wrong", "trusted and wrong, of the pool", percent),
    Column("max_pool_error", "… promised", percent, 0),
    Column("trusted_error", "wrong, of the trusted", percent),
    Column("max_trusted_error", "… promised", percent, 0),
    Column("steps", "steps", count, 0),
    Column("seconds_train", "training", elapsed),
    Column("coreset_size", "core set", count, 0),
)


def columns(runs: Sequence[Run]) -> list[Column]:
    """The columns for which a run has a value; also what was measured on, unless that is a test set everywhere."""
    validated = any(run.measured_on == "validation" for run in runs)
    first = [Column("evaluated_on", "measured on", lambda v: v or "test", 0)] if validated else []
    return first + [column for column in COLUMNS if any(known(run.latest.get(column.key)) for run in runs)]


def cards(run: Run) -> list[Card]:
    """The most important metrics, without those that are unknown."""
    metrics = run.latest
    precision = metrics.get("pseudo_label_precision")
    coverage = percent(metrics.get("pseudo_label_coverage"))
    pseudo_card = Card("Pseudo labels used", coverage, "no hidden labels to check them")
    if known(precision):
        pseudo_card = Card("Pseudo labels right", percent(precision), f"coverage {coverage}")
    errors = (metrics.get("ece"), metrics.get("ece_calibrated"))
    calibration_card = Card("ECE", decimal(errors[0]), "softmax confidence")
    if errors[0] != errors[1] and known(errors[1]):
        short = [decimal(value).removeprefix("0") for value in errors]  # a card has little room
        calibration_card = Card("ECE before → after", " → ".join(short), "softmax → calibrated")
    images = f"at the end, on {count(metrics.get('evaluated_images'))} images"
    seconds = metrics.get("seconds_train", metrics.get("seconds"))
    shown = [
        Card("Linear probe", percent(metrics.get("error_probe"), 2), "on the same features"),
        Card(f"{run.measured_on.capitalize()} error", percent(metrics.get("error"), 2), images),
        calibration_card,
        pseudo_card,
        Card("Labels", count(metrics.get("labels")), ""),
    ]
    if not without_steps(run):
        shown.append(Card("Steps", count(metrics.get("steps", metrics.get("step"))), ""))
        shown.append(Card("Training time", elapsed(seconds), f"{count(metrics.get('images_per_second'))} images/s"))
    if run.selections:
        line = run.selections[-1]
        shown.append(Card("Core set", percent(line.get("kept_share")), f"{count(line.get('kept'))} images kept"))
    return [Card(name, value, "" if UNKNOWN in detail else detail) for name, value, detail in shown if value != UNKNOWN]


class ClassRow(NamedTuple):
    """One class in words, and its error in percent (None if it is not known) for the bar."""

    name: str
    labels: str
    error: str
    percent: float | None
    images: str
    taken_for: str
    share: str


def class_rows(run: Run) -> list[ClassRow]:
    """The classes of a finished run, the highest error first; without a test set the fewest labels first."""

    def badness(row: dict[str, Any]) -> tuple[float, float]:
        return (-row["error"] if known(row.get("error")) else 1, row["labels"])

    return [
        ClassRow(
            name=str(row["class"]),
            labels=count(row["labels"]),
            error=percent(row.get("error")),
            percent=100 * row["error"] if known(row.get("error")) else None,
            images=count(row.get("test_images")),
            taken_for=f"{row['taken_for']} ({count(row['taken_for_images'])})" if row.get("taken_for") else UNKNOWN,
            share=percent(row.get("pseudo_label_share")),
        )
        for row in sorted(run.latest.get("per_class") or [], key=badness)
    ]


@dataclass
class Part:
    """What a section shows of one run."""

    run: Run
    charts: list[Chart] = field(default_factory=list)
    text: str = ""
    facts: list[str] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    classes: list[ClassRow] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.charts or self.text or self.facts or self.strips or self.classes)


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
    over_time = drawn(*(draw(runs) for draw in curves))
    diagrams = (calibration.softmax_diagram, calibration.calibrated_diagram)
    kept = (training.kept_bars, training.true_class_bars)
    histograms = [
        Part(run, drawn(calibration.confidence_histogram(run), calibration.abstain_curve(run))) for run in runs
    ]
    matrices = [Part(run, drawn(calibration.confusion_matrix(run)), cells=confusion_cells(run)) for run in runs]
    scores = [Part(run, drawn(training.score_histogram(run)), training.coreset_sentence(run)) for run in runs]
    images = [Part(run, strips=gallery(run)) for run in runs]
    audits = [Part(run, facts=audit_facts(run), strips=audit_strips(run)) for run in runs]
    outlooks = [Part(run, drawn(training.learning_curve(run)), more_labels(run)) for run in runs]
    no_evaluation = "No evaluation was recorded yet."
    no_predictions = "No predictions were kept: the run is unfinished, or older than this section."
    no_images = "No images were kept: none was mistaken, the data are not images, or the run is unfinished."
    candidates = [
        *(
            []
            if all(map(without_steps, runs))
            else [Section("curves", "Error and losses", over_time, [], no_evaluation)]
        ),
        Section("classes", "Classes", [], [Part(run, classes=class_rows(run)) for run in runs]),
        Section("labels", "More labels", [], outlooks),
        Section("calibration", "Calibration", drawn(*(draw(runs) for draw in diagrams)), histograms, no_evaluation),
        per_class("pseudo", "Pseudo labels per class", runs, list(training.PER_CLASS)[:2]),
        per_class("thresholds", "Thresholds per class", runs, ["threshold_per_class"]),
        Section("confusion", "Confusion", [], matrices, no_predictions),
        Section("coreset", "Core set", drawn(*(draw(runs) for draw in kept)), scores),
        Section("gallery", "Images", [], images, no_images),
        Section("audit", "Audit", [], audits),
    ]
    return [section for section in candidates if section.absent or not section.is_empty]


def without_steps(run: Run) -> bool:
    """Whether the method solves its problem at once, so that nothing changes over time."""
    return run.latest.get("steps") == 0


def more_labels(run: Run) -> str:
    """What more labels would bring, in a sentence; empty if it was not asked."""
    text = str((run.latest.get("learning_curve") or {}).get("text", ""))
    return text and f"{text[:1].upper()}{text[1:]}."


def audit_facts(run: Run) -> list[str]:
    """What the audit found in numbers, line by line; empty without one."""
    return [str(line)[:1].upper() + str(line)[1:] for line in (run.audit or {}).get("summary", ())]


def per_class(key: str, title: str, runs: Sequence[Run], metrics: Sequence[str]) -> Section:
    """A section on metrics per class, at the last evaluation and over time."""
    parts = [Part(run, drawn(*(training.heatmap_over_time(run, metric) for metric in metrics))) for run in runs]
    return Section(key, title, drawn(*(training.last_bars(runs, metric) for metric in metrics)), parts)


def drawn(*charts: Chart | None) -> list[Chart]:
    """The charts that have data."""
    return [chart for chart in charts if chart is not None]


def theme(text: str, grid: str, card: str, scale: Sequence[str]) -> dict[str, Any]:
    """The layout of a Plotly template in the colors of a palette; the background is that of the page."""
    axis = dict(gridcolor=grid, linecolor=grid, zerolinecolor=grid, tickcolor=grid, title=dict(font=dict(size=12)))
    return dict(
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        xaxis=axis,
        yaxis=axis,
        font=dict(family=FONT, size=12, color=text),
        hoverlabel=dict(bgcolor=card, bordercolor=grid, font=dict(color=text, family=FONT)),
        coloraxis=dict(colorscale=[[i / (len(scale) - 1), color] for i, color in enumerate(scale)]),
        legend=dict(bgcolor=CLEAR),
        modebar=dict(bgcolor=CLEAR, color="#8a93a3", activecolor=text),
    )


@functools.cache
def plotly_library() -> dict[str, str]:
    """Plotly's script, compressed to a third of its size, and the policy that allows page.js to run it."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    compressed = base64.b64encode(gzip.compress(script, 6, mtime=0)).decode()
    return {"compressed": compressed, "policy": policy_hash(script.decode())}


@functools.cache
def environment() -> Environment:
    """The templates under `report/templates`: every value is escaped, an unknown name is an error."""
    loader = PackageLoader("vcc_infuse.report", "templates")
    templates = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.undefined = StrictUndefined
    # `tojson` also escapes <, > and &, so that no value can end the script element that it stands in.
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    templates.filters["policy_hash"] = policy_hash
    return templates


def policy_hash(text: str) -> str:
    """The source expression by which a content security policy allows one inline script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(template_name: str, **values: Any) -> str:
    """The text of a template with its values filled in."""
    return environment().get_template(template_name).render(**values)
