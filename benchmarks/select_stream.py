"""Rank a stream of synthetic feature rows as `vcc-infuse select` does: time and memory per row must not grow.

    OMP_NUM_THREADS=1 python -m benchmarks select_stream --out results/select_stream

writes select_stream.json and select_stream.md. Each size runs in its own process, for its own peak memory. Rows are
generated and scored with the closed form of INFUSE chunk by chunk; then all scores are ranked.
Sizes alternate; a time is the median over the rounds, memory the maximum.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vcc_infuse.cli.parser import Parser, integer, number
from vcc_infuse.selectors import INFUSE
from vcc_infuse.selectors.infuse.influence import influence, support_direction
from vcc_infuse.selectors.ranking import Scored, best
from vcc_infuse.training.summary import peak_memory
from vcc_infuse.utils.io import write_json, write_text

CHECKOUT = Path(__file__).parents[1]
SIZES = (1_250_000, 2_500_000, 5_000_000, 10_000_000)
CHUNK = 16_384
THRESHOLD = 0.95
Figures = dict[str, Any]


class Stream:
    """Gaussian classes around a head's own weight vectors; a strong view is the row with more noise."""

    def __init__(self, rows: int, features: int, classes: int) -> None:
        torch.manual_seed(0)
        self.rows = rows
        self.seconds_making = 0.0
        self.head = torch.nn.Linear(features, classes).requires_grad_(False)
        self.head.weight.normal_(std=1.5 / math.sqrt(features))
        y = torch.arange(400) % classes
        labeled = self.head.weight[y] * 4 + torch.randn(400, features)
        self.direction = support_direction(labeled, y, head=(self.head.weight, self.head.bias))

    def __iter__(self) -> Iterator[Scored]:
        """Scored rows, chunk by chunk."""
        for start in range(0, self.rows, CHUNK):
            ids = np.arange(start, min(start + CHUNK, self.rows))
            began = time.process_time()
            plain = self.head.weight[torch.randint(self.head.out_features, (len(ids),))] * 4
            plain = plain + torch.randn_like(plain)
            strong = plain + 0.5 * torch.randn_like(plain)
            self.seconds_making += time.process_time() - began
            yield self.scored(ids, plain, strong)

    def scored(self, ids: np.ndarray, plain: torch.Tensor, strong: torch.Tensor) -> Scored:
        """Plain and strong views of shape (rows, features), scored as INFUSE does."""
        confidence, labels = self.head(plain).softmax(1).max(1)
        selected = confidence >= THRESHOLD
        logits = self.head(strong)
        change = influence(strong, logits, targets=labels, direction=self.direction, weights=selected.float())
        value = INFUSE().value(change)
        return Scored(ids, value.numpy(), selected.numpy(), confidence.numpy(), labels.numpy())


def measure(rows: int, features: int, classes: int, keep: float) -> Figures:
    """One size, in this process."""
    torch.set_num_threads(1)
    before = peak_memory()
    stream = Stream(rows, features, classes)
    began = time.perf_counter()
    cpu_began = time.process_time()
    scored = Scored.concat(list(stream))
    kept = scored.take(best(scored, round(keep * rows), "none", classes))
    wall = time.perf_counter() - began
    cpu = time.process_time() - cpu_began
    assert len(np.unique(kept.ids)) == round(keep * rows)
    return {
        "rows": rows, "kept": len(kept.ids), "kept_confident": int(kept.selected.sum()), "seconds": wall,
        "seconds_cpu": cpu, "seconds_cpu_making_rows": stream.seconds_making, "rows_per_second": rows / wall,
        "peak_rss_mb": peak_memory(), "rss_after_imports_mb": before,
    }  # fmt: skip


def measure_in_process(rows: int, options: Namespace) -> Figures:
    """One size, in a process of its own."""
    words = [f"--{name}={getattr(options, name)}" for name in ("features", "classes", "keep")]
    command = [sys.executable, "-m", "benchmarks", "select_stream", f"--one={rows}", *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT).stdout
    figures: Figures = json.loads(printed)
    return figures


def summarize(runs: tuple[Figures, ...]) -> Figures:
    """Medians; for memory the maximum."""
    pick = {name: max if "rss" in name else statistics.median for name in runs[0]}
    return {name: choose(run[name] for run in runs) for name, choose in pick.items()}


def table(sizes: list[Figures], command: str, options: Namespace) -> str:
    """The Markdown page."""
    first = sizes[0]
    last = sizes[-1]
    times = last["seconds_cpu"] / first["seconds_cpu"]
    size = last["rows"] / first["rows"]
    head = (
        f"Ranking synthetic rows of {options.features} features and {options.classes} classes in a stream, "
        f"{options.keep:.0%} kept, one thread, each size in its own process, median of {options.rounds}."
        f"\n\n    {command}\n\n"
        "| rows | seconds | rows per second | CPU seconds | of which generating rows "
        "| CPU µs per row | peak memory, MB | imports, MB |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    lines = [
        f"| {r['rows']:,} | {r['seconds']:.1f} | {r['rows_per_second']:,.0f} "
        f"| {r['seconds_cpu']:.1f} | {r['seconds_cpu_making_rows']:.1f} "
        f"| {r['seconds_cpu'] / r['rows'] * 1e6:.2f} | {r['peak_rss_mb']:.0f} | {r['rss_after_imports_mb']:.0f} |\n"
        for r in sizes
    ]
    return head + "".join(lines) + f"\n{size:g} times the rows took {times:.2f} times the CPU time.\n"


def main(argv: Sequence[str]) -> None:
    """Measure all sizes in turns and write the table."""
    parser = Parser("python -m benchmarks select_stream", "Rank a stream of synthetic feature rows.")
    parser.add_argument("--rows", type=integer(), nargs="+", default=SIZES, help="sizes of the pool")
    parser.add_argument("--features", type=integer(), default=64, help="features of a row (64)")
    parser.add_argument("--classes", type=integer(2), default=10, help="number of classes (10)")
    parser.add_argument("--keep", type=number(0, 1, open_low=True), default=0.1, help="fraction to keep (0.1)")
    parser.add_argument("--rounds", type=integer(), default=3, help="runs of each size (3)")
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    parser.add_argument("--one", type=integer(), help="measure this size here and print it as JSON")
    options = parser.read(argv)
    if options.one:
        print(json.dumps(measure(options.one, options.features, options.classes, options.keep)))
        return
    rounds = [[measure_in_process(rows, options) for rows in options.rows] for _ in range(options.rounds)]
    sizes = [summarize(runs) for runs in zip(*rounds, strict=True)]
    command = " ".join(["OMP_NUM_THREADS=1 python -m benchmarks select_stream", *argv])
    text = table(sizes, command, options)
    print(text)
    if options.out:
        base = Path(options.out).with_suffix("")
        write_json(base.with_suffix(".json"), {"command": command, "sizes": sizes, "rounds": rounds})
        write_text(base.with_suffix(".md"), text)
