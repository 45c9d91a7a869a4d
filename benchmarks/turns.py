"""Variants that take turns, each in a process of its own, and the comparison of their times."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import torch

from vcc_infuse.errors import UserError
from vcc_infuse.training.summary import peak_memory

Work = Callable[[int], Any]
Maker = Callable[[], Work]


@dataclass
class Comparison:
    """Seconds of every turn of every variant. `per` is what one turn does, `count` how many of it.

    Times are CPU seconds of the one thread that works: on a busy machine the wall clock measures the others. `wall` has
    it too. `memory` is the peak in megabytes, of which some 600 are imports and data.
    """

    title: str
    base: str
    seconds: dict[str, list[float]]
    wall: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    per: str = "step"
    count: int = 1

    def times(self, name: str) -> list[float]:
        """Lower quartile, median and upper quartile of the milliseconds."""
        return quartiles(1e3 * np.array(self.seconds[name]) / self.count)

    def ratios(self, name: str, base: str | None = None) -> list[float]:
        """Quartiles of the time over that of the base in the same round."""
        return quartiles(np.array(self.seconds[name]) / np.array(self.seconds[base or self.base]))


def quartiles(values: np.ndarray) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


def take_turns(
    title: str, makers: Mapping[str, Maker], rounds: int, warmup: int = 1, per: str = "step", count: int = 1
) -> Comparison:
    """Time all variants in turns; the first is the base. What a turn returns, if it is a number, counts as its time."""
    players: dict[str, Player] = {}
    turns: dict[str, list[Turn]] = {name: [] for name in makers}
    try:
        for name, maker in makers.items():
            players[name] = Player(maker)
        for number in range(warmup + rounds):
            for name, player in players.items():
                turns[name].append(player.turn(number))
    finally:
        for player in players.values():
            player.close()
    kept = {name: taken[warmup:] for name, taken in turns.items()}
    return Comparison(
        title,
        next(iter(makers)),
        {name: [turn.cpu for turn in taken] for name, taken in kept.items()},
        {name: [turn.wall for turn in taken] for name, taken in kept.items()},
        {name: taken[-1].memory or 0.0 for name, taken in turns.items()},
        per,
        count,
    )  # fmt: skip


@dataclass
class Turn:
    """What one turn took: CPU and wall seconds, and the peak memory until then."""

    cpu: float
    wall: float
    memory: float | None


class Player:
    """A process that holds one variant and works when told to. It is a fork: nothing is imported again."""

    def __init__(self, maker: Maker) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError("benchmarks need a system that can fork processes, such as Linux or macOS")
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=play, args=(other, maker), daemon=True)
        self.process.start()
        other.close()
        self.receive()

    def turn(self, number: int) -> Turn:
        """One turn."""
        self.pipe.send(number)
        return cast(Turn, self.receive())

    def receive(self) -> Turn | None:
        """A turn, or None once the variant is made; a text is the traceback of what went wrong."""
        answer = self.pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return cast(Turn | None, answer)

    def close(self) -> None:
        """End the process; it holds nothing that would be lost."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def play(pipe: Connection, maker: Maker) -> None:
    """The other end: make the variant, then answer each number with a turn."""
    torch.set_num_threads(1)
    try:
        work = maker()
        gc.collect()
        pipe.send(None)
        while True:
            pipe.send(measured(work, pipe.recv()))
    except Exception:
        pipe.send(traceback.format_exc())


def measured(work: Work, number: int) -> Turn:
    """One turn; a turn that starts other processes returns their CPU seconds itself."""
    cpu_began = time.process_time()
    began = time.perf_counter()
    seconds = work(number)
    cpu = time.process_time() - cpu_began
    wall = time.perf_counter() - began
    return Turn(seconds if isinstance(seconds, float) else cpu, wall, peak_memory())
