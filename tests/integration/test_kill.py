"""A process killed without warning loses at most the steps since its last checkpoint, and no figure changes."""

import json
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.processes import fork, wait

from vcc_infuse.cli.main import main

OPTIONS = """
--data digits --labels 40 --preset scratch --model.width 4 --algorithm FlexMatch --calibrator VCC
--selector INFUSE --selector.keep 0.5 --selector.every 12 --steps 60 --eval_every 6 --batch_size 8 --unlabeled_ratio 2
--progress false --report false
"""


def figures(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def stop_in_mid_run(run, number, log):
    """Start a run and send it a signal once it has written two checkpoints; returns its exit status."""
    victim = fork(lambda: main(["train", *OPTIONS.split(), "--out", str(run)]), log)
    deadline = time.monotonic() + 120
    while len(list((run / "checkpoints").glob("*.json"))) < 2 and time.monotonic() < deadline:
        assert not (run / "summary.json").exists(), "the run ended before it could be stopped"
        time.sleep(0.002)
    os.kill(victim, number)
    return wait(victim)


@pytest.mark.slow
def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path):
    assert stop_in_mid_run(tmp_path / "run", signal.SIGINT, tmp_path / "log.txt") == 128 + signal.SIGINT
    said = (tmp_path / "log.txt").read_text()
    assert f"saved; continue with: vcc-infuse train --resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    done = int(said.split("after step ")[1].split()[0])
    assert (tmp_path / "run" / "checkpoints" / f"step-{done:09d}.pt").exists()


def test_kill_and_resume(tmp_path):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    assert stop_in_mid_run(cut, signal.SIGKILL, tmp_path / "log.txt") == -signal.SIGKILL
    assert not (cut / "summary.json").exists(), "the run ended before it could be killed"
    assert main(["train", "--resume", str(cut)]) == 0
    assert main(["train", *OPTIONS.split(), "--out", str(whole)]) == 0
    assert figures(cut) == figures(whole)
    a, b = load_file(cut / "model.safetensors"), load_file(whole / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[k], b[k], rtol=0, atol=0, equal_nan=True) for k in a)
    summaries = [json.loads((run / "summary.json").read_text()) for run in (cut, whole)]
    assert summaries[0]["error"] == summaries[1]["error"]
