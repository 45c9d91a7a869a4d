"""Run: everything that a report knows about one run, read from its folder; numbers and names as the page shows them."""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from ..errors import UserError
from ..utils.io import Columns, load_npz, read_json, read_jsonl, reading
from ..utils.manifest import check

LOGS = ("metrics.jsonl", "selections.jsonl")
FILES = ("config.yaml", *LOGS, "summary.json", "model.json", "predictions.npz", "gallery.npz", "audit.npz")
Metrics = dict[str, Any]
ANSWERS = ("truth", "predicted", "confidence", "calibrated")
UNKNOWN = "–"


@dataclass
class Run:
    """One run folder. What an older or unfinished run lacks is empty or None."""

    name: str
    number: int = 0
    config: str = ""
    metrics: list[Metrics] = field(default_factory=list)
    selections: list[Metrics] = field(default_factory=list)
    summary: Metrics | None = None
    classes: tuple[str, ...] = ()
    predictions: Columns | None = None
    gallery: Columns | None = None
    audit: Columns | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def latest(self) -> Metrics:
        """The metrics of the summary or, for an unfinished run, of the last evaluation."""
        return self.summary or (self.metrics[-1] if self.metrics else {})

    @property
    def measured_on(self) -> str:
        """The kind of images that the metrics are taken on: test or validation."""
        return "validation" if self.latest.get("evaluated_on") == "validation" else "test"

    def series(self, key: str) -> list[Any]:
        """One metric over the evaluations, None where it is missing or not a number."""
        return [value if known(value := line.get(key)) else None for line in self.metrics]

    def last_selection(self, key: str) -> Metrics | None:
        """The newest core set with this metric; core sets of the warm-up have no scores, for example."""
        return next((line for line in reversed(self.selections) if line.get(key)), None)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in the given order, each once, under distinct names."""
    once = {path.resolve(): path for path in paths}
    distinct = len({path.name for path in once}) == len(once)
    names = [(path, full.name if distinct else str(path)) for full, path in once.items()]
    return [read_run(path, name, number) for number, (path, name) in enumerate(names)]


def read_run(path: Path, name: str, number: int = 0) -> Run:
    """Read one folder."""
    config = path / "config.yaml"
    if not config.is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml; give the folder of a training run")
    check(path, FILES, required=False)
    with reading(path):
        summary = read_json(path / "summary.json")
        metrics, selections = (read_jsonl(path / log) for log in LOGS)
        notes = [text for text in (metrics.complaint(Path(LOGS[0])), selections.complaint(Path(LOGS[1]))) if text]
        for text in notes:  # the page says so, too, but it may be read much later
            warnings.warn(f"{path}: {text}", stacklevel=2)
        error = (summary or {}).get("error")
        probe = (summary or {}).get("error_probe")
        if known(error) and known(probe) and error > probe:
            ends = f"This run ends above its linear probe: error {percent(error, 2)}, probe {percent(probe, 2)}"
            notes.append(f"{ends}; try more labels, more steps, or the algorithm LinearProbe.")
        validated = (summary or {}).get("cross_validated") or {}
        if known(naive := validated.get("naive_error")):
            honest = percent(validated["probe"]["error"])
            grouped = f"{validated['grouped_labels']} labels belong to groups, such as near copies, and stay together"
            notes.append(f"{grouped}: a split that tears them apart would claim {percent(naive)} error of the probe, "
                         f"not {honest}.")  # fmt: skip
        classes = class_names(summary or read_json(path / "model.json"), metrics.values)
        return Run(
            name=name,
            number=number,
            config=config.read_text(encoding="utf-8", errors="replace"),
            metrics=metrics.values,
            selections=selections.values,
            summary=summary,
            classes=classes,
            predictions=read_predictions(path / "predictions.npz", len(classes)),
            gallery=load_npz(path / "gallery.npz"),
            audit=load_npz(path / "audit.npz"),
            warnings=[*notes, *map(str, (summary or {}).get("warnings") or [])],
        )


def read_predictions(path: Path, classes: int) -> Columns | None:
    """The answers on the test set: four columns of the same length, two of them class numbers."""
    if (columns := load_npz(path)) is None:
        return None
    with reading(path):
        shapes = {columns[name].shape for name in ANSWERS}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            raise ValueError(f"{', '.join(ANSWERS)} differ in length")
        for name in ANSWERS[:2]:
            numbers = columns[name]
            if numbers.dtype.kind not in "iu" or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < classes):
                raise ValueError(f"{name} does not hold class numbers below {classes}")
    return columns


def class_names(card: Metrics | None, metrics: list[Metrics]) -> tuple[str, ...]:
    """The class names of a run, made distinct; class numbers if the run has not written any names yet."""
    if card and "classes" in card:
        names = [str(name) for name in card["classes"]]
        alike = len(set(names)) < len(names)
        return tuple(f"{name} ({i})" if alike else name for i, name in enumerate(names))
    return tuple(str(i) for i in range(len(metrics[-1].get("error_per_class") or []) if metrics else 0))


def known(value: Any) -> TypeGuard[float]:
    """Whether a value is a number, neither missing nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def percent(value: Any, digits: int = 1) -> str:
    """A fraction of 1 as percent."""
    return f"{100 * value:.{digits}f} %" if known(value) else UNKNOWN


def decimal(value: Any, digits: int = 3) -> str:
    """A number with a fixed number of digits."""
    return f"{value:.{digits}f}" if known(value) else UNKNOWN


def count(value: Any) -> str:
    """An integer with a thin space between thousands."""
    return f"{round(value):,}".replace(",", "\u202f") if known(value) else UNKNOWN


def elapsed(seconds: Any) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if not known(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def scaled(values: Sequence[Any], factor: float = 100.0) -> list[float | None]:
    """Fractions as percent for a chart; an unknown value leaves a gap."""
    return [factor * value if known(value) else None for value in values]


def label(name: str, limit: int = 24) -> str:
    """A name for a chart; a long one loses its middle, because similar names often differ at their ends.

    Plotly interprets tags and entities in its labels, so that `<b>` must be written as `&lt;b&gt;`.
    """
    half = limit // 2
    short = name if len(name) <= limit else f"{name[:half]}…{name[half + 1 - limit :]}"
    return html.escape(short, quote=False)
