"""Runs cells on joblib: finished ones are skipped, half-finished ones resumed, a failed one does not stop the rest."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm.auto import tqdm

from ..errors import UserError
from ..training.signals import Interrupted
from .cell import Cell
from .datasets import locate

BACKENDS = ("loky", "ray", "dask")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `fault` is one line, or None."""

    cell: Cell
    fault: str | None


def run_grid(
    cells: Sequence[Cell], folder: Path, jobs: int = 1, backend: str = "loky", root: str | None = None
) -> list[Outcome]:
    """Run what is not finished yet, with data from `root`; returns the failures."""
    todo = [cell for cell in dict.fromkeys(cells) if cell.summary(folder) is None]
    failures: list[Outcome] = []
    with progress(todo, folder):
        while todo:
            ended: set[Cell] = set()
            try:
                for outcome in outcomes(todo, folder, jobs, backend, root):
                    ended.add(outcome.cell)
                    failures += [outcome] if outcome.fault else []
                    tell(outcome)
                break
            except TerminatedWorkerError:
                # A worker was killed, most often for want of memory. Whoever was at work is tried again alone.
                todo = [cell for cell in todo if cell not in ended and cell.summary(folder) is None]
                for cell in [cell for cell in todo if log_of(cell, folder).is_file()]:
                    todo.remove(cell)
                    outcome = alone(cell, folder, root)
                    failures += [outcome] if outcome.fault else []
                    tell(outcome)
    return failures


def outcomes(cells: Sequence[Cell], folder: Path, jobs: int, backend: str, root: str | None) -> Iterator[Outcome]:
    """Outcomes as they come."""
    threads = threads_each(jobs)
    tasks = (delayed(run_cell)(cell, folder, threads, root) for cell in cells)
    if jobs == 1 and backend == "loky":
        yield from (run_cell(cell, folder, threads, root) for cell in cells)
        return
    with configured(backend, jobs):
        # Ray's backend only knows lists: there, failures are told at the end.
        form = "list" if backend == "ray" else "generator_unordered"
        yield from Parallel(n_jobs=jobs, return_as=form, batch_size=1)(tasks)


def alone(cell: Cell, folder: Path, root: str | None) -> Outcome:
    """Run one cell in a worker of its own, whose death harms nobody."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
            return worker.submit(run_cell, cell, folder, threads_each(1), root).result()
    except BrokenProcessPool:
        return Outcome(cell, f"its worker was killed, even alone; is memory short? see {log_of(cell, folder)}")


def threads_each(jobs: int) -> int:
    """The cores, or as many as OMP_NUM_THREADS allows, shared among the jobs of this machine."""
    allowed = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = int(allowed) if allowed.isdecimal() else os.cpu_count() or 1
    return max(1, cores // jobs)


@contextlib.contextmanager
def configured(backend: str, jobs: int) -> Iterator[None]:
    """Joblib's backend; those of a cluster are optional packages."""
    if backend == "ray":
        connect_ray(jobs)
    elif backend == "dask":
        connect_dask(jobs)
    with parallel_config(backend=backend, n_jobs=jobs):
        yield


def connect_ray(jobs: int) -> None:
    """The cluster of RAY_ADDRESS, or one on this machine."""
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as fault:
        raise UserError("--backend ray: Ray is not installed; pip install 'vcc-infuse[ray]'") from fault
    if not ray.is_initialized():
        cores = None if os.environ.get("RAY_ADDRESS") else jobs
        ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False)
    register_ray()


def connect_dask(jobs: int) -> None:
    """The scheduler of DASK_SCHEDULER_ADDRESS, or processes on this machine."""
    try:
        from distributed import Client
    except ImportError as fault:
        raise UserError("--backend dask: Dask is not installed; pip install 'vcc-infuse[dask]'") from fault
    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    Client(address) if address else Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None)


def run_cell(cell: Cell, folder: Path, threads: int, root: str | None = None) -> Outcome:
    """Train one cell in this process; what it prints goes to a log in its folder."""
    import torch

    from ..cli.train import run

    torch.set_num_threads(threads)
    home = cell.folder(folder)
    located = Cell({**cell.options, **locate(str(cell.options["data"]), root)})
    arguments = (
        ["--resume", str(home)]
        if begun(cell, folder)
        else [*located.arguments(), "--report", "false", "--out", str(home)]
    )
    home.parent.mkdir(parents=True, exist_ok=True)
    log = log_of(cell, folder)
    with open(log, "a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        try:
            status = run(arguments)
        except UserError as mistake:
            return Outcome(cell, str(mistake))
        except Interrupted:
            raise
        except Exception as fault:  # any fault of one cell is told, with its traceback in the log
            traceback.print_exc(file=stream)
            return Outcome(cell, f"{type(fault).__name__}: {fault}; see {log}")
    return Outcome(cell, f"exit status {status}; see {log}" if status else None)


def begun(cell: Cell, folder: Path) -> bool:
    """Whether there is a run to resume."""
    return (cell.folder(folder) / "config.yaml").is_file()


def log_of(cell: Cell, folder: Path) -> Path:
    """What a cell printed; there as soon as it was started."""
    return folder / f"{cell.name}.log"


def tell(outcome: Outcome) -> None:
    """One line a failure."""
    if outcome.fault:
        tqdm.write(f"failed: {outcome.cell.name}: {outcome.fault}", file=sys.stderr)


@contextlib.contextmanager
def progress(cells: Sequence[Cell], folder: Path, every: float = 1.0) -> Iterator[None]:
    """A bar over finished cells with rate and remaining time. It looks at the folders, so it works on any backend."""
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
