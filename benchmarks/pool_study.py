"""Studies of messy pools that are measured seed by seed, so that a killed one continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .page import Table
from .pool_features import Features

Case = tuple[str | float, ...]
Run = dict[str, Any]


class Study(NamedTuple):
    """What is measured on each set.

    `cases` names what a set is measured with, `values` measures one case with one seed, and `tables` shows the runs.
    """

    cases: Callable[[Features], Iterable[Case]]
    values: Callable[[Features, Case, int], Sequence[float]]
    tables: Callable[[Sequence[Run]], list[Table]]


def measure(study: Study, data: Features, seeds: int, log: Path) -> None:
    """Append a line per case and seed to `log`, unless it is there."""
    done = {(run["set"], tuple(run["case"]), run["seed"]) for run in read_runs(log)}
    for seed in range(seeds):
        for case in study.cases(data):
            if (data.name, case, seed) in done:
                continue
            values = [round(float(value), 5) for value in study.values(data, case, seed)]
            shown = [None if np.isnan(value) else value for value in values]
            with log.open("a") as file:
                file.write(json.dumps({"set": data.name, "case": case, "seed": seed, "values": shown}) + "\n")


def read_runs(log: Path) -> list[Run]:
    """The lines of a log, none if there is no file."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


def grouped(runs: Sequence[Run]) -> dict[tuple[str, Case], np.ndarray]:
    """The values of each set and case, of shape (seeds, values), in the order of seeds."""
    found: dict[tuple[str, Case], dict[int, list[float]]] = {}
    for run in runs:
        values = [np.nan if value is None else value for value in run["values"]]
        found.setdefault((run["set"], tuple(run["case"])), {})[run["seed"]] = values
    return {key: np.array([values[seed] for seed in sorted(values)]) for key, values in found.items()}


def table_of(title: str, columns: Sequence[str], digits: int = 3) -> Callable[[Sequence[Run]], list[Table]]:
    """One table of all sets: mean ± standard deviation over seeds, whose number comes last."""

    def tables(runs: Sequence[Run]) -> list[Table]:
        rows = [[name, *case, *spread(values, digits), len(values)] for (name, case), values in grouped(runs).items()]
        return [Table(title, ("set", *columns, "seeds"), rows)]

    return tables


def spread(values: np.ndarray, digits: int) -> list[str]:
    """Mean ± standard deviation of each column; a dash where there is nothing, the mean alone of one seed."""
    texts = []
    for column in values.T:
        given = column[~np.isnan(column)]
        noise = f" ± {given.std(ddof=1):.{digits}f}" if len(given) > 1 else ""
        texts.append(f"{given.mean():.{digits}f}{noise}" if len(given) else "–")
    return texts


def commands(prog: str, part: str, runs: Sequence[Run]) -> list[str]:
    """What repeats the runs, one command for the sets that have as many seeds."""
    seeds = {run["set"]: 0 for run in runs}
    for run in runs:
        seeds[run["set"]] = max(seeds[run["set"]], run["seed"] + 1)
    return [
        f"OMP_NUM_THREADS=1 {prog} {part} --features features "
        f"--sets {' '.join(name for name in seeds if seeds[name] == count)} --seeds {count}"
        for count in dict.fromkeys(seeds.values())
    ]
