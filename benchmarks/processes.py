"""The same run in one process and in two, by the clock on the wall: the point of a second process is to wait less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .page import Part
from .startup import make_photos
from .turns import Maker, Work, take_turns

REMARK = (
    "Median (quartiles) of wall clock over rounds in which the variants take turns. Other work on the machine counts "
    "in full. A ratio is to the first line, in the same round."
)
TRAIN = "train --preset scratch --model SmallConv --labels 40 --size 32 --report false --progress false".split()


def measure_processes(rounds: int, steps: int = 40) -> Part:
    """Steps of 32/224 images; processes share a batch, so every way computes the same gradient."""
    part = Part("processes", "One process and two", remark=REMARK)
    with tempfile.TemporaryDirectory() as folder:
        photos = make_photos(Path(folder) / "photos", side=32)
        makers = {
            "one process, one thread": run(Path(folder), photos, steps, processes=1, threads=1),
            "one process, two threads": run(Path(folder), photos, steps, processes=1, threads=2),
            "two processes, one thread each": run(Path(folder), photos, steps, processes=2, threads=1),
        }
        title = "SmallConv, 32/224 images of 32 px, wall clock of the steps"
        part.comparisons.append(take_turns(title, makers, rounds, warmup=0, per="step", count=steps))
    part.comparisons[0].memory = {}
    return part


def run(folder: Path, photos: Path, steps: int, processes: int, threads: int) -> Maker:
    """Makes a training by the command line; its time is that of the steps, as its summary says."""

    def make() -> Work:
        def work(number: int) -> float:
            out = folder / f"run{processes}-{threads}-{number}"
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
            words = [*TRAIN, "--data", str(photos), "--out", str(out), "--batch_size", "32"]
            words += ["--steps", str(steps), "--eval_every", str(steps)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "VCC_INFUSE_CACHE": str(folder / "cache")}
            command = [sys.executable, *(launcher if processes > 1 else []), "-m", "vcc_infuse", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            return float(json.loads((out / "summary.json").read_text())["seconds_train"])

        return work

    return make
