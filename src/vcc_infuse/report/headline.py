"""The headline: cards with the numbers of one run, or a table of several with the best marked."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .format import UNKNOWN, count, decimal, duration, known, per_cent
from .read import Run


class Column(NamedTuple):
    """A figure of the table: its key, name, form, and which end is best (0: neither)."""

    key: str
    name: str
    form: Callable[[Any], str]
    best: int = -1


COLUMNS = (
    Column("error", "error", lambda v: per_cent(v, 2)),
    Column("error_best", "best error", lambda v: per_cent(v, 2)),
    Column("ece", "ECE softmax", decimal),
    Column("ece_calibrated", "ECE calibrated", decimal),
    Column("nll", "NLL", decimal),
    Column("pseudo_label_precision", "precision", per_cent, 1),
    Column("pseudo_label_coverage", "coverage", per_cent, 0),
    Column("steps", "steps", count, 0),
    Column("seconds_train", "training", duration),
    Column("coreset_size", "core set", count, 0),
)


def headline(runs: Sequence[Run]) -> str:
    """Cards, or a table."""
    return cards(runs[0]) if len(runs) == 1 else table(runs)


def cards(run: Run) -> str:
    """The numbers a reader asks for first."""
    figures = run.figures
    before, after = figures.get("ece"), figures.get("ece_calibrated")
    same = before == after or not known(after)
    found = [
        ("Test error", per_cent(figures.get("error"), 2), f"best {per_cent(figures.get('error_best'), 2)}"),
        ("ECE" if same else "ECE before → after", decimal(before) if same else f"{short(before)} → {short(after)}",
         "softmax confidence" if same else "softmax → calibrated"),
        ("Pseudo labels right", per_cent(figures.get("pseudo_label_precision")),
         f"coverage {per_cent(figures.get('pseudo_label_coverage'))}"),
        ("Steps", count(figures.get("steps", figures.get("step"))), f"{count(figures.get('labels'))} labels"),
        ("Training time", duration(figures.get("seconds_train", figures.get("seconds"))),
         f"{count(figures.get('images_per_second'))} images/s"),
    ]  # fmt: skip
    if run.selections:
        line = run.selections[-1]
        found.append(("Core set", per_cent(line.get("kept_share")), f"{count(line.get('kept'))} images kept"))
    return f'<dl class="cards">{"".join(card(*one) for one in found if one[1] != UNKNOWN)}</dl>'


def card(name: str, value: str, more: str) -> str:
    """One number."""
    small = "" if UNKNOWN in more else f"<dd><small>{html.escape(more)}</small></dd>"
    return f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>{small}</div>"


def short(value: Any) -> str:
    """A rate in the little room of a card: .021."""
    return decimal(value).removeprefix("0")


def table(runs: Sequence[Run]) -> str:
    """A row a run."""
    shown = [column for column in COLUMNS if any(known(run.figures.get(column.key)) for run in runs)]
    head = "".join(f'<th scope="col">{column.name}</th>' for column in shown)
    rows = "".join(row(run, shown, runs) for run in runs)
    caption = "<caption>The best figure of a column is marked ★.</caption>"
    head = f'<thead><tr><th scope="col">run</th>{head}</tr></thead>'
    return f'<table class="runs">{caption}{head}<tbody>{rows}</tbody></table>'


def row(run: Run, columns: Sequence[Column], runs: Sequence[Run]) -> str:
    """One run of the table."""
    cells = "".join(
        f'<td data-label="{column.name}"{" class=best" if is_best(run, column, runs) else ""}>'
        f"{column.form(run.figures.get(column.key))}{' ★' if is_best(run, column, runs) else ''}</td>"
        for column in columns
    )
    name = f'<i class="dot c{run.number % 10}"></i>{html.escape(run.name)}'
    return f'<tr data-run="{run.number}"><th scope="row">{name}</th>{cells}</tr>'


def is_best(run: Run, column: Column, runs: Sequence[Run]) -> bool:
    """Whether no other run has a better figure, and one a worse."""
    values = [column.best * v for r in runs if known(v := r.figures.get(column.key))]
    mine = run.figures.get(column.key)
    return bool(column.best and known(mine) and column.best * mine == max(values) > min(values))
