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
    "--selector.every 2 --steps 120 --epochs 10 --batch 8 --ratio 2 --model.width 4 --progress false"  # fmt: skip


def vcc_infuse(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vcc_infuse", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def figures(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_kill_and_resume(tmp_path):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    victim = vcc_infuse("train", *OPTIONS.split(), "--out", str(cut))
    deadline = time.monotonic() + 120
    while len(list((cut / "checkpoints").glob("*.json"))) < 2 and time.monotonic() < deadline:
        assert victim.poll() is None, victim.stderr.read()
        time.sleep(0.002)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
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
