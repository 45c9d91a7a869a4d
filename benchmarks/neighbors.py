"""`python -m benchmarks neighbors`: what the graph of nearest rows finds of what an exact search finds, and its time.

Also near copies by likely pairs against all pairs, and the gradient of AlignedINFUSE with many classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.pool_audit import find_duplicates, unit_rows
from vcc_infuse.selectors.infuse.aligned import sum_over_classes
from vcc_infuse.selectors.pool import mean_gradient
from vcc_infuse.utils.neighbors import DIRECTIONS, NearestRows, nearest_of_all

from .page import Part, Table, write
from .pool_growth_jobs import features

PROG = "python -m benchmarks neighbors"
COUNT = 10
QUERIES = 1000
CLASSES = (10, 100, 1000)
EXACT = 10**9
REMARK = "CPU seconds of one thread. Recall: the share of the ten exact nearest rows that the graph finds."
Row = list[str | float]
T = TypeVar("T")


def main(argv: Sequence[str]) -> None:
    """Write neighbors.json and neighbors.md."""
    parser = Parser(PROG, "The graph of nearest rows against exact search.")
    parser.add_argument("--rows", type=integer(2000), nargs="+", default=[20_000, 50_000, 100_000], help="made-up rows")
    parser.add_argument("--features", nargs="*", default=[], help="files of `benchmarks features`")
    parser.add_argument("--out", default="results/growth", help="folder of the files (results/growth)")
    options = parser.read(argv)
    torch.set_num_threads(1)
    part = Part("neighbors", "Nearest rows and near copies: graph against all pairs", remark=REMARK)
    part.tables = [neighbors_table(options.rows, options.features), classes_table()]
    if options.features:
        part.tables.append(copies_table(options.features))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    print(write(part, folder, f"OMP_NUM_THREADS=1 {' '.join([PROG, *argv])}"))


def neighbors_table(sizes: Sequence[int], files: Sequence[str]) -> Table:
    """Made-up rows of two kinds, and every view of real images."""
    sets = {f"made up, noise {noise}, {size:,}": features(size, noise=noise) for noise in (0.4, 0.8) for size in sizes}
    for name in files:
        views = np.load(name)["train"]
        sets[f"{Path(name).stem}, all views, {views.shape[0] * views.shape[1]:,}"] = unit_rows(
            views.reshape(-1, views.shape[2])
        )
    rows = [[name, *neighbors_row(torch.from_numpy(x))] for name, x in sets.items()]
    columns = ("rows", "width", "exact, all rows (from 1,000)", "graph, all rows", "recall")
    return Table("Ten nearest of every row", columns, rows)


def neighbors_row(x: Tensor) -> Row:
    """Of more than 256 numbers the graph takes the main directions, and candidates are compared in full."""
    few = torch.linspace(0, len(x) - 1, QUERIES).long()
    exact_seconds, truth = timed(lambda: NearestRows(x, exact_up_to=EXACT).of(x[few], COUNT))
    graph_seconds, found = timed(
        lambda: nearest_of_all(x, COUNT) if x.shape[1] > DIRECTIONS else NearestRows(x, exact_up_to=0).of(x, COUNT)
    )
    recall = (found[few][:, :, None] == truth[:, None]).any(1).float().mean()
    return [x.shape[1], round(exact_seconds * len(x) / QUERIES, 1), round(graph_seconds, 1), f"{recall:.3f}"]


def copies_table(files: Sequence[str]) -> Table:
    """Plain and weak views of real images: a weak view often is a near copy."""
    rows: list[Row] = []
    for name in files:
        views = np.load(name)["train"][:4000, :3]
        x = unit_rows(views.reshape(-1, views.shape[2])).astype(np.float16)
        seconds, exact = timed(partial(find_duplicates, x, exact_up_to=EXACT))
        fast, likely = timed(partial(find_duplicates, x, exact_up_to=0))
        has = exact.partner >= 0
        same = (likely.partner == exact.partner)[has].mean()
        group = (likely.group == exact.group).mean()
        rows.append([Path(name).stem, len(x), int(has.sum()), round(seconds, 1), round(fast, 1), f"{same:.4f}",
                     f"{group:.4f}"])  # fmt: skip
    columns = ("set", "rows", "with a copy", "all pairs", "likely pairs", "same most similar copy", "same group")
    return Table("Near copies, plain and weak views of real images", columns, rows)


def classes_table() -> Table:
    """The sum over classes of AlignedINFUSE, 4,096 rows of width 1,280, in turns with one gradient per class."""
    rows: list[Row] = []
    for classes in CLASSES:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4096, 1280, generator=generator)
        errors = torch.randn(4096, classes, generator=generator)
        labels = torch.randint(0, classes, (4096,), generator=generator)
        slow, expected = timed(partial(one_by_one, errors, x, labels))
        fast, found = timed(partial(sum_over_classes, errors, x, labels))
        rows.append([classes, round(slow, 2), round(fast, 2), f"{float((found - expected).abs().max()):.1e}"])
    columns = ("classes", "one gradient per class", "by lengths", "largest difference")
    return Table("AlignedINFUSE: gradients of all classes, 4,096 rows of width 1,280", columns, rows)


def one_by_one(errors: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """Classes² × width: every class has a gradient of the size of the head."""
    total = errors.new_zeros(errors.shape[1], x.shape[1] + 1)
    for label in torch.unique(labels):
        gradient = mean_gradient(errors[labels == label], x[labels == label])
        total += F.normalize(gradient.flatten(), dim=0).view_as(gradient)
    return total


def timed(job: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, and what came out."""
    began = time.process_time()
    result = job()
    return time.process_time() - began, result
