"""Every method, calibrator and selector on two processes: both end with the same numbers, those of one process."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.helpers.every import SELECTORS, differences, few_digits, name, trainer
from tests.helpers.every_worker import CASES, run

from vcc_infuse import SmallConv

every = pytest.mark.parametrize("key", CASES)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder into which one pair of processes wrote the end of every run, made once for all test workers."""
    home = tmp_path_factory.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    folder = home / "every_two"
    with open(home / "every_two.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            launch(folder)
    return folder


def launch(folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    finished = subprocess.run(
        [*command, "-m", "tests.helpers.every_worker", str(folder)], cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    (folder / "said.txt").write_text(finished.stdout + finished.stderr)


def ended(folder, key, kind):
    """What both processes ended with."""
    paths = [folder / f"{key}-{kind}-{rank}.pt" for rank in (0, 1)]
    assert all(path.exists() for path in paths), (folder / "said.txt").read_text()[-3000:]
    return [torch.load(path, weights_only=True) for path in paths]


@pytest.fixture(scope="module")
def data():
    return few_digits(600)


@every
@pytest.mark.parametrize("kind", ["random", "fixed"])
def test_both_hold_the_same_numbers(two, key, kind):
    """Weights, averages, memories, optimizer and core sets, bit for bit."""
    one, other = ended(two, key, kind)
    assert one[".world"] == other[".world"] == 2
    # The user is warned by the first process, which alone has evaluated.
    assert [path for path in differences(one, other) if "warnings" not in path] == []


@pytest.mark.parametrize("kind", SELECTORS, ids=name)
def test_an_untrained_model_selects_the_same_as_on_one_process(two, data, kind):
    """With random views as well: each chunk of the pool is drawn from a seed of its own."""
    key = f"FixMatch-{name(kind)}"
    found, alone = ended(two, key, "random")[0], run(key, data)
    first = [path for path in alone if path.startswith(".coresets.0.")]
    assert len(first) == (2 if kind.restricts else 0)
    assert all(torch.equal(found[path], alone[path]) for path in first)


@every
def test_both_hold_the_numbers_of_one_process(two, data, key):
    """Where no chance and no BatchNorm is involved, up to the rounding of sums in another order."""
    alone = run(key, data, fixed=True)
    if differences(alone, run(key, data, fixed=True, shift=1)):
        pytest.skip("it draws at random, and each process has its own stream")
    found, _ = ended(two, key, "fixed")
    numbers = {path for path in found if "warnings" not in path}
    assert numbers == {path for path in alone if "warnings" not in path}
    for path in numbers - {".world"}:
        half = getattr(found[path], "dtype", None) == torch.float16  # rounds a tiny difference up to its own precision
        near = {"rtol": 1e-3, "atol": 1e-3} if half else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found[path], alone[path], **near, equal_nan=True, msg=path)


def test_the_global_batch_is_that_of_one_process(two, data):
    """Process r holds rows r, r + 2, … of each batch."""
    left, right = (torch.load(two / f"batch-ids-{rank}.pt", weights_only=True) for rank in (0, 1))
    alone = trainer(SmallConv(4), CASES["FixMatch"], steps=6)
    alone.prepare(data)
    assert len(left) == len(right) == 6
    for number in left:
        batch = alone.batches_.at(int(number))
        for ids, kind in ((batch.ids, "labeled"), (batch.pool_ids, "pool")):
            assert torch.equal(ids[0::2], left[number][kind])
            assert torch.equal(ids[1::2], right[number][kind])


def test_two_processes_write_one_run_folder(two):
    summary = json.loads((two / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["processes"]) == (6, 2)
    lines = [json.loads(text) for text in (two / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    assert sum(lines[0]["pseudo_label_share_per_class"]) == pytest.approx(1)
