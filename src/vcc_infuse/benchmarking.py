"""TODO."""

from __future__ import annotations

import statistics
import time

import numpy as np

from .data.ssl_data import SSLData
from .selectors.pool import Pool
from .training.trainer import Trainer


def scan_seconds(trainer: Trainer, rounds: int = 3) -> float:
    """Seconds a pool image of one choice, in the median of a few."""
    refresher, parts = trainer.state_.coreset_scheduler, trainer.state_
    assert refresher.selector is not None
    seconds = []
    for number in range(rounds):
        began = time.perf_counter()
        pool = Pool.of(
            trainer.batches_, parts.model, parts.ema.module, parts.algorithm, parts.calibrator, parts.task, number
        )
        refresher.selector.select(pool, refresher.budget)
        seconds.append((time.perf_counter() - began) / pool.size)
    return statistics.median(seconds)


def random_images(size: int, classes: int, count: int) -> SSLData:
    """Noise in the shape of a dataset."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    y = np.where(np.arange(count) < 8 * classes, np.arange(count) % classes, -1)
    return SSLData.from_arrays(x, y, x[:classes], np.arange(classes))


def alternate(trainers: dict[str, Trainer], data: SSLData, rounds: int) -> dict[str, list[float]]:
    """Seconds of each trainer's steps, taken in turns, so that a busy machine slows them alike.

    Steps are numbered from the middle of the run, where every warm-up is over; the first two of each are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for trainer in trainers.values():
        trainer._build(data)
    for number in range(rounds + 2):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            trainer._step(trainer.steps // 2 + number)
            times[name].append(time.perf_counter() - began)
    return {name: values[2:] for name, values in times.items()}
