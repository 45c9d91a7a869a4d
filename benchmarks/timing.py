"""Timing training steps and selections in a way that a busy machine does not distort."""

from __future__ import annotations

import statistics
import time

from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.selectors.pool import Pool
from vcc_infuse.training.trainer import Trainer

WARMUP_ROUNDS = 2


def alternate(trainers: dict[str, Trainer], data: SSLData, rounds: int) -> dict[str, list[float]]:
    """Seconds of each trainer's steps. Trainers take turns, so that other load on the machine slows them alike.

    Steps are numbered from the middle of the run, after every warm-up of a method. The first rounds are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for trainer in trainers.values():
        trainer.prepare(data)
    for number in range(rounds + WARMUP_ROUNDS):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            trainer.train_step(trainer.steps // 2 + number)
            seconds[name].append(time.perf_counter() - began)
    return {name: values[WARMUP_ROUNDS:] for name, values in seconds.items()}


def scan_seconds(trainer: Trainer, rounds: int = 3) -> float:
    """Median seconds per pool image of one selection; `trainer` is prepared and has a selector."""
    state, scheduler = trainer.state_, trainer.state_.coreset_scheduler
    assert scheduler.selector is not None
    seconds = []
    for number in range(rounds):
        began = time.perf_counter()
        pool = Pool(
            batches=trainer.batches_,
            model=state.model,
            ema=state.ema.module,
            algorithm=state.algorithm,
            calibrator=state.calibrator,
            task=state.task,
            number=number,
        )
        scheduler.selector.select(pool, scheduler.budget)
        seconds.append((time.perf_counter() - began) / pool.size)
    return statistics.median(seconds)
