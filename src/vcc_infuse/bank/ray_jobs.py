"""Chunks of a bank embedded on a Ray cluster: raw images go out, features come back, and only the driver writes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..errors import OptionError
from .bank import Bank, Job
from .encoder import FrozenNetwork

WAITING = 2  # tasks per processor that are on their way at a time, so that memory stays bounded


def over_ray(bank: Bank, workers: int | None = None) -> Callable[..., Iterator[tuple[Job, np.ndarray]]]:
    """The `run` of `Bank.build` on the cluster of RAY_ADDRESS, or on `workers` processes of this machine."""
    ray = _connect(workers)
    gpus = 1 if bank.device.type == "cuda" else 0
    kind = "GPU" if gpus else "CPU"
    network = ray.put(FrozenNetwork(copy.deepcopy(bank.encoder).cpu(), bank.views, bank.network.options))
    remote = ray.remote(num_cpus=1, num_gpus=gpus)(_embed)

    def run(_: object, jobs: Iterable[Job]) -> Iterator[tuple[Job, np.ndarray]]:
        slots = max(1, int(ray.cluster_resources().get(kind, 1)))
        pending: dict[Any, Job] = {}
        for job in chain(jobs, [None]):
            if job is not None:
                pending[remote.remote(network, torch.device(bank.device.type), *bank.task(job))] = job
            while pending and (job is None or len(pending) >= WAITING * slots):
                (ready, *_), _ = ray.wait(list(pending), num_returns=1)
                yield pending.pop(ready), ray.get(ready)

    return run


def _embed(network: FrozenNetwork, device: torch.device, *task: Any) -> np.ndarray:
    moved = FrozenNetwork(network.encoder.to(device), network.views, network.options)
    return moved.embed(device, *task)


def _connect(workers: int | None) -> Any:
    try:
        import ray
    except ImportError as error:
        remedy = "install it with: pip install 'vcc-infuse[ray]'"
        raise OptionError("backend", "ray", "needs a package that is missing (ray)", remedy) from error
    if not ray.is_initialized():
        cores = None if os.environ.get("RAY_ADDRESS") else workers
        ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False)
    return ray
