"""Many small steps: does memory grow?

    python tools/reliability/soak.py                      20,000 steps → results/reliability/soak.json
    python tools/reliability/soak.py --steps 500 --out /tmp/soak.json

FixMatch with INFUSE trains an MLP on digits, with evaluations, checkpoints and new core sets on the way. The
resident memory is sampled 200 times. What counts is the median of the last tenth of the samples over the median of the
tenth that follows the warm-up, which is the first fifth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from vcc_infuse import INFUSE, MLP, FixMatch, Trainer
from vcc_infuse.data.ssl_data import load_ssl
from vcc_infuse.runs.folder import versions
from vcc_infuse.utils.io import write_json

ROOT = Path(__file__).parents[2]
SAMPLES, WARM_UP, PART = 200, 0.2, 0.1


def resident() -> float:
    """Megabytes of this process in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(samples: list[float]) -> float:
    """The last part over the part after the warm-up, minus 1."""
    count = max(1, int(PART * len(samples)))
    start = int(WARM_UP * len(samples))
    return statistics.median(samples[-count:]) / statistics.median(samples[start : start + count]) - 1


def soak(steps: int) -> dict[str, Any]:
    """Train, and sample the memory, open files and threads."""
    memory: list[float] = []
    files: list[int] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        every = max(1, steps // 20)
        trainer = Trainer(
            MLP(hidden=(16,)), FixMatch(), None, INFUSE(keep=1.0, every=every), steps=steps, eval_every=every,
            batch_size=4, unlabeled_ratio=2, out=f"{folder}/run", progress=False, report=False, device="cpu",
        )  # fmt: skip
        step = trainer.train_step

        def sampled(number: int) -> None:
            step(number)
            if number % max(1, steps // SAMPLES) == 0:
                memory.append(resident())
                files.append(len(os.listdir("/proc/self/fd")))

        trainer.train_step = sampled  # type: ignore[method-assign]
        summary = trainer.fit(load_ssl("digits", labels=40, progress=False))
    return {
        "steps": steps, "growth": growth(memory), "megabytes": [round(value, 1) for value in memory],
        "open_files_first_last": [files[len(files) // 5], files[-1]], "error": summary["error"],
        "warnings": summary["warnings"], "seconds": round(time.perf_counter() - began), "versions": versions(),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=ROOT / "results/reliability/soak.json")
    chosen = parser.parse_args()
    found = {"command": f"python tools/reliability/soak.py --steps {chosen.steps}", **soak(chosen.steps)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out, found)
    print(f"{chosen.steps} steps: memory grew by {100 * found['growth']:.2f} % after the warm-up")
