"""Simulated people: minutes until the test error is at most X and stays there, and whether the promises hold.

Every way of labeling works on the same features of a frozen network and is retrained on the same schedule.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from vcc_infuse.cli.parser import Parser
from vcc_infuse.errors import UserError
from vcc_infuse.label.bounds import Batch, Bound, bulk_bound
from vcc_infuse.label.head import PoolGraph, fit_head, pool_graph
from vcc_infuse.label.policy import audit_reserve, grid_rows, is_audit, next_batch
from vcc_infuse.pool_audit import suggest_labels, unit_rows
from vcc_infuse.pool_audit.arrays import unit
from vcc_infuse.utils.io import write_json, write_text

from .minutes_page import page
from .people import Person

SETS = ("cifar10", "stl10", "fashion_mnist", "cifar100")
MOST_CLASSES = 20  # of CIFAR-100 the first twenty
MOST_LABELS = 1000  # of the ways that ask one image at a time
MOST_MINUTES = 20.0  # of ours
PER_CLASS = 4  # single images per class before the first grid
STRENGTH = 30.0  # scikit-learn's C for rows of unit length: its default of 1 is worse
ALLOWED = 0.05  # of the labels of a batch may be wrong
MOST_GRIDS = 4  # of a batch, before the person gives up
BULK_AT = (3.0, 8.0)  # minutes after which everything sure is confirmed in bulk, on the side
Cell = dict[str, Any]


class Pool(NamedTuple):
    """A set: rows of unit length and truth of pool and test images, and what our head needs."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    graph: PoolGraph
    compact: np.ndarray  # the pool in main directions, for k-means
    test_compact: np.ndarray

    @property
    def classes(self) -> int:
        """Their number."""
        return int(self.y.max()) + 1


def read_pool(path: Path) -> Pool:
    """Plain views of a file of features; of more than twenty classes the first twenty."""
    with np.load(path) as file:
        kept = file["train_y"] < MOST_CLASSES
        tested = file["test_y"] < MOST_CLASSES
        plain = file["train"][:, 0][kept]
        x = unit_rows(plain)
        test_x = unit_rows(file["test"][tested], plain)
        graph = pool_graph(x)
        return Pool(
            x, file["train_y"][kept], test_x, file["test_y"][tested], graph, unit(graph.rows), test_x @ graph.basis
        )


def pause(labels: int) -> int:
    """Answers until the next retraining."""
    return 5 if labels < 50 else 10 if labels < 200 else 25 if labels < 400 else 100


def fit_regression(pool: Pool, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Probabilities of the pool and the test error of scikit-learn's logistic regression."""
    rows = np.flatnonzero(labels >= 0)
    _, _, basis = np.linalg.svd(pool.x[rows], full_matrices=False)  # the same regression in the span of the labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # not converged; hardly more labels than classes
        model = LogisticRegression(C=STRENGTH, max_iter=100).fit(pool.x[rows] @ basis.T, labels[rows])
    weight = model.coef_ @ basis
    bias = model.intercept_
    if len(weight) == 1:  # of two classes scikit-learn keeps the second
        weight = np.concatenate([-weight, weight]) / 2
        bias = np.concatenate([-bias, bias]) / 2
    probs = np.zeros((len(pool.y), pool.classes))
    probs[:, model.classes_] = softmax(pool.x @ weight.T.astype(np.float32) + bias, axis=1)
    test = model.classes_[(pool.test_x @ weight.T.astype(np.float32) + bias).argmax(1)]
    return probs, float((test != pool.test_y).mean())


def fit_ours(pool: Pool, labels: np.ndarray, calibrate: bool = False) -> tuple[np.ndarray, float] | None:
    """The same of the head that spreads labels."""
    head = fit_head(pool.graph, labels, pool.classes, calibrate=calibrate)
    if head is None:
        return None
    test = head.probs_of(pool.test_compact).argmax(1)
    return head.probs_of(pool.graph.rows), float((test != pool.test_y).mean())


class Session:
    """One person, one set, one way of labeling: the curve so far and the predictions of the newest head."""

    def __init__(self, pool: Pool, seed: int, *, ours: bool) -> None:
        self.pool = pool
        self.seed = seed
        self.ours = ours
        self.person = Person(pool.y, seed)
        self.curve: list[Cell] = []
        self.probs: np.ndarray | None = None
        self.error = 1.0

    def retrain(self) -> None:
        """Fit the head to the labels so far and note the error."""
        if len(np.unique(self.taught)) < 3:  # −1 and two classes
            return
        fit = fit_ours if self.ours else fit_regression
        fitted = fit(self.pool, self.taught)
        assert fitted is not None
        self.probs, self.error = fitted
        self.curve.append(self.person.record(self.error))

    @property
    def taught(self) -> np.ndarray:
        """The labels that the head learns from."""
        return self.person.labels

    def ask(self, rows: Sequence[int], *, suggest: bool = True) -> None:
        """Single images, with retraining in between."""
        for place, row in enumerate(rows, 1):
            shown = None if self.probs is None or not suggest else int(self.probs[row].argmax())
            self.person.ask(int(row), shown)
            if place % pause(self.labeled) == 0 or place == len(rows):
                self.retrain()

    @property
    def labeled(self) -> int:
        """Images with a label."""
        return int((self.person.labels >= 0).sum())

    @property
    def waiting(self) -> np.ndarray:
        """Rows without a label."""
        return np.flatnonzero(self.person.labels < 0)


def at_random(session: Session, count: int) -> np.ndarray:
    """Any images."""
    return np.random.default_rng([session.seed, session.labeled]).permutation(session.waiting)[:count]


def by_margin(session: Session, count: int) -> np.ndarray:
    """The least certain images; any before there is a model."""
    if session.probs is None:
        return at_random(session, count)
    top = np.partition(session.probs[session.waiting], -2, axis=1)[:, -2:]
    return np.asarray(session.waiting[np.argsort(top[:, 1] - top[:, 0], kind="stable")][:count])


def by_typiclust(session: Session, count: int) -> np.ndarray:
    """The most typical images of clusters without a label."""
    labels = session.person.labels
    chosen = suggest_labels(
        session.pool.compact, labels, count=count, strategy="coverage", copy_threshold=1.0, seed=session.seed
    )
    return chosen.rows


def one_at_a_time(pool: Pool, seed: int, pick: Callable[[Session, int], np.ndarray]) -> Cell:
    """A baseline: single images and logistic regression."""
    session = Session(pool, seed, ours=False)
    while session.labeled < min(MOST_LABELS, len(pool.y)):
        count = max(10, pause(session.labeled))
        rows = pick(session, min(count, MOST_LABELS - session.labeled, len(session.waiting)))
        session.ask(rows.tolist())
    return {"curve": session.curve}


class OurSession(Session):
    """Single images with audits, then grids."""

    def __init__(self, pool: Pool, seed: int) -> None:
        super().__init__(pool, seed, ours=True)
        self.reserve = np.zeros(len(pool.y), bool)
        self.audits = audit_reserve(len(pool.y), seed).tolist()
        self.reserve[self.audits] = True
        self.position = 0
        self.shown = np.zeros(pool.classes)
        self.batches: list[Batch] = []
        self.claims: list[Cell] = []

    @property
    def taught(self) -> np.ndarray:
        """All labels but those of audit images, which measure the error."""
        return np.where(self.reserve, -1, self.person.labels)

    @property
    def judged(self) -> np.ndarray:
        """Rows that grids must not show."""
        return np.asarray((self.person.labels >= 0) | self.reserve)

    def singles(self, count: int = 10) -> bool:
        """A few single images, audits among them; False if none are left."""
        known = max(len(self.person.known), 1)
        chosen = next_batch(
            self.pool.compact,
            self.taught,
            self.probs,
            count=count,
            classes=known,
            exclude=self.reserve,
            seed=self.seed,
        )
        for start in range(0, len(chosen.rows), 5):
            for row in chosen.rows[start : start + 5]:
                self.audit_if(is_audit(self.position, self.seed))
                self.position += 1
                shown = None if self.probs is None else int(self.probs[row].argmax())
                self.person.ask(int(row), shown)
            self.retrain()
        return len(chosen.rows) > 0

    def audit_if(self, due: bool) -> None:
        """An image drawn at random before the start, without a suggestion."""
        if due and self.audits:
            self.person.ask(self.audits.pop(0), None)
            self.position += 1

    def grid(self) -> bool:
        """A grid of the class that is worth most; False if nothing is left."""
        assert self.probs is not None
        cls = next_class(self.probs, self.judged, self.shown)
        if cls is None:
            return False
        self.shown[cls] += 1
        grid = grid_rows(self.probs, self.judged, cls, seed=int(self.shown.sum()) + 1000 * self.seed)
        clicked = self.person.look(grid.rows, cls)
        self.claim(Batch(len(grid.batch), len(grid.rows), int(clicked.sum())), grid.batch, cls)
        self.retrain()
        return True

    def claim(self, batch: Batch, rows: np.ndarray, cls: int) -> None:
        """Note the promise and the truth; what is promised well enough becomes labels."""
        clicked = (self.person.labels[rows] >= 0) & (self.person.labels[rows] != cls)
        rest = rows[~clicked]
        bound = bulk_bound(batch)
        self.claims.append(compared(bound, self.pool.y[rest] != cls))
        if bound["at_most"] <= ALLOWED:
            self.person.labels[rest] = cls


def compared(bound: Bound, wrong: np.ndarray) -> Cell:
    """A promise beside the truth."""
    return {**bound, "truth": float(wrong.mean()) if len(wrong) else 0.0}


def ours(pool: Pool, seed: int, *, grids: bool, audit: bool = False) -> Cell:
    """Our policy and head; with grids from four single images per class on."""
    session = OurSession(pool, seed)
    bulk: list[Cell] = []
    more = True
    while more and session.person.spent.minutes() < MOST_MINUTES:
        if grids and session.labeled >= PER_CLASS * len(session.person.known) and session.labeled > PER_CLASS * 2:
            session.audit_if(audit)
            more = session.grid()
        else:
            more = session.singles()
        if grids and len(bulk) < len(BULK_AT) and session.person.spent.minutes() >= BULK_AT[len(bulk)]:
            bulk.append(confirm_everything_sure(session))
    return {"curve": session.curve, "claims": session.claims, "bulk": bulk}


def confirm_everything_sure(session: OurSession) -> Cell:
    """Bulk confirmation on the side: grids of each class until the bound is good enough or patience ends."""
    fitted = fit_ours(session.pool, session.taught, calibrate=True)
    assert fitted is not None
    helper = Person(session.pool.y, session.seed + 7919)
    helper.known |= session.person.known
    batches = [
        confirm_class(fitted[0], session.judged, cls, helper, session.seed) for cls in range(session.pool.classes)
    ]
    batches = [batch for batch in batches if batch["looks"]]
    kept = [batch for batch in batches if batch["kept"]]
    labels = sum(batch["looks"][-1]["labels"] for batch in kept)
    wrong = sum(batch["looks"][-1]["labels"] * batch["looks"][-1]["truth"] for batch in kept)
    return {
        "minutes": session.person.spent.minutes(),
        "batches": batches,
        "labels": labels,
        "pool": len(session.pool.y),
        "truth": wrong / labels if labels else 0.0,
        "spent": asdict(helper.spent),
    }


def confirm_class(probs: np.ndarray, judged: np.ndarray, cls: int, helper: Person, seed: int) -> Cell:
    """One batch, looked at until the bound is good enough: every look makes a promise, and all of them must hold."""
    seen = judged.copy()
    rows: np.ndarray | None = None
    looks: list[Cell] = []
    clicked = np.zeros(len(seen), bool)
    batch = Batch(0, 0, 0, 0)
    while len(looks) < MOST_GRIDS and (not looks or looks[-1]["at_most"] > ALLOWED):
        grid = grid_rows(probs, seen, cls, batch=rows, purpose="confirm", seed=10 * seed + len(looks))
        rows = grid.batch
        if len(grid.rows) == 0:
            break
        clicked[grid.rows] = helper.look(grid.rows, cls)
        seen[grid.rows] = True
        batch = Batch(len(rows), batch.looked_at + len(grid.rows), int(clicked.sum()), len(looks) + 1)
        looks.append(compared(bulk_bound(batch), helper.truth[rows[~clicked[rows]]] != cls))
    return {"looks": looks, "kept": bool(looks) and looks[-1]["at_most"] <= ALLOWED, "counts": list(batch[:4])}


ROWS: dict[str, Callable[[Pool, int], Cell]] = {
    "random": lambda pool, seed: one_at_a_time(pool, seed, at_random),
    "margin": lambda pool, seed: one_at_a_time(pool, seed, by_margin),
    "typiclust": lambda pool, seed: one_at_a_time(pool, seed, by_typiclust),
    "ours-singles": lambda pool, seed: ours(pool, seed, grids=False),
    "ours": lambda pool, seed: ours(pool, seed, grids=True),
    "ours-audited": lambda pool, seed: ours(pool, seed, grids=True, audit=True),
}


def with_all_labels(pool: Pool) -> Cell:
    """What the features allow: errors of both heads with every label, and how often a near image has the same class."""
    fitted = fit_ours(pool, pool.y)
    assert fitted is not None
    links = pool.graph.affinity.tocoo()
    same = float((pool.y[links.row] == pool.y[links.col]).mean())
    return {"images": len(pool.y), "regression": fit_regression(pool, pool.y)[1], "ours": fitted[1], "neighbors": same}


def limits(sets: Sequence[str], features: Path, cells: Path) -> dict[str, Cell]:
    """The same of every set; cells of earlier calls are read."""
    for name in sets:
        path = cells / f"{name}-all.json"
        if not path.is_file():
            write_json(path, with_all_labels(read_pool(features / f"{name}-224.npz")))
    return {name: json.loads((cells / f"{name}-all.json").read_text()) for name in sets}


def study(sets: Sequence[str], rows: Sequence[str], seeds: Sequence[int], features: Path, cells: Path) -> list[Cell]:
    """All sets, rows and seeds; cells of earlier calls are read."""
    results = []
    for name in sets:
        pool: Pool | None = None
        for row in rows:
            for seed in seeds:
                path = cells / f"{name}-{row}-{seed}.json"
                if not path.is_file():
                    pool = read_pool(features / f"{name}-224.npz") if pool is None else pool
                    write_json(path, ROWS[row](pool, seed))
                    print(name, row, seed, flush=True)
                results.append({"set": name, "row": row, "seed": seed, **json.loads(path.read_text())})
    return results


def main(argv: Sequence[str]) -> None:
    """Simulate, and write the page."""
    parser = Parser("python -m benchmarks human_minutes", "Simulate people who label.")
    parser.add_argument("--features", required=True, help="folder of SET-224.npz, as `benchmarks features` writes them")
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="names of the sets (all four)")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help=f"ways of labeling ({', '.join(ROWS)})")
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4, 5, 6], help="of people (2 … 6)")
    parser.add_argument("--cells", help="folder of finished simulations, which are kept (OUT/cells)")
    parser.add_argument("--out", required=True, help="folder; writes human_minutes.md and human_minutes.json")
    options = parser.read(argv)
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        raise UserError(f"--rows takes {', '.join(ROWS)}, got {unknown[0]}")
    missing = [name for name in options.sets if not (Path(options.features) / f"{name}-224.npz").is_file()]
    if missing:
        raise UserError(f"--features has no {missing[0]}-224.npz; write it with `python -m benchmarks features`")
    cells = Path(options.cells or Path(options.out) / "cells")
    for folder in (Path(options.out), cells):
        folder.mkdir(parents=True, exist_ok=True)
    results = study(options.sets, options.rows, options.seeds, Path(options.features), cells)
    command = " ".join(["OMP_NUM_THREADS=1 python -m benchmarks human_minutes", *argv])
    text, figures = page(results, limits(options.sets, Path(options.features), cells), command)
    write_json(Path(options.out) / "human_minutes.json", figures)
    write_text(Path(options.out) / "human_minutes.md", text)
    print(text)


def next_class(probs: np.ndarray, judged: np.ndarray, shown: np.ndarray) -> int | None:
    """The class whose grid is worth most: the one with the fewest grids so far, among these the least certain.

    Args:
        probs: predictions of shape (rows, classes).
        judged: of shape (rows,), True for images that a person has judged or that are kept for the audit.
        shown: grids of each class so far, of shape (classes,).
    """
    predicted = np.where(judged, -1, probs.argmax(1))
    doubt = 1 - probs.max(1)
    mean = {cls: float(doubt[predicted == cls].mean()) for cls in np.unique(predicted[predicted >= 0]).tolist()}
    return min(mean, key=lambda cls: (shown[cls], -mean[cls]), default=None)
