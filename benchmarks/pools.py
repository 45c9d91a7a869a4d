"""Messy pools: unknown images, copies, wrong labels, class shares, what to label next, and how many more.

    OMP_NUM_THREADS=1 python -m benchmarks pools unknown labels --features FOLDER --sets stl10-224 --seeds 10

reads FOLDER/SET.npz, which `python -m benchmarks features` makes: `train` (rows, views, width) with the plain view
first, or (rows, width), `train_y`, `test` and `test_y`. It writes OUT/PART.json and OUT/PART.md. `copies` reads a zip
of images instead, `growth` nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.special import logsumexp, softmax

from vcc_infuse import pool_audit
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.metrics import auroc
from vcc_infuse.training.summary import peak_memory

from .features import flip
from .page import Part, Table, write
from .pool_copies import measure_copies
from .pool_features import Features, enough, load
from .pool_suggest import measure_suggest, measure_suggest_ssl

PROG = "python -m benchmarks pools"
REMARK = "Frozen features, standardized on the whole pool and scaled to unit length. Means over seeds."
LABELS = (4, 10, 25)
Row = list[str | float]


def measure_unknown(sets: Sequence[Features], seeds: int) -> list[Table]:
    """AUROC of classes without labels, and how often known ones are called foreign."""
    rows = [unknown_row(data, count, seeds) for data in sets for count in LABELS if enough(data, count)]
    columns = ("set", "known classes", "labels per class", "AUROC", "three nearest labels alone", "energy",
               "most likely class", "known with p ≤ .05", "foreign with p ≤ .05")  # fmt: skip
    title = "Classes left out of the labels: distances to labels and class means against scores of a ridge head"
    return [Table(title, columns, rows)]


def unknown_row(data: Features, count: int, seeds: int) -> Row:
    """Means over seeds, each with other classes left out: 40 %, of a hundred classes 20 %."""
    known_count = round(data.classes * (0.8 if data.classes >= 100 else 0.6))
    values = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        known = np.sort(rng.permutation(data.classes)[:known_count])
        labeled = data.draw(rng, count, known)
        rest = np.setdiff1d(np.arange(len(data.y)), labeled)
        foreign = ~np.isin(data.y[rest], known)
        unknown = pool_audit.find_unknown(data.x[rest], data.x[labeled], data.y[labeled])
        neighbors = pool_audit.find_unknown(data.x[rest], data.x[labeled]).score
        head = pool_audit.fit_ridge(data.x[labeled], np.searchsorted(known, data.y[labeled]), known_count)
        scores = head.scores(data.x[rest]) / head.temperature
        others = (-logsumexp(scores, axis=1), -softmax(scores, axis=1).max(1))
        rates = ((unknown.p[~foreign] <= 0.05).mean(), (unknown.p[foreign] <= 0.05).mean())
        values.append(
            [auroc(score, foreign) for score in (unknown.score, neighbors, *others)] + [float(rate) for rate in rates]
        )
    return [data.name, f"{known_count} of {data.classes}", count, *rounded(values)]


def measure_labels(sets: Sequence[Features], seeds: int) -> list[Table]:
    """Flipped labels: precision among as many as were flipped, AUROC, and their estimated share."""
    rows = [labels_row(data, count, rate, seeds) for data in sets for count in (*LABELS, 100)
            if enough(data, count) for rate in (0.0, 0.05, 0.1, 0.2)]  # fmt: skip
    columns = ("set", "labels per class", "flipped", "precision", "AUROC", "precision, margin", "precision, folds",
               "AUROC, folds", "expected share of wrong labels")  # fmt: skip
    return [Table("Flipped labels: leave-one-out of a ridge head by self-confidence, by margin, and five folds of "
                  "logistic regression (up to 25 labels per class)", columns, rows)]  # fmt: skip


def labels_row(data: Features, count: int, rate: float, seeds: int) -> Row:
    """Means over seeds."""
    values = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        labeled = data.draw(rng, count)
        given = flip(data.y[labeled], rate, data.classes, rng)
        wrong = given != data.y[labeled]
        doubts = pool_audit.find_doubtful_labels(data.x[labeled], given, classes=data.classes)
        precision = [first_wrong(doubts.ranking(by), wrong) for by in ("self_confidence", "normalized_margin")]
        folds = [np.nan, np.nan]
        if count <= 25 and wrong.any():
            other = pool_audit.find_doubtful_labels(data.x[labeled], given, classes=data.classes, method="folds")
            folds = [first_wrong(other.ranking(), wrong), auroc(-other.self_confidence, wrong)]
        area = auroc(-doubts.self_confidence, wrong)
        values.append([precision[0], area, precision[1], *folds, float(np.nanmean(doubts.p_wrong))])
    return [data.name, count, f"{rate:.0%}", *rounded(values)]


def first_wrong(ranking: np.ndarray, wrong: np.ndarray) -> float:
    """The share of wrong labels among the first, as many as there are."""
    return float(wrong[ranking[: wrong.sum()]].mean()) if wrong.any() else np.nan


def measure_shares(sets: Sequence[Features], seeds: int) -> list[Table]:
    """Pools of other class shares than the labels."""
    rows = [shares_row(data, count, name, seeds) for data in sets for count in LABELS if enough(data, 2 * count)
            for name in ("equal", "10:1", "1:10")]  # fmt: skip
    columns = ("set", "labels per class", "pool", "equal shares assumed", "mean prediction", "EM", "confusion",
               "interval of 90 % holds")  # fmt: skip
    return [
        Table("Class shares: sum of absolute differences from the true shares, ÷ 2; labels are balanced", columns, rows)
    ]


def shares_row(data: Features, count: int, kind: str, seeds: int) -> Row:
    """Means over seeds."""
    values = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        labeled = data.draw(rng, count)
        pool = skewed(data, np.setdiff1d(np.arange(len(data.y)), labeled), kind, rng)
        truth = np.bincount(data.y[pool], minlength=data.classes) / len(pool)
        labels = data.y[labeled]
        left_out = pool_audit.leave_one_out(data.x[labeled], labels, data.classes)
        probs = pool_audit.fit_ridge(data.x[labeled], labels, data.classes).probs(data.x[pool])
        guesses = [np.full(data.classes, 1 / data.classes), probs.mean(0)]
        estimates = {method: pool_audit.estimate_shares(probs, left_out.probs(), labels, method=method)
                     for method in ("em", "confusion")}  # fmt: skip
        guesses += [estimate.shares for estimate in estimates.values()]
        held = (estimates["em"].low <= truth) & (truth <= estimates["em"].high)
        values.append([float(np.abs(guess - truth).sum() / 2) for guess in guesses] + [float(held.mean())])
    return [data.name, count, kind, *rounded(values)]


def skewed(data: Features, rows: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Rows whose class shares fall geometrically, ten to one from the first class to the last or the other way."""
    ratio = {"equal": 1.0, "10:1": 0.1, "1:10": 10.0}[kind]
    wanted = ratio ** (np.arange(data.classes) / max(data.classes - 1, 1))
    counts = np.bincount(data.y[rows], minlength=data.classes)
    kept = np.maximum(np.floor(wanted * (counts / wanted).min()), 1).astype(int)
    members = [rng.permutation(rows[data.y[rows] == label])[: kept[label]] for label in range(data.classes)]
    return np.concatenate(members)


def measure_curve(sets: Sequence[Features], seeds: int) -> list[Table]:
    """The promised error at twice the labels against the error there on the test set."""
    rows = [curve_row(data, count, seeds) for data in sets for count in LABELS if enough(data, 2 * count)]
    columns = ("set", "labels per class", "error now, promised %", "on test", "at twice, promised", "on test",
               "width of interval", "interval of 90 % holds")  # fmt: skip
    return [Table("Learning curve of a ridge head: the error with twice the labels", columns, rows)]


def curve_row(data: Features, count: int, seeds: int) -> Row:
    """Means over seeds."""
    values = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        twice = data.draw(rng, 2 * count)
        now = twice.reshape(data.classes, 2 * count)[:, :count].ravel()
        curve = pool_audit.learning_curve(data.x[now], data.y[now], classes=data.classes, seed=seed)
        errors = []
        for rows in (now, twice):
            head = pool_audit.fit_ridge(data.x[rows], data.y[rows], data.classes)
            errors.append(float((head.scores(data.test).argmax(1) != data.test_y).mean()))
        double = curve.at_double
        held = float(double.low <= errors[1] <= double.high)
        promised = [100 * curve.now.value, 100 * errors[0], 100 * double.value, 100 * errors[1]]
        values.append([*promised, 100 * (double.high - double.low), held])
    return [data.name, count, *rounded(values, 2)]


def measure_growth(sizes: Sequence[int]) -> list[Table]:
    """Seconds of CPU and peak memory on random features of width 1,280, 100 labels of 10 classes."""
    rows: list[Row] = []
    for size in sizes:
        rng = np.random.default_rng(0)
        classes = rng.normal(size=(10, 1280)).astype(np.float32)
        y = rng.integers(0, 10, size)
        x = np.empty((size, 1280), np.float16)
        for start in range(0, size, 10_000):
            part = slice(start, start + 10_000)
            x[part] = classes[y[part]] + 2 * rng.normal(size=(len(y[part]), 1280)).astype(np.float32)
        labels = np.where(np.arange(size) < 100, y, -1)
        probs = pool_audit.fit_ridge(x[:100], y[:100], 10).probs(x)
        jobs: dict[str, Callable[[], object]] = {
            "find_unknown": lambda x=x, y=y: pool_audit.find_unknown(x, x[:100], y[:100]),  # type: ignore[misc]
            "find_duplicates": lambda x=x: pool_audit.find_duplicates(x),  # type: ignore[misc]
            "estimate_shares": lambda p=probs, y=y: pool_audit.estimate_shares(p, p[:100], y[:100]),  # type: ignore[misc]
            "suggest_labels, none": lambda x=x: pool_audit.suggest_labels(x),  # type: ignore[misc]
            "suggest_labels, 100": lambda x=x, y=labels: pool_audit.suggest_labels(x, y),  # type: ignore[misc]
        }
        rows += [[f"{size:,}", name, *timed(job)] for name, job in jobs.items()]
    columns = ("rows", "function", "CPU seconds", "peak MB of the process so far")
    return [Table("Growth on random features of width 1,280 (float16), one thread", columns, rows)]


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of a job, and the peak memory of the process."""
    began = time.process_time()
    job()
    return round(time.process_time() - began, 2), round(peak_memory() or 0)


def rounded(values: Sequence[Sequence[float]], digits: int = 3) -> Iterator[float]:
    """Means over the first axis."""
    return (round(float(value), digits) for value in np.mean(values, axis=0))


ON_FEATURES: dict[str, Callable[[Sequence[Features], int], list[Table]]] = {
    "unknown": measure_unknown,
    "labels": measure_labels,
    "suggest": measure_suggest,
    "shares": measure_shares,
    "curve": measure_curve,
}
PARTS = (*ON_FEATURES, "suggest_ssl", "copies", "growth")


def main(argv: Sequence[str]) -> None:
    """Measure the named parts and write their tables."""
    options = read(argv)
    command = " ".join(["OMP_NUM_THREADS=1", PROG, *argv])
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        print(write(Part(name, f"Pools: {name}", tables=tables_of(name, options), remark=REMARK), folder, command))


def read(argv: Sequence[str]) -> Namespace:
    """Read and check the options."""
    parser = Parser(PROG, f"Measure what is said about messy pools: {', '.join(PARTS)}.")
    parser.add_argument("parts", nargs="+", metavar="PART", help="what to measure")
    parser.add_argument("--features", type=Path, default=Path("features"), help="folder of SET.npz (features)")
    parser.add_argument("--sets", nargs="+", default=["stl10-224"], help="which of them (stl10-224)")
    parser.add_argument("--seeds", type=integer(), default=10, help="draws of labels (10)")
    parser.add_argument("--images", type=Path, default=Path("stl10.zip"), help="zip of images for copies")
    parser.add_argument("--sizes", type=integer(), nargs="+", default=[96, 224], help="pixels of copies (96 224)")
    parser.add_argument("--count", type=integer(2), default=300, help="images that copies are made of (300)")
    parser.add_argument("--rows", type=integer(1000), nargs="+", default=[10**4, 10**5], help="rows of growth")
    parser.add_argument("--out", default="results/pools", help="folder of the JSON and Markdown files (results/pools)")
    options = parser.read(argv)
    for name in options.parts:
        if name not in PARTS:
            raise UserError(f"{name} is not a part of pools; choose one of {', '.join(PARTS)}")
    return options


def tables_of(name: str, options: Namespace) -> list[Table]:
    """The tables of a part."""
    if name == "copies":
        return measure_copies(options.images, options.sizes, options.count)
    if name == "growth":
        return measure_growth(options.rows)
    sets = [load(options.features / f"{name}.npz") for name in options.sets]
    if name == "suggest_ssl":
        return measure_suggest_ssl(sets, options.seeds, options.features)
    return ON_FEATURES[name](sets, options.seeds)
