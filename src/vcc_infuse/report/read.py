"""Run: all that a report may know of one run, read from its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..utils.io import Columns, load_npz

Figures = dict[str, Any]


@dataclass
class Run:
    """One run folder. What an older or unfinished run lacks is empty or None."""

    name: str
    number: int = 0
    config: str = ""
    metrics: list[Figures] = field(default_factory=list)
    selections: list[Figures] = field(default_factory=list)
    summary: Figures | None = None
    classes: tuple[str, ...] = ()
    predictions: Columns | None = None
    gallery: Columns | None = None

    @property
    def figures(self) -> Figures:
        """The final figures or, of an unfinished run, the latest."""
        return self.summary or (self.metrics[-1] if self.metrics else {})

    def series(self, key: str) -> list[Any]:
        """One figure over the evaluations, None where it is missing."""
        return [line.get(key) for line in self.metrics]

    def last_selection(self, key: str) -> Figures | None:
        """The newest core set that has this figure: one drawn for the warm-up has no scores."""
        return next((line for line in reversed(self.selections) if line.get(key)), None)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs in the order given, each once, under names that differ."""
    once = list({path.resolve(): path for path in paths}.values())
    short = [path.resolve().name for path in once]
    names = short if len(set(short)) == len(once) else [str(path) for path in once]
    return [read_run(path, name, number) for number, (path, name) in enumerate(zip(once, names, strict=True))]


def read_run(path: Path, name: str, number: int = 0) -> Run:
    """Read one folder."""
    config = path / "config.yaml"
    if not config.is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml; give the --out of a training run")
    summary = read_json(path / "summary.json")
    metrics = read_figures(path / "metrics.jsonl")
    return Run(
        name=name,
        number=number,
        config=config.read_text(encoding="utf-8", errors="replace"),
        metrics=metrics,
        selections=read_figures(path / "selections.jsonl"),
        summary=summary,
        classes=class_names(summary or read_json(path / "model.json"), metrics),
        predictions=load_npz(path / "predictions.npz"),
        gallery=load_npz(path / "gallery.npz"),
    )


def class_names(card: Figures | None, metrics: list[Figures]) -> tuple[str, ...]:
    """The run's class names, which differ; numbers as long as it has not written any."""
    if card and "classes" in card:
        names = [str(name) for name in card["classes"]]
        alike = len(set(names)) < len(names)
        return tuple(f"{name} ({i})" if alike else name for i, name in enumerate(names))
    return tuple(str(i) for i in range(len(metrics[-1].get("error_per_class") or []) if metrics else 0))


def read_json(path: Path) -> Figures | None:
    """The figures of a JSON file, None where there is no such file."""
    return parsed(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None


def read_figures(path: Path) -> list[Figures]:
    """A line an entry. Only the last may be torn, by a crash while it was written: it is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    whole = [parsed(line, f"{path}, line {n},") for n, line in enumerate(lines[:-1], 1) if line.strip()]
    try:
        return [*whole, *([parsed(lines[-1], str(path))] if lines[-1].strip() else [])]
    except UserError:
        return whole


def parsed(text: str, where: str) -> Figures:
    """A JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise UserError(f"{where} is damaged: {fault}; restore it from a copy or remove it") from fault
    if not isinstance(value, dict):
        raise UserError(f"{where} is damaged: it holds no JSON object; restore it from a copy or remove it")
    return value
