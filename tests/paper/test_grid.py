"""Grids on real, tiny runs: skipping, resuming, failing, being killed, and running on Ray."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from paper import Cell, run_grid
from paper.datasets import check_available
from paper.grid import CHECKOUT, log_path, run_jobs
from paper.scales import run_options
from vcc_infuse import Trainer
from vcc_infuse.cli.main import main
from vcc_infuse.errors import UserError
from vcc_infuse.utils import manifest

METRICS = ("error", "ece", "nll", "ece_calibrated", "steps")


def cells(*methods: str, seeds: int = 1) -> list[Cell]:
    # Not auto: workers might choose bf16, which the fixtures of this process switch off.
    common = run_options("smoke", "digits", 40, precision="fp32")
    return [Cell({**common, "algorithm": m, "seed": s}) for s in range(seeds) for m in methods]


def summaries(folder: Path) -> dict[str, list[float]]:
    """Metrics that must not depend on how a grid was run."""
    found = {}
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        found[path.parent.name] = [summary[name] for name in METRICS]
    return found


def test_finished_cells_are_skipped_and_a_failure_does_not_stop_the_rest(tmp_path: Path) -> None:
    good, bad = cells("FixMatch"), cells("Supervised")[0]
    broken = Cell({**bad.options, "lr": -1.0})
    failures = run_grid([broken, *good, *good], tmp_path)
    assert [failure.cell for failure in failures] == [broken]
    assert str(failures[0].error).startswith("lr must be")
    summary = good[0].folder(tmp_path) / "summary.json"
    assert json.loads(summary.read_text())["seconds_cpu"] > 0
    manifest.check(summary.parent, ["summary.json"])
    before = summary.stat().st_mtime_ns
    assert run_grid(good, tmp_path) == []
    assert summary.stat().st_mtime_ns == before


def test_an_interrupted_cell_is_resumed_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = cells("FlexMatch")
    assert run_grid([cell], tmp_path / "whole") == []
    taken: list[int] = []

    def train_step(trainer: Trainer, number: int) -> None:
        if len(taken) == 3:  # after the evaluation at step 2, before the last one
            taken.append(number)
            raise RuntimeError("out of luck")
        taken.append(number)
        original(trainer, number)

    original = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", train_step)
    (failure,) = run_grid([cell], tmp_path / "torn")
    assert str(failure.error).startswith("RuntimeError: out of luck; see ")
    assert "Traceback" in log_path(cell, tmp_path / "torn").read_text()
    assert summaries(tmp_path / "torn") == {}
    assert run_grid([cell], tmp_path / "torn") == []
    assert taken == [0, 1, 2, 3, 2, 3]
    assert summaries(tmp_path / "torn") == summaries(tmp_path / "whole")
    weights = [load_file(cell.folder(tmp_path / name) / "model.safetensors") for name in ("whole", "torn")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_config_file_is_enough_to_repeat_a_cell(tmp_path: Path) -> None:
    """Not only the plain options: the arguments of a model, a calibrator and a selector, and a long tail."""
    common = run_options(
        "smoke", "digits", None, **{"long_tail.first": 20, "long_tail.gamma": 4, "long_tail.beta": 0.5}
    )
    plugins = {"calibrator": "VCC", "calibrator.scores": ["view"], "selector": "INFUSE", "selector.rank": "printed"}
    cell = Cell({**common, **plugins, "algorithm": "FixMatch", "seed": 1})
    assert run_grid([cell], tmp_path) == []
    config = cell.folder(tmp_path) / "config.yaml"
    assert main(["train", "--config", str(config), "--out", str(tmp_path / "again")]) == 0
    first, second = (load_file(path / "model.safetensors") for path in (cell.folder(tmp_path), tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_data_is_found_in_the_data_root(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "cifar10"
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 2)):
        for name in "ab":
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / part / name / f"{number}.png")
    cell = Cell({**run_options("smoke", "digits", 4), "data": "cifar10", "algorithm": "FixMatch", "seed": 0})
    assert run_grid([cell], tmp_path / "cells", data_root=str(tmp_path / "root")) == []
    summary = cell.summary(tmp_path / "cells")
    assert summary is not None
    assert summary["classes"] == ["a", "b"]


def test_a_missing_dataset_is_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "svhn.zip").touch()
    check_available(["svhn"], str(tmp_path))
    with pytest.raises(UserError, match="data_root must hold cifar10.zip, a folder cifar10 or torchvision's files"):
        check_available(["svhn", "cifar10"], str(tmp_path))
    with pytest.raises(UserError, match="data_root must be a folder, got '/nowhere'"):
        check_available(["svhn"], "/nowhere")


@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_backend_is_named(backend: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes the import fail
    with pytest.raises(UserError, match=rf"\({package}\), got '{backend}'; install it .*vcc-infuse\[{backend}\]"):
        next(run_jobs(len, [((),)], 2, backend))


@pytest.mark.slow
def test_two_jobs_give_what_one_gives(tmp_path: Path) -> None:
    todo = cells("FixMatch", "Supervised")
    assert run_grid(todo, tmp_path / "one", jobs=1) == []
    assert run_grid(todo, tmp_path / "two", jobs=2) == []
    one, two = summaries(tmp_path / "one"), summaries(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, values in one.items():  # not bit for bit: one job has all cores, and sums in another order
        assert values == pytest.approx(two[name], rel=1e-4, abs=1e-6)


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["ablation-vae", "--scale", "smoke", "--seeds", "1"]
    command = [sys.executable, "-m", "paper", *words, "--cells", str(folder / "cells"), "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, start_new_session=True, env=environment, cwd=CHECKOUT)


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_table(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    process = start(killed)
    while process.poll() is None and len(summaries(killed / "cells")) < 1:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(summaries(killed / "cells")) < 4
    assert start(killed).wait() == 0
    assert summaries(killed / "cells") == summaries(whole / "cells")
    entries = [json.loads((f / "ablation-vae-smoke.json").read_text())["entries"] for f in (whole, killed)]
    assert [e["by_seed"] for e in entries[0]] == [e["by_seed"] for e in entries[1]]


KILLER = """
import os, signal
from pathlib import Path
from vcc_infuse.algorithms import FixMatch
from paper import Cell, run_grid
from paper.scales import run_options


class Killer(FixMatch):
    def setup(self, model, task):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    names = ["killer.Killer", "FixMatch", "Supervised", "FlexMatch"]
    cells = [Cell({**run_options("smoke", "digits", 40), "algorithm": name, "seed": 0}) for name in names]
    for failure in run_grid(cells, Path("cells"), jobs=2):
        print(failure.cell.options["algorithm"], failure.error)
"""


@pytest.mark.slow
def test_a_cell_that_kills_its_worker_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    paths = os.pathsep.join([str(tmp_path), str(CHECKOUT), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    grid = [sys.executable, "killer.py"]
    printed = subprocess.run(grid, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300).stdout
    assert printed.count("its worker was killed twice") == 1
    assert printed.startswith("killer.Killer")
    assert len(summaries(tmp_path / "cells")) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_clusters_give_the_same(backend: str, package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'vcc-infuse[{backend}]'")
    command = "ablation-vae --scale smoke --seeds 1 --jobs 2 --out".split()
    for name, words in ((backend, ["--backend", backend]), ("here", [])):
        where = tmp_path / name
        grid = [sys.executable, "-m", "paper", *command, str(where), "--cells", str(where / "cells"), *words]
        # A process of its own: both leave servers behind that live as long as their process.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(grid, check=True, env=environment, cwd=CHECKOUT, timeout=300)
    there, here = (summaries(tmp_path / name / "cells") for name in (backend, "here"))
    assert len(here) == 5
    assert there.keys() == here.keys()
    assert all(values == pytest.approx(here[name], rel=1e-4, abs=1e-6) for name, values in there.items())
