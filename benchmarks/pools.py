"""Messy pools: unknown images, copies, wrong labels, class shares, what to label next, and how many more.

    OMP_NUM_THREADS=1 python -m benchmarks pools unknown labels --features FOLDER --sets stl10-224 --seeds 10

reads FOLDER/SET.npz, which `python -m benchmarks features` makes: `train` (rows, views, width) with the plain view
first, or (rows, width), `train_y`, `test` and `test_y`. It appends each seed to OUT/PART.jsonl, so that a killed study
continues, and writes OUT/PART.json and OUT/PART.md. `copies` reads a zip of images instead,
`curve_seconds` nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import logsumexp, softmax

from vcc_infuse import pool_audit
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.metrics import auroc
from vcc_infuse.pool_audit.curve import curve_in_passing

from .features import flip
from .page import Part, Table, write
from .pool_copies import measure_copies
from .pool_features import Features, enough, load
from .pool_scores import scores_study
from .pool_study import Case, Study, commands, measure, read_runs, table_of
from .pool_suggest import SUGGEST, suggest_ssl

PROG = "python -m benchmarks pools"
REMARK = "Frozen features, standardized on the whole pool and scaled to unit length."
REMARKS = {  # of other parts: mean ± standard deviation over seeds
    "suggest": REMARK,
    "suggest_ssl": REMARK,
    "copies": REMARK,
    "curve_seconds": "Made-up features of width 1,280.",
}
LABELS = (4, 10, 25)
CURVES = ((10, 4), (10, 25), (10, 40), (10, 100), (10, 200), (100, 4), (100, 20))  # classes and labels of each
Row = list[str | float]


def by_count(data: Features) -> list[Case]:
    """Labels per class."""
    return [(count,) for count in LABELS if enough(data, count)]


def unknown_values(data: Features, case: Case, seed: int) -> list[float]:
    """Each seed leaves other classes out: 40 %, of a hundred classes 20 %."""
    known_count = round(data.classes * (0.8 if data.classes >= 100 else 0.6))
    rng = np.random.default_rng(seed)
    known = np.sort(rng.permutation(data.classes)[:known_count])
    labeled = data.draw(rng, int(case[0]), known)
    rest = np.setdiff1d(np.arange(len(data.y)), labeled)
    foreign = ~np.isin(data.y[rest], known)
    unknown = pool_audit.find_unknown(data.x[rest], data.x[labeled], data.y[labeled])
    neighbors = pool_audit.find_unknown(data.x[rest], data.x[labeled]).score
    head = pool_audit.fit_ridge(data.x[labeled], np.searchsorted(known, data.y[labeled]), known_count)
    scores = head.scores(data.x[rest]) / head.temperature
    others = (-logsumexp(scores, axis=1), -softmax(scores, axis=1).max(1))
    rates = ((unknown.p[~foreign] <= 0.05).mean(), (unknown.p[foreign] <= 0.05).mean())
    return [auroc(score, foreign) for score in (unknown.score, neighbors, *others)] + [float(rate) for rate in rates]


def label_cases(data: Features) -> list[Case]:
    """Labels per class and the share of them that is flipped."""
    return [(count, rate) for count in (*LABELS, 100) if enough(data, count) for rate in ("0 %", "5 %", "10 %", "20 %")]


def label_values(data: Features, case: Case, seed: int) -> list[float]:
    """Precision among as many as were flipped, AUROC, and their estimated share."""
    count = int(case[0])
    rate = int(str(case[1]).removesuffix(" %")) / 100
    rng = np.random.default_rng(seed)
    labeled = data.draw(rng, count)
    given = flip(data.y[labeled], rate, data.classes, rng)
    wrong = given != data.y[labeled]
    doubts = pool_audit.find_doubtful_labels(data.x[labeled], given, classes=data.classes)
    precision = [first_wrong(doubts.ranking(by), wrong) for by in ("self_confidence", "normalized_margin")]
    area = auroc(-doubts.self_confidence, wrong)
    return [precision[0], area, precision[1], float(np.nanmean(doubts.p_wrong))]


def first_wrong(ranking: np.ndarray, wrong: np.ndarray) -> float:
    """The share of wrong labels among the first, as many as there are."""
    return float(wrong[ranking[: wrong.sum()]].mean()) if wrong.any() else np.nan


def share_cases(data: Features) -> list[Case]:
    """Labels per class and the kind of pool."""
    return [(count, kind) for count in LABELS if enough(data, 2 * count) for kind in ("equal", "10:1", "1:10")]


def share_values(data: Features, case: Case, seed: int) -> list[float]:
    """How far guesses are from the true shares, and whether the intervals hold."""
    rng = np.random.default_rng(seed)
    labeled = data.draw(rng, int(case[0]))
    pool = skewed(data, np.setdiff1d(np.arange(len(data.y)), labeled), str(case[1]), rng)
    truth = np.bincount(data.y[pool], minlength=data.classes) / len(pool)
    labels = data.y[labeled]
    left_out = pool_audit.leave_one_out(data.x[labeled], labels, data.classes)
    probs = pool_audit.fit_ridge(data.x[labeled], labels, data.classes).probs(data.x[pool])
    guesses = [np.full(data.classes, 1 / data.classes), probs.mean(0)]
    estimates = {method: pool_audit.estimate_shares(probs, left_out.probs(), labels, method=method)
                 for method in ("em", "confusion")}  # fmt: skip
    guesses += [estimate.shares for estimate in estimates.values()]
    held = (estimates["em"].low <= truth) & (truth <= estimates["em"].high)
    return [float(np.abs(guess - truth).sum() / 2) for guess in guesses] + [float(held.mean())]


def skewed(data: Features, rows: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Rows whose class shares fall geometrically, ten to one from the first class to the last or the other way."""
    ratio = {"equal": 1.0, "10:1": 0.1, "1:10": 10.0}[kind]
    wanted = ratio ** (np.arange(data.classes) / max(data.classes - 1, 1))
    counts = np.bincount(data.y[rows], minlength=data.classes)
    kept = np.maximum(np.floor(wanted * (counts / wanted).min()), 1).astype(int)
    members = [rng.permutation(rows[data.y[rows] == label])[: kept[label]] for label in range(data.classes)]
    return np.concatenate(members)


def curve_values(data: Features, case: Case, seed: int) -> list[float]:
    """What the learning curve promises, and what the test images say."""
    count = int(case[0])
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
    return [*promised, 100 * (double.high - double.low), held]


def measure_curve_seconds() -> list[Table]:
    """What the learning curve in the summary of a run costs, on random features of width 1,280."""
    rows: list[Row] = []
    for classes, each in CURVES:
        rng = np.random.default_rng(0)
        y = np.arange(classes).repeat(each)
        x = pool_audit.unit_rows(rng.normal(size=(classes, 1280))[y] + 3 * rng.normal(size=(len(y), 1280)))
        began = time.process_time()
        found = curve_in_passing(x, y, classes)
        rows.append([classes, each, f"{len(y):,}", round(time.process_time() - began, 2), len(found["sizes"])])
    columns = ("classes", "labels per class", "labels", "CPU seconds", "sizes of subsets")
    return [Table("The learning curve in the summary of a run, one thread", columns, rows)]


STUDIES: dict[str, Study] = {
    "unknown": Study(
        by_count,
        unknown_values,
        table_of(
            "Classes left out of the labels, 4 of 10 or 20 of 100: AUROC of distances to labels and class means against"
            " scores of a ridge head",
            ("labels per class", "AUROC", "three nearest labels alone", "energy", "most likely class",
             "known with p ≤ .05", "foreign with p ≤ .05"),
        ),
    ),
    "labels": Study(
        label_cases,
        label_values,
        table_of(
            "Flipped labels: leave-one-out of a ridge head, ranked by self-confidence and by margin",
            ("labels per class", "flipped", "precision", "AUROC", "precision, margin",
             "expected share of wrong labels"),
        ),
    ),
    "shares": Study(
        share_cases,
        share_values,
        table_of(
            "Class shares: sum of absolute differences from the true shares, ÷ 2; labels are balanced",
            ("labels per class", "pool", "equal shares assumed", "mean prediction", "EM", "confusion",
             "interval of 90 % holds"),
        ),
    ),
    "curve": Study(
        lambda data: [case for case in by_count(data) if enough(data, 2 * int(case[0]))],
        curve_values,
        table_of(
            "Learning curve of a ridge head: the error with twice the labels",
            ("labels per class", "error now, promised %", "on test", "at twice, promised", "on test",
             "width of interval", "interval of 90 % holds"),
            2,
        ),
    ),
    "suggest": SUGGEST,
}  # fmt: skip
WITH_FOLDER = {"suggest_ssl": suggest_ssl, "unknown_scores": scores_study}  # which read more than plain views
PARTS = (*STUDIES, *WITH_FOLDER, "copies", "curve_seconds")


def main(argv: Sequence[str]) -> None:
    """Measure the named parts and write their tables."""
    options = read(argv)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        command = " ".join(["OMP_NUM_THREADS=1", PROG, *argv])
        if name == "curve_seconds":
            tables = measure_curve_seconds()
        elif name == "copies":
            tables = measure_copies(options.images, options.sizes, options.count)
        else:
            tables, command = on_features(name, options, folder / f"{name}.jsonl")
        remark = REMARKS.get(name, f"{REMARK} Mean ± standard deviation over seeds.")
        print(write(Part(name, f"Pools: {name}", tables=tables, remark=remark), folder, command))


def on_features(name: str, options: Namespace, log: Path) -> tuple[list[Table], str]:
    """Measure what is missing of a study; its tables and the commands that repeat them."""
    study = WITH_FOLDER[name](options.features) if name in WITH_FOLDER else STUDIES[name]
    for path in (options.features / f"{chosen}.npz" for chosen in options.sets):
        measure(study, load(path), options.seeds, log)
    runs = read_runs(log)
    return study.tables(runs), "\n    ".join(commands(PROG, name, runs))


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
    parser.add_argument("--out", default="results/pools", help="folder of the JSON and Markdown files (results/pools)")
    options = parser.read(argv)
    for name in options.parts:
        if name not in PARTS:
            raise UserError(f"{name} is not a part of pools; choose one of {', '.join(PARTS)}")
    return options
