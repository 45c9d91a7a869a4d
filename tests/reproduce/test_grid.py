"""Grids on real, tiny runs: skipping, resuming, failing, being killed, and running on Ray."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vcc_infuse.reproduce import Cell, run_grid
from vcc_infuse.reproduce.scales import setting

FIGURES = ("error", "ece", "nll", "ece_calibrated", "steps")


def cells(*methods: str, seeds: int = 1) -> list[Cell]:
    return [Cell({**setting("smoke", "digits", 40), "algorithm": m, "seed": s}) for s in range(seeds) for m in methods]


def figures(folder: Path) -> dict[str, list[float]]:
    """What must not depend on the way a grid was run."""
    found = {}
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        found[path.parent.name] = [summary[name] for name in FIGURES]
    return found


def test_finished_cells_are_skipped_and_a_failure_does_not_stop_the_rest(tmp_path: Path) -> None:
    good, bad = cells("FixMatch"), cells("Supervised")[0]
    broken = Cell({**bad.options, "lr": -1.0})
    failures = run_grid([broken, *good, *good], tmp_path)
    assert [failure.cell for failure in failures] == [broken]
    assert "--lr must be" in str(failures[0].fault)
    summary = good[0].folder(tmp_path) / "summary.json"
    before = summary.stat().st_mtime_ns
    assert run_grid(good, tmp_path) == []
    assert summary.stat().st_mtime_ns == before


def test_two_jobs_give_what_one_gives(tmp_path: Path) -> None:
    todo = cells("FixMatch", "Supervised", "FlexMatch")
    assert run_grid(todo, tmp_path / "one", jobs=1) == []
    assert run_grid(todo, tmp_path / "two", jobs=2) == []
    one, two = figures(tmp_path / "one"), figures(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, values in one.items():  # not bit for bit: one job has all cores, and sums in another order
        assert values == pytest.approx(two[name], rel=1e-4, abs=1e-6)


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["reproduce", "ablation-vae", "--scale", "smoke", "--seeds", "2"]
    command = [sys.executable, "-m", "vcc_infuse", *words, "--cells", str(folder / "cells"), "--out", str(folder)]
    return subprocess.Popen(command, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_killed_at_any_moment_it_ends_with_the_same_table(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    for finished in (1, 3, 6):
        process = start(killed)
        while process.poll() is None and len(figures(killed / "cells")) < finished:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(figures(killed / "cells")) < 8
    assert start(killed).wait() == 0
    assert figures(killed / "cells") == figures(whole / "cells")
    entries = [json.loads((f / "ablation-vae-smoke.json").read_text())["entries"] for f in (whole, killed)]
    assert [e["by_seed"] for e in entries[0]] == [e["by_seed"] for e in entries[1]]


KILLER = """
import os, signal
from pathlib import Path
from vcc_infuse.algorithms import FixMatch
from vcc_infuse.reproduce import Cell, run_grid
from vcc_infuse.reproduce.settings import setting


class Killer(FixMatch):
    def setup(self, model, task):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    names = ["killer.Killer", "FixMatch", "Supervised", "FlexMatch"]
    cells = [Cell({**setting("smoke", "digits", 40), "algorithm": name, "seed": 0}) for name in names]
    for failure in run_grid(cells, Path("cells"), jobs=2):
        print(failure.cell.options["algorithm"], failure.fault)
"""


def test_a_cell_that_kills_its_worker_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    grid = [sys.executable, "killer.py"]
    told = subprocess.run(grid, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300).stdout
    assert told.count("its worker was killed, even alone") == 1
    assert told.startswith("killer.Killer")
    assert len(figures(tmp_path / "cells")) == 3


@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_clusters_give_the_same(backend: str, package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'vcc-infuse[{backend}]'")
    command = "reproduce ablation-vae --scale smoke --seeds 1 --jobs 2 --out".split()
    for name, words in ((backend, ["--backend", backend]), ("here", [])):
        where = tmp_path / name
        grid = [sys.executable, "-m", "vcc_infuse", *command, str(where), "--cells", str(where / "cells"), *words]
        # A process of its own: both leave servers behind that live as long as their process.
        subprocess.run(grid, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    there, here = (figures(tmp_path / name / "cells") for name in (backend, "here"))
    assert len(here) == 4
    assert there.keys() == here.keys()
    assert all(values == pytest.approx(here[name], rel=1e-4, abs=1e-6) for name, values in there.items())
