"""Selection does not depend on the number of processes; a killed one is noticed, and resuming changes no bit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.helpers.every import SELECTORS, few_digits, lively, name, trainer
from tests.helpers.processes import together

from vcc_infuse import FixMatch, SmallConv

HOME = Path(__file__).parents[2]


def python(*words, timeout=400):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=HOME, env=environment, capture_output=True, text=True, timeout=timeout
    )


def select(kinds, data, folder, world):
    """The first core set of each selector, by an untrained model, and a step on it."""
    for kind in kinds:
        torch.manual_seed(0)
        job = trainer(SmallConv(4), (lively(FixMatch), None, lively(kind)), batch_size=6)
        job.prepare(data)
        assert job.state_.world == world
        job.refresh_coreset(0)
        job.train_step(0)
        coreset = job.state_.coreset_scheduler.coreset
        rank = dist.get_rank() if world > 1 else 0
        torch.save(None if coreset is None else tuple(coreset), folder / f"{name(kind)}-{world}-{rank}.pt")


@pytest.fixture(scope="module")
def data():
    data = few_digits(1437)
    pool = data.split.pool[: len(data.split.pool) // 6 * 6 - 5]  # neither two nor three processes share it evenly
    return replace(data, split=replace(data.split, pool=pool))


@pytest.fixture(scope="module")
def coresets(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coresets")
    for world in (1, 2, 3):
        together(world, lambda world=world: select(SELECTORS, data, folder, world), folder / "log.txt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", SELECTORS, ids=name)
def test_one_two_and_three_processes_select_the_same(coresets, kind):
    """From a pool that neither two nor three processes can share evenly."""
    alone = torch.load(coresets / f"{name(kind)}-1-0.pt", weights_only=True)
    assert (alone is None) != kind.restricts
    for world in (2, 3):
        for rank in range(world):
            found = torch.load(coresets / f"{name(kind)}-{world}-{rank}.pt", weights_only=True)
            assert (found is None) == (alone is None)
            assert alone is None or all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


@pytest.mark.slow
def test_two_processes_killed_and_resumed(tmp_path):
    done = python(
        "tools/reliability/kills.py", "--count", 1, "--seed", 3, "--processes", 2, "--out", tmp_path / "k.json"
    )
    found = json.loads((tmp_path / "k.json").read_text())
    assert done.returncode == 0, (done.stdout, found["faults"])
    assert found["kills"] >= 1
    assert found["identical"] == found["runs"]


@pytest.mark.slow
def test_damages_are_noticed(tmp_path):
    words = ("--count", 20, "--seed", 7, "--runs", "scratch", "--out", tmp_path / "d.json")
    done = python("tools/reliability/damage.py", *words)
    found = json.loads((tmp_path / "d.json").read_text())
    assert done.returncode == 0, (done.stderr[-2000:], found["faults"])
    assert found["detected"] > 2
    assert found["SILENT"] == found["traceback"] == found["hang"] == 0


@pytest.mark.slow
def test_two_processes_roll_back_together(tmp_path):
    words = (
        "--data digits --labels 40 --preset scratch --model MLP --steps 4 --batch_size 8 --unlabeled_ratio 1 --lr 1e30 "
        f"--on_nan rollback --progress false --out {tmp_path}/run"
    )
    done = python("-m", "torch.distributed.run", "--nproc_per_node", 2, "-m", "vcc_infuse", "train", *words.split())
    assert done.returncode == 1
    assert done.stderr.count("went back to step 0, and lr is × 0.5 from there on") == 1, done.stderr[-3000:]
    assert "also with lr × 0.03125" in done.stderr
