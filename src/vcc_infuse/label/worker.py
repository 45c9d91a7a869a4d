"""Training while a person labels: what the model says now, what comes next, and what to look at again.

A quick head answers within a second or two. The method that `train` takes on features follows when the hand rests or
when enough has changed, and takes over where it answers hidden labels better; a run that newer labels have overtaken is
given up.

Audit images are never learned from, so that the error that is shown is the error of the model that answers.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sources.arrays import from_arrays
from ..data.split import from_given_labels
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..pool_audit import (
    KnownRows,
    PoolGroups,
    Unknown,
    find_duplicates,
    foreign_clusters,
    judge_labels,
    learning_curve,
    leave_one_out,
    unit_rows,
)
from ..pool_audit.arrays import blocks
from ..training.callbacks import Callback
from ..training.cross_fit import label_folds
from ..utils.neighbors import has_graph
from .embedding import FEATURES, FeatureRows
from .head import PoolGraph, fit_head, hidden_scores, joined, pool_graph
from .jobs import Answer, Job
from .policy import next_batch

NEXT = 60  # images that are suggested at a time, or up to as many more as
REGROUPED = 16  # labels after which images are grouped anew: suggestions need as many groups as labels and suggestions
MOST_TRAINED = 4_000  # unlabeled rows that the default method trains on
MOST_COMPARED = 20_000  # images of which all pairs are compared, for neighbors and copies
MOST_SEARCHED = 100_000  # images whose copies the extra `faiss` finds in a dozen seconds
CURVE_LABELS = 1000
ALPHA = 0.05
DOUBT = 0.5


class Overtaken(Exception):  # noqa: N818 - a newer job, not a fault
    """A run that newer labels have made useless."""


class Learner:
    """Answers jobs about the images whose features are in a file."""

    def __init__(self, out: Path, keys: np.ndarray | Sequence[bytes], seed: int = 0) -> None:
        self.rows = FeatureRows(out / FEATURES, keys)
        self.size = len(keys)
        self.seed = seed
        self._unit = np.zeros((0, 1), np.float16)
        self._groups = PoolGroups(self._unit)
        self._graph: PoolGraph | None = None
        self._linked = np.zeros(0, np.int64)  # rows of the graph
        self._main = np.zeros((0, 1), np.float32)  # all rows in its main directions
        self._compared = 0

    def refresh(self) -> None:
        """Take in what was embedded meanwhile."""
        if self.rows.refresh():
            self._unit = unit_rows(self.rows.features).astype(np.float16)
            self._groups = PoolGroups(self._unit, seed=self.seed)
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
        taught = np.where(job.audit[images], -1, labels)
        probs = self._fit(taught, len(job.classes))
        if probs is not None:
            answer.kind = "quick"
        self._look(answer, job, labels, probs)
        self._suggest(answer, job, taught, probs)
        answer.seconds = time.perf_counter() - began
        return answer

    def _fit(self, labels: np.ndarray, classes: int) -> np.ndarray | None:
        """Probabilities by a head that takes a second; None before two classes have labels."""
        if len(np.unique(labels[labels >= 0])) < 2:
            return None
        graph, rows = self._graph_with(labels)
        head = fit_head(graph, labels[rows], classes)
        return None if head is None else head.probs_of(self._main)

    def _graph_with(self, labels: np.ndarray) -> tuple[PoolGraph, np.ndarray]:
        """The graph of some rows and of all that have a label, and which rows these are."""
        if self._graph is None:
            drawn = np.random.default_rng(self.seed).permutation(len(labels))[:MOST_COMPARED]
            self._linked = np.sort(drawn)
            self._graph = pool_graph(self._unit[self._linked].astype(np.float32))
            self._main = in_directions(self._unit, self._graph.basis)
        more = np.setdiff1d(np.flatnonzero(labels >= 0), self._linked)
        if len(more) == 0:
            return self._graph, self._linked
        return joined(self._graph, self._main[more]), np.concatenate([self._linked, more])

    def full(self, job: Job, watch: Callable[[], None]) -> Answer | None:
        """What the default method says where it is better than the quick head; None if it cannot be told.

        `watch` may raise Overtaken.
        """
        began = time.perf_counter()
        labels = self._columns(job)
        taught = np.where(job.audit[self.rows.images], -1, labels)
        counts = np.bincount(taught[taught >= 0], minlength=len(job.classes))
        kept = np.flatnonzero(counts)
        if len(kept) < 2 or counts.max() < 2:
            return None
        column = np.full(len(job.classes), -1)
        column[kept] = np.arange(len(kept))
        watch()
        columns = np.where(taught >= 0, column[taught], -1)
        inside, error = train_default(self._unit, columns, self.seed, watch)
        answer = Answer(job.version, "full", classes=job.classes, embedded=len(labels))
        probs = np.zeros((len(labels), len(job.classes)), np.float32)
        probs[:, kept] = inside
        if not self.takes_over(columns, error):
            quick = self._fit(taught, len(job.classes))
            assert quick is not None
            probs = quick
        self._look(answer, job, labels, probs)
        watch()
        self._suggest(answer, job, taught, probs)
        answer.gain = self._gain(job, labels)
        answer.seconds = time.perf_counter() - began
        return answer

    def takes_over(self, labels: np.ndarray, error: float) -> bool:
        """Whether an error on hidden labels is below that of the quick head by more than its standard error."""
        graph, rows = self._graph_with(labels)
        given = labels[rows]
        answers = given[given >= 0]
        fold = label_folds(answers, self.seed)
        wrong = hidden_scores(graph, given, int(labels.max()) + 1, fold).argmax(1) != answers
        mean = float(wrong[fold >= 0].mean())
        return error < mean - math.sqrt(mean * (1 - mean) / int((fold >= 0).sum()))

    def copies(self) -> list[list[int]] | None:
        """Groups of near copies, once all images are embedded; None if there is nothing new to say."""
        rows = len(self._unit)
        if rows == self._compared or rows > (MOST_SEARCHED if has_graph() else MOST_COMPARED) or rows < 2:
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

    def _look(self, answer: Answer, job: Job, labels: np.ndarray, probs: np.ndarray | None) -> None:
        """What the model says, how many audit images it gets wrong, and what a person should look at."""
        images = self.rows.images
        labeled = np.flatnonzero(labels >= 0)
        audited = np.flatnonzero((labels >= 0) & job.audit[images])
        answer.labels = len(labeled) - len(audited)
        if probs is not None:
            answer.probs = self._spread(probs)
            wrong = answer.probs[images[audited]].argmax(1) != labels[audited]
            answer.wrong = (int(wrong.sum()), len(audited))
        if len(labeled) == 0:
            return
        known = self._unit[labeled].astype(np.float32)
        self._look_for_foreign(answer, KnownRows.of(known, labels[labeled]), np.flatnonzero(labels < 0))
        if len(np.unique(labels[labeled])) < 2:
            return
        left_out = leave_one_out(known, labels[labeled], len(job.classes))
        probs_left_out = left_out.probs()
        answer.out_of_fold = (images[labeled], probs_left_out.astype(np.float32))
        doubts = judge_labels(labels[labeled], probs_left_out, noise=left_out.noise)
        for place in doubts.ranking().tolist():
            given = int(labels[labeled[place]])
            better = int(doubts.suggested[place])
            if doubts.p_wrong[place] >= DOUBT and better != given:
                image = int(images[labeled[place]])
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
        hidden = job.hidden[self.rows.images] | job.audit[self.rows.images]
        if not ((labels < 0) & ~hidden).any():
            return
        chosen = next_batch(
            self._unit,
            labels,
            probs,
            count=NEXT + -(int((labels >= 0).sum()) + NEXT) % REGROUPED,
            classes=len(job.classes) or None,
            exclude=hidden,
            names=job.names or None,
            groups=self._groups,
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
    """Asks whether the run is still wanted: after the method itself, and after every run of its cross-validation."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self.watch = watch

    def on_start(self, trainer: Any, start: int) -> None:
        """Called by the trainer."""
        self.watch()

    def on_fold(self, trainer: Any, done: int) -> None:
        """Called by the trainer."""
        self.watch()


def in_directions(rows: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Rows of float16 in the directions of a basis, float32, a part at a time."""
    result = np.empty((len(rows), basis.shape[1]), np.float32)
    for part in blocks(len(rows)):
        result[part] = rows[part].astype(np.float32) @ basis
    return result


def train_default(
    features: np.ndarray, labels: np.ndarray, seed: int, watch: Callable[[], None]
) -> tuple[np.ndarray, float]:
    """What `train` takes on features where nothing is named: calibrated probabilities (rows, classes), and its error.

    The error is that on labels which runs in folds did not see.

    Args:
        features: of unit length, of shape (rows, width).
        labels: of shape (rows,), −1 where there is none; every class has a label, and some class has two.
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            SSLData(data, from_given_labels(labels[rows])), preset="frozen", callbacks=[_Watch(watch)],
            cross_fit=True, seed=seed, progress=False, device="cpu",
        )  # fmt: skip
    probs = np.empty((len(labels), len(names)), np.float32)
    for part in blocks(len(labels)):
        answers = result.predictor.predict(features[part].astype(np.float32))
        probs[part] = set_top_confidence(answers.probs, answers.calibrated).numpy()
    figures = result.summary.get("cross_validated")  # none if a run with fewer labels was not possible
    return probs, figures["handed_out"]["error"] if figures else 1.0


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
