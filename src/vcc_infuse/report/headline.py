"""The headline: cards with the metrics of one run, or a table of several runs with the best values marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .format import UNKNOWN, count, decimal, elapsed, known, percent
from .read import Run


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
    images = f"at the end, on {count(metrics.get('evaluated_images'))} images"
    seconds = metrics.get("seconds_train", metrics.get("seconds"))
    shown = [
        Card("Linear probe", percent(metrics.get("error_probe"), 2), "on the same features"),
        Card(f"{run.measured_on.capitalize()} error", percent(metrics.get("error"), 2), images),
        ece_card(metrics.get("ece"), metrics.get("ece_calibrated")),
        pseudo_card(metrics.get("pseudo_label_precision"), metrics.get("pseudo_label_coverage")),
        Card("Steps", count(metrics.get("steps", metrics.get("step"))), f"{count(metrics.get('labels'))} labels"),
        Card("Training time", elapsed(seconds), f"{count(metrics.get('images_per_second'))} images/s"),
    ]
    if run.selections:
        line = run.selections[-1]
        shown.append(Card("Core set", percent(line.get("kept_share")), f"{count(line.get('kept'))} images kept"))
    return [
        card._replace(detail="" if UNKNOWN in card.detail else card.detail) for card in shown if card.value != UNKNOWN
    ]


def pseudo_card(precision: Any, coverage: Any) -> Card:
    """How many pseudo labels are right, if hidden labels tell, and how many are used."""
    if known(precision):
        return Card("Pseudo labels right", percent(precision), f"coverage {percent(coverage)}")
    return Card("Pseudo labels used", percent(coverage), "no hidden labels to check them")


def ece_card(before: Any, after: Any) -> Card:
    """The calibration error, with the calibrated one where it differs."""
    if before == after or not known(after):
        return Card("ECE", decimal(before), "softmax confidence")
    short = [decimal(value).removeprefix("0") for value in (before, after)]  # a card has little room
    return Card("ECE before → after", " → ".join(short), "softmax → calibrated")
