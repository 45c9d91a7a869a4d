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

import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm.auto import tqdm

from ..errors import UserError
from ..training.signals import Interrupted
from .backends import run_jobs, threads_per_job
from .cell import Cell, build_trainer, config_yaml, load_data
from .datasets import locate


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `error` is one line, or None."""

    cell: Cell
    error: str | None


def run_grid(
    cells: Sequence[Cell], folder: Path, jobs: int = 1, backend: str = "loky", data_root: str | None = None
) -> list[Outcome]:
    """Run the cells that are not finished, with data from `data_root`; returns the failures."""
    todo = unfinished(dict.fromkeys(cells), folder)
    failures: list[Outcome] = []
    with progress(todo, folder):
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
    """Start the run of a cell, or resume it."""
    options = {**cell.options, **locate(str(cell.options["data"]), data_root)}
    trainer = build_trainer(options, out=str(cell.folder(folder)))
    data = load_data(options, trainer)
    trainer.fit(data, config=config_yaml(options, trainer), resume=cell.started(folder))
    trainer.close()


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
