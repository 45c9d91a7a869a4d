"""Training while a person labels: what the model says now, what comes next, and what to look at again.

A quick head answers within a second. The library's default method follows when the hand rests or when enough has
changed; a run that newer labels have overtaken is given up.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sources.arrays import from_arrays
from ..data.split import from_given_labels
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..pool_audit import (
    KnownRows,
    Unknown,
    find_doubtful_labels,
    find_duplicates,
    fit_ridge,
    foreign_clusters,
    learning_curve,
    leave_one_out,
    unit_rows,
)
from ..training.callbacks import Callback
from .embedding import FEATURES, FeatureRows
from .head import PoolGraph, pool_graph
from .jobs import Answer, Job
from .policy import fit_quickly, next_batch

NEXT = 60  # images that are suggested at a time
STEPS = 200  # of the default method
MOST_TRAINED = 10_000  # unlabeled rows that it trains on
MOST_COMPARED = 20_000  # images of which all pairs are compared, for neighbors and copies
CURVE_LABELS = 1000
ALPHA = 0.05
DOUBT = 0.5


class Overtaken(Exception):  # noqa: N818 - a newer job, not a fault
    """A run that newer labels have made useless."""


class Learner:
    """Answers jobs about the images whose features are in a file."""

    def __init__(self, out: Path, keys: list[bytes], seed: int = 0) -> None:
        self.rows = FeatureRows(out / FEATURES, keys)
        self.size = len(keys)
        self.seed = seed
        self._unit = np.zeros((0, 1), np.float16)
        self._graph: PoolGraph | None = None
        self._compared = 0

    def refresh(self) -> None:
        """Take in what was embedded meanwhile."""
        if self.rows.refresh():
            self._unit = unit_rows(self.rows.features).astype(np.float16)
            self._graph = None

    def quick(self, job: Job) -> Answer:
        """What a head in closed form says."""
        began = time.perf_counter()
        self.refresh()
        images = self.rows.images
        answer = Answer(job.version, "none", classes=job.classes, embedded=len(images))
        if len(images) == 0:
            return answer
        labels = self._columns(job)
        probs = self._fit(labels, len(job.classes))
        if probs is not None:
            answer.kind = "quick"
            answer.probs = self._spread(probs)
        self._look(answer, job, labels)
        self._suggest(answer, job, labels, probs)
        answer.seconds = time.perf_counter() - began
        return answer

    def _fit(self, labels: np.ndarray, classes: int) -> np.ndarray | None:
        """Probabilities by a head that takes a second; None before two classes have labels."""
        labeled = np.flatnonzero(labels >= 0)
        if len(np.unique(labels[labeled])) < 2:
            return None
        if len(labels) > MOST_COMPARED:  # all pairs would take too long
            return fit_ridge(self._unit[labeled], labels[labeled], classes).probs(self._unit)
        rows = self._unit.astype(np.float32)
        self._graph = self._graph or pool_graph(rows)
        return fit_quickly(rows, labels, classes, graph=self._graph)

    def full(self, job: Job, watch: Callable[[], None]) -> Answer | None:
        """What the default method says; None if it cannot be trained yet. `watch` may raise Overtaken."""
        began = time.perf_counter()
        labels = self._columns(job)
        counts = np.bincount(labels[labels >= 0], minlength=len(job.classes))
        kept = np.flatnonzero(counts)
        if len(kept) < 2:
            return None
        column = np.full(len(job.classes), -1)
        column[kept] = np.arange(len(kept))
        watch()
        inside = train_default(self._unit, np.where(labels >= 0, column[labels], -1), self.seed, watch)
        probs = np.zeros((len(labels), len(job.classes)), np.float32)
        probs[:, kept] = inside
        answer = Answer(job.version, "full", classes=job.classes, embedded=len(labels), probs=self._spread(probs))
        self._look(answer, job, labels)
        watch()
        self._suggest(answer, job, labels, probs)
        answer.gain = self._gain(job, labels)
        answer.seconds = time.perf_counter() - began
        return answer

    def copies(self) -> list[list[int]] | None:
        """Groups of near copies, once all images are embedded; None if there is nothing new to say."""
        rows = len(self._unit)
        if rows == self._compared or rows > MOST_COMPARED or rows < 2:
            return None
        self._compared = rows
        return [self.rows.images[group].tolist() for group in find_duplicates(self._unit).groups()]

    def _columns(self, job: Job) -> np.ndarray:
        """The label of each embedded row as a column number, −1 where there is none."""
        column = np.full(max(job.classes, default=0) + 2, -1)
        column[list(job.classes)] = np.arange(len(job.classes))
        return np.asarray(column[job.label[self.rows.images]])  # −1 picks the last entry, which is −1

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Values of the embedded rows at the places of their images; NaN elsewhere."""
        spread = np.full((self.size, *values.shape[1:]), np.nan, np.float16)
        spread[self.rows.images] = values
        return spread

    def _look(self, answer: Answer, job: Job, labels: np.ndarray) -> None:
        """What labels and images a person should look at, and how many audit images are wrong."""
        labeled = np.flatnonzero(labels >= 0)
        answer.labels = len(labeled)
        if len(labeled) == 0:
            return
        known = self._unit[labeled].astype(np.float32)
        self._look_for_foreign(answer, KnownRows.of(known, labels[labeled]), np.flatnonzero(labels < 0))
        if len(np.unique(labels[labeled])) < 2:
            return
        left_out = leave_one_out(known, labels[labeled], len(job.classes)).probs()
        audited = np.flatnonzero(job.audit[self.rows.images[labeled]])
        wrong = left_out[audited].argmax(1) != labels[labeled][audited]
        answer.wrong = (int(wrong.sum()), len(audited))
        answer.out_of_fold = (self.rows.images[labeled], left_out.astype(np.float32))
        doubts = find_doubtful_labels(known, labels[labeled], classes=len(job.classes))
        for place in doubts.ranking().tolist():
            given = int(labels[labeled[place]])
            better = int(doubts.suggested[place])
            if doubts.p_wrong[place] >= DOUBT and better != given:
                image = int(self.rows.images[labeled[place]])
                answer.doubtful.append((image, job.classes[given], job.classes[better], float(doubts.p_wrong[place])))

    def _look_for_foreign(self, answer: Answer, known: KnownRows, others: np.ndarray) -> None:
        if len(others) == 0:
            return
        found = known.judge(self._unit[others])
        p = np.full(len(self._unit), np.nan)
        p[others] = found.p
        scores = np.full(len(self._unit), np.nan)
        scores[others] = found.score
        answer.unknown_p = self._spread(p)
        answer.scores = self._spread(scores)
        foreign = others[found.p <= ALPHA]
        if len(foreign) >= 3:
            unknown = Unknown(scores[foreign], p[foreign])
            groups = foreign_clusters(self._unit[foreign], unknown, seed=self.seed)
            answer.clusters = [self.rows.images[foreign[group.rows]].tolist() for group in groups]

    def _suggest(self, answer: Answer, job: Job, labels: np.ndarray, probs: np.ndarray | None) -> None:
        hidden = job.hidden[self.rows.images]
        if not ((labels < 0) & ~hidden).any():
            return
        chosen = next_batch(
            self._unit,
            labels,
            probs,
            count=NEXT,
            classes=len(job.classes) or None,
            exclude=hidden,
            seed=self.seed,
            names=job.names or None,
        )
        answer.following = list(zip(self.rows.images[chosen.rows].tolist(), chosen.reasons, strict=True))

    def _gain(self, job: Job, labels: np.ndarray) -> tuple[float, float, float] | None:
        """The error of a linear head after ten more minutes at the same rate, by the learning curve."""
        labeled = np.flatnonzero(labels >= 0)
        if job.rate <= 0 or not 2 <= len(labeled) <= CURVE_LABELS:
            return None
        curve = learning_curve(self._unit[labeled].astype(np.float32), labels[labeled], repeats=6, draws=50)
        if curve.note:
            return None
        more = len(labeled) + 10 * job.rate
        doublings = float(np.log2(more / len(labeled)))
        low, high = (
            float(np.clip(now + doublings * (double - now), 0, 1))
            for now, double in ((curve.now.low, curve.at_double.low), (curve.now.high, curve.at_double.high))
        )
        value = curve.error_at(more)
        return value, min(low, value), max(high, value)


class _Watch(Callback):
    """Asks after every few steps whether the run is still wanted."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self.watch = watch

    def on_step(self, trainer: Any, done: int) -> None:
        """Called by the trainer."""
        if done % 5 == 0:
            self.watch()


def train_default(features: np.ndarray, labels: np.ndarray, seed: int, watch: Callable[[], None]) -> np.ndarray:
    """Calibrated probabilities of shape (rows, classes) by the library's default method on features.

    Args:
        features: of unit length, of shape (rows, width).
        labels: of shape (rows,), −1 where there is none; every class has a label.
        seed: of the run.
        watch: called now and then; it may raise an exception to stop.
    """
    from ..calibrators.base import set_top_confidence
    from ..run import train

    pool = np.flatnonzero(labels < 0)
    if len(pool) > MOST_TRAINED:
        pool = np.random.default_rng(seed).permutation(pool)[:MOST_TRAINED]
    rows = np.sort(np.concatenate([np.flatnonzero(labels >= 0), pool]))
    names = [str(number) for number in range(int(labels.max()) + 1)]
    data = from_arrays(features[rows].astype(np.float32), labels[rows], classes=names)
    options: dict[str, Any] = {"steps": STEPS, "eval_every": STEPS, "seed": seed, "progress": False, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            SSLData(data, from_given_labels(labels[rows])), preset="frozen", callbacks=[_Watch(watch)],
            cross_fit="auto", **options,
        )  # fmt: skip
    probs = np.empty((len(labels), len(names)), np.float32)
    for start in range(0, len(labels), 4096):
        answers = result.predictor.predict(features[start : start + 4096].astype(np.float32))
        probs[start : start + 4096] = set_top_confidence(answers.probs, answers.calibrated).numpy()
    return probs


def answer_jobs(learner: Learner, receive: Callable[[bool], Job | None], send: Callable[[Answer], None]) -> None:
    """Answer jobs until there are no more; the newest job wins.

    Args:
        learner: who knows the features.
        receive: the newest job; with True it waits for one, with False None means that there is none. EOFError ends.
        send: takes the answers.
    """
    job = receive(True)
    while True:
        assert job is not None
        send(learner.quick(job))
        job = _train_fully(learner, job, receive, send) if job.full else None
        if job is None and (copies := learner.copies()) is not None:
            send(Answer(-1, "copies", copies=copies))
        job = job or receive(True)


def _train_fully(
    learner: Learner, job: Job, receive: Callable[[bool], Job | None], send: Callable[[Answer], None]
) -> Job | None:
    """Train the default method; newer jobs get a quick answer meanwhile, or end the run. Returns the newest of them."""
    newer: Job | None = None

    def watch() -> None:
        nonlocal newer
        latest = receive(False)
        if latest is not None:
            newer = latest
            if job.overtaken_by(latest):
                raise Overtaken
            send(learner.quick(latest))

    try:
        answer = learner.full(job, watch)
        if answer is not None:
            send(answer)
    except Overtaken:
        return newer
    except UserError as fault:
        warnings.warn(f"the default method was not trained: {fault}", stacklevel=2)
    return newer
