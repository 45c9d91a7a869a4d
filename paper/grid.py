"""Runs cells: finished ones are skipped, interrupted ones resumed, and a failed one does not stop the others."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm.auto import tqdm

from vcc_infuse.errors import UserError
from vcc_infuse.training.signals import Interrupted
from vcc_infuse.utils.io import write_json

from .backends import run_jobs, threads_per_job
from .banks import bank_key, open_bank, train_on_bank
from .cell import Cell, bank_config, build_trainer, config_yaml, fit, load_data
from .datasets import locate


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `error` is one line, or None."""

    cell: Cell
    error: str | None


def run_grid(
    cells: Sequence[Cell], folder: Path, jobs: int = 1, backend: str = "loky", data_root: str | None = None
) -> list[Outcome]:
    """Run the cells that are not finished, with data from `data_root`; returns the failures.

    Cells on the same bank run one after the other, so that a process opens it once for all of them.
    """
    todo = unfinished(dict.fromkeys(cells), folder)
    groups: dict[str | None, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(bank_key(located(cell, data_root)), []).append(cell)
    failures: list[Outcome] = []
    with progress(todo, folder):
        for key, group in groups.items():
            if key is not None:
                torch.set_num_threads(threads_per_job(1))
                open_bank(key)  # embeds what is missing, before several processes would
            failures += run_group(group, folder, jobs, backend, data_root)
    return failures


def run_group(
    todo: list[Cell], folder: Path, jobs: int, backend: str = "loky", data_root: str | None = None
) -> list[Outcome]:
    """Run unfinished cells; returns the failures."""
    failures: list[Outcome] = []
    while todo:
        ended: list[Outcome] = []
        try:
            arguments = [(cell, folder, threads_per_job(jobs), data_root) for cell in todo]
            for outcome in run_jobs(run_cell, arguments, jobs, backend):
                ended.append(reported(outcome))
            todo = []
        except TerminatedWorkerError:
            # A worker was killed, most often because memory ran out. Cells that were running are run again alone.
            failed = {outcome.cell for outcome in ended}
            todo = unfinished([cell for cell in todo if cell not in failed], folder)
            running = [cell for cell in todo if log_path(cell, folder).is_file()]
            ended += [reported(run_isolated(cell, folder, data_root)) for cell in running]
            todo = [cell for cell in todo if cell not in running]
        failures += [outcome for outcome in ended if outcome.error]
    return failures


def located(cell: Cell, data_root: str | None) -> dict[str, Any]:
    """The options of a cell, with those that find its data."""
    return {**cell.options, **locate(str(cell.options["data"]), data_root)}


def unfinished(cells: Iterable[Cell], folder: Path) -> list[Cell]:
    """The cells without a summary."""
    return [cell for cell in cells if cell.summary(folder) is None]


def run_isolated(cell: Cell, folder: Path, data_root: str | None) -> Outcome:
    """Run one cell in a worker of its own: if the worker is killed, no other cell is lost."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
            return worker.submit(run_cell, cell, folder, threads_per_job(1), data_root).result()
    except BrokenProcessPool:
        log = log_path(cell, folder)
        return Outcome(cell, f"its worker was killed twice, the second time running alone; check memory, see {log}")


def run_cell(cell: Cell, folder: Path, threads: int, data_root: str | None = None) -> Outcome:
    """Train one cell in this process; what it prints goes to a log beside its folder."""
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    log = log_path(cell, folder)
    with open(log, "a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        try:
            train(cell, folder, data_root)
        except Interrupted:
            raise
        except UserError as error:
            return Outcome(cell, str(error))
        except Exception as error:  # one cell must not stop the grid; the log has the traceback
            traceback.print_exc(file=stream)
            return Outcome(cell, f"{type(error).__name__}: {error}; see {log}")
    return Outcome(cell, None)


def train(cell: Cell, folder: Path, data_root: str | None) -> None:
    """Start the run of a cell, or resume it. On a bank it takes seconds and leaves its summary alone."""
    options = located(cell, data_root)
    if bank_config(options):
        write_summary(cell, folder, train_on_bank(options))
        return
    trainer = build_trainer(options, out=str(cell.folder(folder)))
    data, config = load_data(options, trainer), config_yaml(options, trainer)
    summary = fit(trainer, data, config=config, resume=cell.started(folder))
    if "parts" in summary:
        write_summary(cell, folder, summary)


def write_summary(cell: Cell, folder: Path, summary: dict[str, Any]) -> None:
    """Mark a cell as finished."""
    cell.folder(folder).mkdir(exist_ok=True)
    write_json(cell.folder(folder) / "summary.json", summary)


def log_path(cell: Cell, folder: Path) -> Path:
    """The log of a cell; it exists once the cell was started."""
    return folder / f"{cell.name}.log"


def reported(outcome: Outcome) -> Outcome:
    """Print one line for a failure."""
    if outcome.error:
        tqdm.write(f"failed: {outcome.cell.name}: {outcome.error}", file=sys.stderr)
    return outcome


@contextlib.contextmanager
def progress(cells: Sequence[Cell], folder: Path, every: float = 1.0) -> Iterator[None]:
    """Show a bar of finished cells on a terminal. It watches the folders, so it works with any backend."""
    stop = threading.Event()
    shown = bool(cells) and sys.stderr.isatty()

    def watch() -> None:
        with tqdm(total=len(cells), unit="cell", dynamic_ncols=True) as bar:
            while not stop.wait(every):
                bar.n = sum((cell.folder(folder) / "summary.json").is_file() for cell in cells)
                bar.refresh()

    thread = threading.Thread(target=watch, daemon=True)
    if shown:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if shown:
            thread.join()
