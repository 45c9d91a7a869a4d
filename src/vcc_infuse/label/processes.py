"""The two processes beside the server: one embeds, one trains. They end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError
from .embedding import Progress, embed_pool
from .images import ImagePool, PoolSource
from .jobs import Answer, Job
from .worker import Learner, answer_jobs

Receive = Callable[[Any], None]
PATIENCE = 5.0  # seconds to wait for a process that was told to end


class Background(Protocol):
    """What computes beside the session."""

    def start(self, on_progress: Callable[[Progress], None], on_answer: Callable[[Answer], None]) -> None:
        """Begin; both functions are called from other threads."""

    def submit(self, job: Job) -> None:
        """Ask for an answer; earlier jobs that were not begun are forgotten."""

    def close(self) -> None:
        """End what is running."""


class Processes:
    """Embedding and training, each in a process of its own.

    Args:
        source: where the images are.
        network: what embeds; see `Network`.
        out: folder of the session.
        seed: of the order of embedding and of the runs.
    """

    def __init__(self, source: PoolSource, network: Any, out: Path, seed: int) -> None:
        self._arguments = (source, network, out, seed)
        self._context = multiprocessing.get_context("spawn")
        self.children: list[tuple[Any, Connection]] = []
        self._waiting: Job | None = None
        self._asked = threading.Condition()
        self._closed = False

    def start(self, on_progress: Callable[[Progress], None], on_answer: Callable[[Answer], None]) -> None:
        """Start both processes, and a thread for what each of them says."""
        source, _, out, seed = self._arguments
        self._tell = on_progress
        self._start(_embed, self._arguments, on_progress, "embedding has stopped")
        self._start(_train, (source, out, seed), on_answer, "the model no longer learns")
        threading.Thread(target=self._hand_over, daemon=True).start()

    def _start(self, work: Callable[..., None], arguments: tuple[Any, ...], receive: Receive, lost: str) -> None:
        here, there = self._context.Pipe()
        child = self._context.Process(target=work, args=(there, *arguments), daemon=True)
        child.start()
        there.close()
        self.children.append((child, here))

        def listen() -> None:
            with suppress(EOFError, OSError):
                while True:
                    receive(here.recv())
            child.join(PATIENCE)
            if child.exitcode and not self._closed:  # killed, perhaps for want of memory
                fault = f"{lost}: its process was ended; start the command again, nothing is lost"
                self._tell(Progress.broken(fault))

        threading.Thread(target=listen, daemon=True).start()

    def submit(self, job: Job) -> None:
        """Leave a job for the process that trains; a thread hands it over, because a busy process takes its time."""
        with self._asked:
            self._waiting = job
            self._asked.notify()

    def _hand_over(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._waiting is not None or self._closed)
                job = self._waiting
                self._waiting = None
            if self._closed:
                return
            try:
                self.children[1][1].send(job)
            except OSError:  # it has ended; labels are taken all the same
                return

    def close(self) -> None:
        """End both processes."""
        with self._asked:
            self._closed = True
            self._asked.notify()
        for child, connection in self.children:
            child.kill()  # nothing is lost: what they write is only ever added to
            child.join(PATIENCE)
            connection.close()


def settle() -> None:
    """A process that yields to the server and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        os.nice(10)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _embed(connection: Connection, source: PoolSource, network: Any, out: Path, seed: int) -> None:
    settle()
    with suppress(BrokenPipeError):  # the server is gone
        try:
            embed_pool(source, network, out, seed, connection.send)
        except (UserError, OSError) as fault:
            connection.send(Progress.broken(f"embedding has stopped: {fault}"))


def _train(connection: Connection, source: PoolSource, out: Path, seed: int) -> None:
    settle()

    def receive(wait: bool) -> Job | None:
        newest = connection.recv() if wait else None
        while connection.poll():
            newest = connection.recv()
        return newest

    with suppress(EOFError, BrokenPipeError):
        answer_jobs(Learner(out, ImagePool(source).keys, seed), receive, connection.send)
