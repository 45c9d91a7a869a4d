"""Runs cells: finished ones are skipped, interrupted ones resumed, and a failed one does not stop the others.

Cells run in this process, on the cores of this machine, or on a Ray or Dask cluster, all through joblib.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm.auto import tqdm

from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.training.interrupt import Interrupted

from .banks import bank_key, open_bank
from .cell import Cell
from .train import train

Result = TypeVar("Result")
BACKENDS = ("loky", "ray", "dask")
CHECKOUT = Path(__file__).parents[1]
"""The folder that the packages `paper` and `benchmarks` are imported from."""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `error` is one line, or None."""

    cell: Cell
    error: str | None


def run_grid(
    cells: Sequence[Cell], folder: Path, *, jobs: int = 1, backend: str = "loky", data_root: str | None = None
) -> list[Outcome]:
    """Run the cells that are not finished.

    Cells on the same bank run one after the other, so that a process opens the bank once for all of them.

    Args:
        cells: The runs; equal ones are run once.
        folder: Where their run folders are.
        jobs: How many run at the same time; they share the cores.
        backend: Where they run: `loky` (this machine), `ray` or `dask`.
        data_root: Folder with the datasets.

    Returns:
        The failures.
    """
    todo = unfinished(dict.fromkeys(cells), folder)
    groups: dict[str | None, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(bank_key(cell, data_root), []).append(cell)
    failures: list[Outcome] = []
    with progress(todo, folder):
        for key, group in groups.items():
            if key is not None:
                torch.set_num_threads(threads_per_job(1))
                open_bank(key)  # embeds what is missing now, before several processes would do so at once
            failures += run_group(group, folder, jobs, backend, data_root)
    return failures


def run_group(todo: list[Cell], folder: Path, jobs: int, backend: str, data_root: str | None) -> list[Outcome]:
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


def run_jobs(
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], jobs: int, backend: str
) -> Iterator[Result]:
    """The results of `function(*arguments[i])`, in the order in which they finish."""
    if jobs == 1 and backend == "loky":
        for values in arguments:
            yield function(*values)
        return
    connect(backend, jobs)
    with parallel_config(backend=backend, n_jobs=jobs):
        # Ray's backend supports lists only: there, all results arrive at the end.
        form = "list" if backend == "ray" else "generator_unordered"
        tasks = (delayed(function)(*values) for values in arguments)
        yield from Parallel(n_jobs=jobs, return_as=form, batch_size=1)(tasks)


def threads_per_job(jobs: int) -> int:
    """An equal part of the cores of this machine, or of as many as OMP_NUM_THREADS allows."""
    allowed = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = int(allowed) if allowed.isdecimal() else os.cpu_count() or 1
    return max(1, cores // jobs)


def connect(backend: str, jobs: int) -> None:
    """Connect to the cluster of a backend, whose package is optional; workers find this checkout by PYTHONPATH."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(CHECKOUT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *filter(None, paths)])
    try:
        if backend == "ray":
            connect_ray(jobs)
        elif backend == "dask":
            connect_dask(jobs)
    except ImportError as error:
        remedy = f"install it with: pip install 'vcc-infuse[{backend}]'"
        raise OptionError("backend", backend, f"needs a package that is missing ({error.name})", remedy) from error


def connect_ray(jobs: int) -> None:
    """The cluster of RAY_ADDRESS, or a local one with `jobs` workers."""
    import ray
    from ray.util.joblib import register_ray

    if not ray.is_initialized():
        cores = None if os.environ.get("RAY_ADDRESS") else jobs
        variables = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
        ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False, runtime_env=variables)
    register_ray()  # type: ignore[no-untyped-call, unused-ignore]


def connect_dask(jobs: int) -> None:
    """The scheduler of DASK_SCHEDULER_ADDRESS, or `jobs` local processes."""
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    Client(address) if address else Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
