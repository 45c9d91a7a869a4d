"""Where jobs run: in this process, on the cores of this machine, or on a Ray or Dask cluster, all through joblib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed, parallel_config

from vcc_infuse.errors import OptionError

Result = TypeVar("Result")
BACKENDS = ("loky", "ray", "dask")


def run_jobs(
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], jobs: int, backend: str
) -> Iterator[Result]:
    """The results of `function(*each)`, in the order in which they finish."""
    if jobs == 1 and backend == "loky":
        yield from (function(*each) for each in arguments)
        return
    connect(backend, jobs)
    with parallel_config(backend=backend, n_jobs=jobs):
        # Ray's backend supports lists only: there, all results arrive at the end.
        form = "list" if backend == "ray" else "generator_unordered"
        tasks = (delayed(function)(*each) for each in arguments)
        yield from Parallel(n_jobs=jobs, return_as=form, batch_size=1)(tasks)


def threads_per_job(jobs: int) -> int:
    """An equal part of the cores of this machine, or of as many as OMP_NUM_THREADS allows."""
    allowed = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = int(allowed) if allowed.isdecimal() else os.cpu_count() or 1
    return max(1, cores // jobs)


def connect(backend: str, jobs: int) -> None:
    """Connect to the cluster of a backend; its package is optional."""
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
        ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False)
    register_ray()  # type: ignore[no-untyped-call, unused-ignore]


def connect_dask(jobs: int) -> None:
    """The scheduler of DASK_SCHEDULER_ADDRESS, or `jobs` local processes."""
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    Client(address) if address else Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
