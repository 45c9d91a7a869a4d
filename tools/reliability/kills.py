"""Kill training at random moments, resume it, and compare the model with that of a run that was left alone.

    python tools/reliability/kills.py --count 200 --seed 0
    python tools/reliability/kills.py --algorithm SelfTraining --count 50 --out results/reliability/kills_default.json

Each case takes a combination of method, calibrator and selector on one to three processes, trains it to the end, then
again with SIGKILL after a random part of that time, up to eight times, and resumes it. The weights must have the same
SHA-256. Processes are forks of this one, which has imported everything: a kill can hit the first step, too. One case in
three trains a head on frozen features, in a cache of its own for each run, so that a kill can hit the embedding.
A method without steps, such as the default, is named by `--algorithm`, always trains on frozen features, and is
cross-validated.
The same command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from vcc_infuse.cli.main import main
from vcc_infuse.utils.io import write_json

CONFIDENT = ["FixMatch", "FlexMatch", "FreeMatch", "SoftMatch", "UDA", "PseudoLabel"]  # a calibrator can change them
OTHERS = ["Adsh", "Dash", "CoMatch", "SimMatch", "MPL", "MeanTeacher", "PiModel", "VAT", "MixMatch", "ReMixMatch"]
WRAPPERS = ["ABC", "Balance", "DARP", "DASO", "DebiasPL"]  # around a confident method
CALIBRATORS = ["Softmax", "VCC", "RobustVCC", "MMCE", "HardViewTemperature", "Evidence"]
SELECTORS = ["", "INFUSE", "RobustINFUSE", "GradMatch", "RETRIEVE", "EL2N", "Random", "RandomOnline", "FullShort"]
REFRESHED = [*SELECTORS[1:6], "RandomOnline"]  # at intervals
OPTIONS = "--data digits --labels 40 --steps 24 --eval_every 4 --batch_size 12 --unlabeled_ratio 2 " \
    "--progress false --report false --device cpu"  # fmt: skip
SCRATCH = "--preset scratch --model SmallConv --model.width 4"
FROZEN = "--preset frozen --model Timm --model.name test_resnet --model.weights none --model.input_size 32 " \
    "--bank.weak 1 --bank.strong 1 --cache"  # fmt: skip
WORLDS = (1, 2, 3)
PATIENCE = 60.0


def words(rng: random.Random, algorithm: str = "") -> list[str]:
    """A combination, or the method that is named alone."""
    if algorithm:
        return ["--algorithm", algorithm, "--cross_fit", "true"]
    method, plugin = rng.choice([*CONFIDENT, *OTHERS]), rng.choice(WRAPPERS)
    wrapped = method in CONFIDENT[:4] and rng.random() < 0.5
    found = ["--algorithm", plugin, "--algorithm.base", method] if wrapped else ["--algorithm", method]
    found += ["--calibrator", rng.choice(CALIBRATORS)] if method in CONFIDENT else []
    selector = rng.choice(SELECTORS)
    found += ["--selector", selector, "--selector.keep", "0.5"] if selector else []
    return found + (["--selector.every", "4"] if selector in REFRESHED else [])


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(argv: Sequence[str], world: int, log: Path, port: int) -> list[int]:
    """Start a command in processes that meet at a port; returns their ids."""
    found = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            if world > 1:
                where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
                os.environ |= {name: str(value) for name, value in where.items()}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            status = 1
            try:
                status = main(list(argv))
            finally:
                sys.stdout.flush()
                os._exit(status)
        found.append(pid)
    return found


def wait(pids: Sequence[int]) -> list[int]:
    """The exit statuses; negative is a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def wait_until_met(world: int, port: int, patience: float = 20.0) -> None:
    """Wait until the processes have found each other: one that waits for a dead one would cost a minute."""
    began = time.monotonic()
    while world > 1 and time.monotonic() - began < patience:
        tables = (path.read_text().splitlines()[1:] for path in Path("/proc/net").glob("tcp*"))
        rows = (line.split() for lines in tables for line in lines)
        if sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows) >= world:
            return
        time.sleep(0.02)


def kill_after(pids: Sequence[int], seconds: float, victim: int) -> tuple[bool, float]:
    """Kill one process, and see the others end by themselves; whether it was still alive, and how long they took.

    A process that has not found the others yet waits for them; `torchrun` would end it, so here it is ended, too.
    """
    time.sleep(seconds)
    alive = os.waitpid(pids[victim], os.WNOHANG)[0] == 0
    began = time.monotonic()
    if alive:
        os.kill(pids[victim], signal.SIGKILL)
        os.waitpid(pids[victim], 0)
    others = [pid for rank, pid in enumerate(pids) if rank != victim]
    while others and time.monotonic() - began < PATIENCE:
        others = [pid for pid in others if os.waitpid(pid, os.WNOHANG)[0] == 0]
        time.sleep(0.02)
    took = time.monotonic() - began
    for pid in others:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return alive, took


def digest(run: Path) -> str:
    """Of the weights."""
    path = run / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no model"


def case(
    rng: random.Random, home: Path, kills: int, worlds: Sequence[int] = WORLDS, algorithm: str = ""
) -> dict[str, object]:
    """One combination: what came of it."""
    chosen, world = words(rng, algorithm), rng.choice(worlds)
    frozen = rng.random() < 1 / 3 or bool(algorithm)
    whole, cut, log = home / "whole", home / "cut", home / "log"

    def train(out: Path) -> list[str]:
        preset = [*FROZEN.split(), f"{out}-cache"] if frozen else SCRATCH.split()
        return ["train", *OPTIONS.split(), *preset, *chosen, "--out", str(out)]

    began = time.monotonic()
    status = wait(start(train(whole), world, log, free_port()))
    took, killed, longest = time.monotonic() - began, 0, 0.0
    found: dict[str, object] = {"words": " ".join(chosen), "processes": world, "frozen": frozen}
    if any(status):
        return {**found, "kills": 0, "result": "failed", "said": log.read_text()[-2000:]}
    argv = train(cut)
    for _ in range(kills):
        port = free_port()
        pids = start(argv, world, log, port)
        wait_until_met(world, port)
        alive, waited = kill_after(pids, rng.uniform(0.05, 0.8) / world**2 * took, rng.randrange(world))
        killed, longest = killed + alive, max(longest, waited)
        if (cut / "summary.json").is_file():
            break
        argv = ["train", "--resume", str(cut)] if (cut / "config.yaml").is_file() else argv
    if not (cut / "summary.json").is_file():
        status = wait(start(argv, world, log, free_port()))
    same = digest(whole) == digest(cut)
    result = "identical" if same else "different"
    traceback = "Traceback" in log.read_text()
    said = "" if same and not traceback else log.read_text()[-2000:]
    return {**found, "kills": killed, "result": result, "traceback": traceback, "others_end_s": longest, "said": said}


def run(
    count: int, seed: int, seconds: float, out: Path, worlds: Sequence[int] = WORLDS, algorithm: str = ""
) -> dict[str, object]:
    """Cases until so many processes were killed, or the time is over; those of an earlier call are kept."""
    cases = json.loads(out.read_text())["cases"] if out.is_file() else []
    asked = f"--count {count} --seed {seed}" + (f" --algorithm {algorithm} --out {out}" if algorithm else "")
    began = time.monotonic()
    while sum(one["kills"] for one in cases) < count and time.monotonic() - began < seconds:
        rng = random.Random(f"{seed} {len(cases)}")
        with tempfile.TemporaryDirectory() as home:
            cases.append(case(rng, Path(home), rng.randint(3, 8), worlds, algorithm))
            print(len(cases), cases[-1]["result"], cases[-1]["kills"], cases[-1]["words"], flush=True)
        write(cases, asked, out)
    return write(cases, asked, out)


def write(cases: list[dict[str, object]], asked: str, out: Path) -> dict[str, object]:
    """The figures so far."""
    table: dict[str, dict[str, int]] = {}
    for one in cases:
        kind = "frozen" if one["frozen"] else "scratch"
        for name in (f"processes: {one['processes']}", kind, *str(one["words"]).split()[1::2]):
            if name.replace(".", "").isdecimal():
                continue
            row = table.setdefault(name, {"kills": 0, "runs": 0, "identical": 0})
            row["kills"] += int(str(one["kills"]))
            row["runs"] += 1
            row["identical"] += one["result"] == "identical"
    found: dict[str, object] = {
        "command": f"python tools/reliability/kills.py {asked}",
        "kills": sum(int(str(one["kills"])) for one in cases),
        "runs": len(cases),
        "identical": sum(one["result"] == "identical" for one in cases),
        "tracebacks": sum(bool(one.get("traceback")) for one in cases),
        "longest_wait_of_the_other_process_s": max((float(str(c.get("others_end_s", 0))) for c in cases), default=0),
        "ended_from_outside": sum(float(str(c.get("others_end_s", 0))) >= PATIENCE for c in cases),
        "table": dict(sorted(table.items())),
        "faults": [one for one in cases if one["result"] != "identical" or one.get("traceback")],
        "cases": cases,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, found)
    return found


def warm_up() -> None:
    """Import everything before the first fork, without computing: torch's threads do not survive a fork."""
    import accelerate  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401 - what the first optimizer imports, which takes longer than a whole run

    import vcc_infuse.cli.train  # noqa: F401


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="processes to kill (200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, nargs="+", default=list(WORLDS), help="numbers to draw from (1 2 3)")
    parser.add_argument("--algorithm", default="", help="this method alone, on frozen features (drawn combinations)")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("results/reliability/kills.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    warm_up()
    result = run(options.count, options.seed, options.seconds, options.out, options.processes, options.algorithm)
    print({name: value for name, value in result.items() if name not in ("table", "faults", "cases")})
    sys.exit(0 if not result["faults"] else 1)
