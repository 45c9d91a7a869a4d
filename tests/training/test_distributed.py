"""Two processes keep the global batch, agree on every number, and write one run folder."""

import json
import os
import subprocess
import sys

import pytest
import torch

from vcc_infuse.cli.launch import wanted_processes
from vcc_infuse.training.distributed import average_, gather
from vcc_infuse.utils.seeding import seed_step

WORDS = "train --data digits --labels 40 --steps 12 --epochs 2 --batch 16 --ratio 2 --model.width 4 --progress false"


def launch(*words, processes=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    return started([*command, *words])


def started(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


PROBE = """
import hashlib, json, sys, torch
from pathlib import Path
from vcc_infuse import *
from vcc_infuse.data.split import balanced
dataset = load("digits")
data = SSLData(dataset, balanced(dataset.train.y, 40, 10, 0))
out = Path(sys.argv[1])
trainer = Trainer(SmallConv(4), FixMatch(threshold=0.3), steps=12, epochs=2, eval_every=1, batch=16, ratio=2,
                  progress=False, cpu=True, out=str(out / "run"))
seen = []
inner = trainer._step
def spy(number):
    batch = trainer.batches_.at(number)
    seen.append((batch.ids.tolist(), batch.pool_ids.tolist()))
    inner(number)
trainer._step = spy
trainer.fit(data)
parts = trainer.state_
state = {**parts.model.state_dict(), **{"ema." + k: v for k, v in parts.ema.state_dict().items()}}
digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in state.values())).hexdigest()
(out / f"rank{trainer.rank_}.json").write_text(json.dumps({"digest": digest, "seen": seen, "world": parts.world}))
parts.accelerator.end_training()
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    (out / "probe.py").write_text(PROBE)
    finished = launch(str(out / "probe.py"), str(out))
    ranks = [out / f"rank{rank}.json" for rank in (0, 1)]
    assert all(path.exists() for path in ranks), finished.stderr[-3000:]
    return out, [json.loads(path.read_text()) for path in ranks]


def test_both_end_with_identical_parameters(two):
    _, (a, b) = two
    assert a["world"] == b["world"] == 2
    assert a["digest"] == b["digest"]


def test_the_global_batch_is_that_of_one_process(two, digits):
    from vcc_infuse import SmallConv, Trainer

    _, (a, b) = two
    alone = Trainer(SmallConv(4), steps=12, epochs=2, batch=16, ratio=2, progress=False)
    alone._build(digits)
    for number, (left, right) in enumerate(zip(a["seen"], b["seen"], strict=True)):
        batch = alone.batches_.at(number)
        for field, (x, y) in zip((batch.ids, batch.pool_ids), zip(left, right, strict=True), strict=True):
            assert field.tolist() == [i for pair in zip(x, y, strict=True) for i in pair]


def test_one_run_folder(two):
    out, _ = two
    summary = json.loads((out / "run" / "summary.json").read_text())
    assert summary["steps"] == 12
    assert len((out / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    line = json.loads((out / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(sum(line["pseudo_label_share_per_class"]) - 1) < 1e-6


def test_command_line_on_two_processes(tmp_path):
    out = tmp_path / "run"
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "-m", "vcc_infuse"]
    finished = started([*accelerate, *WORDS.split(), "--out", str(out)])
    assert (out / "summary.json").exists(), finished.stderr[-3000:]
    assert finished.stdout.count("run folder:") == 1
    assert json.loads((out / "summary.json").read_text())["processes"] == 2


@pytest.mark.parametrize(
    ("environment", "parent", "expected"),
    [
        ({}, ["accelerate", "launch", "--num_processes", "2"], 1),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "x"}, ["accelerate", "launch", "--num_processes=3"], 3),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "x"}, ["accelerate", "--num_processes", "2", "-m"], 2),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "x", "WORLD_SIZE": "2"}, ["--num_processes", "2"], 1),
    ],
)
def test_processes_accelerate_did_not_start(environment, parent, expected):
    assert wanted_processes(environment, parent) == expected


def test_alone_nothing_changes():
    x = torch.arange(6.0).view(3, 2)
    assert gather(x) is x
    average_([x])
    assert torch.equal(x, torch.arange(6.0).view(3, 2))


def test_a_step_seeds_every_generator():
    import random

    import numpy as np

    def draw(step, rank):
        seed_step(5, step, rank)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draw(3, 0) == draw(3, 0)
    assert len({draw(3, 0), draw(4, 0), draw(3, 1)}) == 3
