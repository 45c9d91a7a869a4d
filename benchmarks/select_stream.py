"""Rank a stream of synthetic feature rows as `vcc-infuse select` does: time and memory per row must not grow.

    OMP_NUM_THREADS=1 python benchmarks/select_stream.py --out results/select_stream

writes select_stream.json and select_stream.md. Each size runs in its own process, for its own peak memory. Rows are
generated and scored with the closed form of INFUSE chunk by chunk; then all scores are ranked.
Sizes alternate; a time is the median over the rounds, memory the maximum.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from vcc_infuse.selectors import INFUSE
from vcc_infuse.selectors.infuse.influence import influence, support_direction
from vcc_infuse.selectors.ranking import Scored, best
from vcc_infuse.training.summary import peak_memory
from vcc_infuse.utils.io import write_json, write_text

SIZES = (1_250_000, 2_500_000, 5_000_000, 10_000_000)
CHUNK, THRESHOLD = 16_384, 0.95


class Stream:
    """Gaussian classes around a head's own weight vectors; a strong view is the row with more noise."""

    def __init__(self, rows: int, features: int, classes: int) -> None:
        torch.manual_seed(0)
        self.rows, self.making = rows, 0.0
        self.head = torch.nn.Linear(features, classes).requires_grad_(False)
        self.head.weight.normal_(std=1.5 / math.sqrt(features))
        y = torch.arange(400) % classes
        labeled = self.head.weight[y] * 4 + torch.randn(400, features)
        self.direction = support_direction(labeled, y, head=(self.head.weight, self.head.bias))

    def __iter__(self) -> Iterator[Scored]:
        for start in range(0, self.rows, CHUNK):
            ids = np.arange(start, min(start + CHUNK, self.rows))
            began = time.process_time()
            plain = self.head.weight[torch.randint(self.head.out_features, (len(ids),))] * 4
            plain = plain + torch.randn_like(plain)
            strong = plain + 0.5 * torch.randn_like(plain)
            self.making += time.process_time() - began
            yield self.scored(ids, plain, strong)

    def scored(self, ids: np.ndarray, plain: torch.Tensor, strong: torch.Tensor) -> Scored:
        confidence, labels = self.head(plain).softmax(1).max(1)
        selected = confidence >= THRESHOLD
        logits = self.head(strong)
        change = influence(strong, logits, targets=labels, direction=self.direction, weights=selected.float())
        value = INFUSE().value(change)
        return Scored(ids, value.numpy(), selected.numpy(), confidence.numpy(), labels.numpy())


def measure(rows: int, features: int, classes: int, keep: float) -> dict[str, float]:
    """One size, in this process."""
    torch.set_num_threads(1)
    before, stream = peak_memory(), Stream(rows, features, classes)
    wall, cpu = time.perf_counter(), time.process_time()
    scored = Scored.concat(list(stream))
    kept = scored.take(best(scored, round(keep * rows), "none", classes))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(np.unique(kept.ids)) == round(keep * rows)
    return {
        "rows": rows, "kept": len(kept.ids), "kept_confident": int(kept.selected.sum()), "seconds": wall,
        "seconds_cpu": cpu, "seconds_cpu_making_rows": stream.making, "rows_per_second": rows / wall,
        "peak_rss_mb": peak_memory(), "rss_after_imports_mb": before,
    }  # fmt: skip


def measure_in_process(rows: int, options: argparse.Namespace) -> dict[str, float]:
    """One size, in a process of its own."""
    words = [f"--{name}={getattr(options, name)}" for name in ("features", "classes", "keep")]
    command = [sys.executable, __file__, f"--one={rows}", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def summarize(runs: tuple[dict[str, float], ...]) -> dict[str, float]:
    """Medians; for memory the maximum."""
    pick = {name: max if "rss" in name else statistics.median for name in runs[0]}
    return {name: choose(run[name] for run in runs) for name, choose in pick.items()}


def table(found: list[dict[str, float]], command: str, options: argparse.Namespace) -> str:
    first, last = found[0], found[-1]
    times, size = last["seconds_cpu"] / first["seconds_cpu"], last["rows"] / first["rows"]
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
        for r in found
    ]
    return head + "".join(lines) + f"\n{size:g} times the rows took {times:.2f} times the CPU time.\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    parser.add_argument("--one", type=int, help="measure this size here and print it as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.features, options.classes, options.keep)))
        return
    rounds = [[measure_in_process(rows, options) for rows in options.rows] for _ in range(options.rounds)]
    found = [summarize(runs) for runs in zip(*rounds, strict=True)]
    command = " ".join(["OMP_NUM_THREADS=1 python", *sys.argv])
    text = table(found, command, options)
    print(text)
    if options.out:
        base = Path(options.out).with_suffix("")
        write_json(base.with_suffix(".json"), {"command": command, "sizes": found, "rounds": rounds})
        write_text(base.with_suffix(".md"), text)


if __name__ == "__main__":
    main()
