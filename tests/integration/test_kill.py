"""A process killed without warning loses at most the steps since its last checkpoint, and no figure changes."""

import json
import os
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file

OPTIONS = "--data digits --labels 40 --algorithm FlexMatch --calibrator VCC --selector INFUSE --selector.keep 0.5 " \
    "--selector.every 12 --steps 120 --eval_every 6 --batch_size 8 --unlabeled_ratio 2 --model.width 4 " \
    "--progress false"  # fmt: skip


def vcc_infuse(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vcc_infuse", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def figures(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def stop_in_mid_run(run, number):
    """Start a run and send it a signal once it has written two checkpoints."""
    victim = vcc_infuse("train", *OPTIONS.split(), "--out", str(run))
    deadline = time.monotonic() + 120
    while len(list((run / "checkpoints").glob("*.json"))) < 2 and time.monotonic() < deadline:
        assert victim.poll() is None, victim.stderr.read()
        time.sleep(0.002)
    victim.send_signal(number)
    return victim, victim.communicate(timeout=60)[1]


def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path):
    victim, said = stop_in_mid_run(tmp_path / "run", signal.SIGINT)
    assert victim.returncode == 128 + signal.SIGINT
    assert f"saved; continue with: vcc-infuse train --resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    done = int(said.split("after step ")[1].split()[0])
    assert (tmp_path / "run" / "checkpoints" / f"step-{done:09d}.pt").exists()


def test_kill_and_resume(tmp_path):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    stop_in_mid_run(cut, signal.SIGKILL)
    assert not (cut / "summary.json").exists(), "the run ended before it could be killed"
    resumed, alone = (
        vcc_infuse("train", "--resume", str(cut)),
        vcc_infuse("train", *OPTIONS.split(), "--out", str(whole)),
    )
    for process in (resumed, alone):
        assert process.wait(240) == 0, process.stderr.read()
    assert figures(cut) == figures(whole)
    a, b = load_file(cut / "model.safetensors"), load_file(whole / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[k], b[k], rtol=0, atol=0, equal_nan=True) for k in a)
    summaries = [json.loads((run / "summary.json").read_text()) for run in (cut, whole)]
    assert summaries[0]["error"] == summaries[1]["error"]
