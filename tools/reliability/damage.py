"""Damage one file of a run folder or of the caches at random, run a command that reads it, and see what happens.

    python tools/reliability/damage.py --count 1000 --seed 0

detected: the command refuses in one line, or says that it made the damaged part again. harmless: its result is that of
the undamaged files. SILENT: another result without a word. traceback: an error that is not one line.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vcc_infuse.cli.main import main
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.trainer import Trainer

SMALL = "--labels 12 --batch_size 4 --unlabeled_ratio 2 --steps 8 --eval_every 2 --progress false --report false " \
    "--device cpu --selector INFUSE --selector.keep 1 --algorithm FixMatch --algorithm.threshold 0.3"  # fmt: skip
OPTIONS = {
    "scratch": "--preset scratch --model SmallConv --model.width 4",
    "frozen": "--preset frozen --model Timm --model.name test_resnet --model.weights none --bank.strong 1",
}
LIMIT = 120
Answer = tuple[int, str, str]  # status, result, what was said on stderr


class Bench:
    """Runs and caches in `work`, and undamaged copies of them in `pristine`."""

    def __init__(self, home: Path, runs: Sequence[str] = ("scratch", "frozen")) -> None:
        self.runs = runs
        self.work, self.pristine, self.images = home / "work", home / "pristine", home / "photos"
        make_images(self.images)
        data = ["--data", str(self.images), "--cache", str(self.work / "cache")]
        for name in runs:
            words = ["train", *data, *SMALL.split(), *OPTIONS[name].split()]
            train([*words, "--out", str(self.work / name)])
            with interrupted_at(4):
                train([*words, "--out", str(self.work / f"{name}-half")])
        shutil.copytree(self.work, self.pristine)
        self.expected: dict[str, Answer] = {}
        for name in self.commands():
            one, other = self.restored().run(name), self.restored().run(name)
            assert one[0] == 0, (name, one)
            assert one[1] == other[1], f"{name} has another result each time"
            self.expected[name] = one

    def commands(self) -> dict[str, tuple[list[str], Callable[[], str]]]:
        """The command lines, and what reads their result."""
        out, found = self.work / "out", {}
        for run in self.runs:
            path, half = str(self.work / run), self.work / f"{run}-half"
            found |= {
                f"{run} evaluate": (["evaluate", path, "-o", f"{out}.json"], reader(f"{out}.json")),
                f"{run} predict": (["predict", path, str(self.images), "-o", f"{out}.csv"], reader(f"{out}.csv")),
                f"{run} report": (["report", path, "-o", f"{out}.html"], reader(f"{out}.html")),
                f"{run} select": (
                    ["select", path, "--pool", str(self.images), "-o", f"{out}.csv"],
                    reader(f"{out}.csv"),
                ),
                f"{run} calibrate": (
                    ["calibrate", path, "--data", str(self.images), "-o", f"{out}.cal"],
                    reader(f"{out}.cal/calibration.json", f"{out}.cal/model.safetensors"),
                ),
                f"{run} resume": (
                    ["train", "--resume", str(half)],
                    reader(half / "model.safetensors", half / "model.json", half / "metrics.jsonl"),
                ),
                f"{run} half-report": (["report", str(half), "-o", f"{out}.html"], reader(f"{out}.html")),
            }
        return found

    def run(self, name: str) -> Answer:
        """Run a command in this process."""
        argv, read = self.commands()[name]
        said, shown = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown), warnings.catch_warnings():
            warnings.simplefilter("always")
            status = guarded(argv)
        result = read() if status == 0 else ""
        return status, result, said.getvalue()

    def restored(self) -> Bench:
        """With undamaged files, and their times."""
        shutil.rmtree(self.work)
        shutil.copytree(self.pristine, self.work)
        return self


def guarded(argv: Sequence[str]) -> int:
    """The status of a command; −1 with a traceback, −2 if it takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        return main(list(argv))
    except TimeoutError:
        return -2
    except BaseException:
        traceback.print_exc()
        return -1
    finally:
        signal.alarm(0)


def reader(*paths: str | Path) -> Callable[[], str]:
    """A digest of files, without the times in them."""

    def read() -> str:
        digest = hashlib.sha256()
        for path in map(Path, paths):
            content = path.read_bytes()
            if path.suffix == ".jsonl":
                lines = [json.loads(line) for line in content.splitlines()]
                content = repr([{k: v for k, v in line.items() if k != "seconds"} for line in lines]).encode()
            digest.update(content)
        return digest.hexdigest()

    return read


def make_images(folder: Path) -> None:
    """Two classes of dark and bright noise."""
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("bright", 120)):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(low, low + 130, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def train(words: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(words)
    assert status in (0, 130), said.getvalue()


@contextlib.contextmanager
def interrupted_at(step: int):
    """Training stops after a step, as by Ctrl-C."""
    own = Trainer._should_stop

    def stop(self: Trainer, request: object, number: int) -> bool:
        request.signal = signal.SIGINT if number + 1 == step else None  # type: ignore[attr-defined]
        return number + 1 == step

    Trainer._should_stop = stop  # type: ignore[method-assign]
    try:
        yield
    except Interrupted:
        pass
    finally:
        Trainer._should_stop = own  # type: ignore[method-assign]


def flip_bit(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def other_byte(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] = rng.randrange(256)
    return data


def other_digit(data: bytearray, rng: random.Random) -> bytearray:
    """A digit becomes another one: what no parser can notice."""
    places = [place for place, byte in enumerate(data) if 48 <= byte < 58]
    if places:
        data[rng.choice(places)] = rng.randrange(48, 58)
    return data


def zeros(data: bytearray, rng: random.Random) -> bytearray:
    start, length = rng.randrange(len(data)), rng.randint(1, 64)
    data[start : start + length] = bytes(len(data[start : start + length]))
    return data


def noise(data: bytearray, rng: random.Random) -> bytearray:
    start, length = rng.randrange(len(data)), rng.randint(1, 64)
    data[start : start + length] = rng.randbytes(len(data[start : start + length]))
    return data


def cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def cut_line(data: bytearray, rng: random.Random) -> bytearray:
    lines = bytes(data).splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return bytearray(b"".join(lines))


def longer(data: bytearray, rng: random.Random) -> bytearray:
    return data + rng.randbytes(rng.randint(1, 64))


def empty(data: bytearray, rng: random.Random) -> bytearray:
    return bytearray()


DAMAGES = (flip_bit, flip_bit, flip_bit, other_byte, other_digit, zeros, noise, cut, cut_line, longer, empty, None)


def kind_of(path: Path) -> str:
    """The kind of a file: its name without numbers and keys."""
    folder = "bank" if "banks" in path.parts else "cache" if "cache" in path.parts else ""
    parent = path.parent.name if path.parent.name in ("checkpoints", "coresets") else folder
    name = path.name if not path.name.startswith("step-") else f"step{path.suffix}"
    return f"{parent}/{name}".lstrip("/")


def commands_for(path: Path, work: Path, names: Sequence[str]) -> list[str]:
    """Commands that may read a file."""
    run = path.relative_to(work).parts[0]
    if "banks" in path.parts:
        return ["frozen resume"]
    if run == "cache":
        return [name for name in names if name.endswith(("evaluate", "resume", "calibrate"))]
    if run.endswith("-half"):
        return [f"{run.removesuffix('-half')} {command}" for command in ("resume", "half-report")]
    return [name for name in names if name.startswith(f"{run} ") and not name.endswith(("resume", "half-report"))]


def case(bench: Bench, rng: random.Random) -> dict[str, str]:
    """One damage, and what a command made of it."""
    bench.restored()
    kinds: dict[str, list[Path]] = {}
    for path in sorted(bench.work.rglob("*")):
        if path.is_file() and path.stat().st_size and path.name != "report.html":
            kinds.setdefault(kind_of(path), []).append(path)
    kind = rng.choice(sorted(kinds))
    path, damage = rng.choice(kinds[kind]), rng.choice(DAMAGES)
    before = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(bytearray(before), rng))
    name = rng.choice(commands_for(path, bench.work, list(bench.expected)))
    status, result, said = bench.run(name)
    expected = bench.expected[name]
    news = said != expected[2] and len(said.strip()) > 0
    if status == -1:
        found = "traceback"
    elif status == -2:
        found = "hang"
    elif status != 0:
        found = "detected" if len(said.strip().splitlines()) <= 2 else "traceback"
    elif result == expected[1]:
        found = "detected" if news else "harmless"
    else:
        found = "detected" if news else "SILENT"
    how = damage.__name__ if damage else "delete"
    where = str(path.relative_to(bench.work))
    return {"kind": kind, "file": where, "damage": how, "command": name, "found": found, "said": said[-1500:]}


def summary(cases: list[dict[str, str]], command: str) -> dict[str, object]:
    """Counts in total and per kind of file."""
    results = ("detected", "harmless", "SILENT", "traceback", "hang")
    table: dict[str, dict[str, int]] = {}
    for one in cases:
        table.setdefault(one["kind"], dict.fromkeys(results, 0))[one["found"]] += 1
    total = {name: sum(row[name] for row in table.values()) for name in results}
    faults = [one for one in cases if one["found"] not in ("detected", "harmless")]
    return {"command": command, "damages": len(cases), **total, "table": dict(sorted(table.items())), "faults": faults}


def run(
    count: int, seed: int, seconds: float, out: Path, runs: Sequence[str] = ("scratch", "frozen")
) -> dict[str, object]:
    """So many damages, or as many as the time allows."""
    rng, cases, began = random.Random(seed), [], time.monotonic()
    command = f"python tools/reliability/damage.py --count {count} --seed {seed}"
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(Path(home), runs)
        while len(cases) < count and time.monotonic() - began < seconds:
            cases.append(case(bench, rng))
            if cases[-1]["found"] not in ("detected", "harmless"):
                print(len(cases), cases[-1], flush=True)
            if len(cases) % 20 == 0:
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(summary(cases, command), indent=2) + "\n")
    found = summary(cases, command)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="damages (1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="+", choices=OPTIONS, default=list(OPTIONS), help="kinds of runs (all)")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("results/reliability/damage.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    result = run(options.count, options.seed, options.seconds, options.out, options.runs)
    print({name: value for name, value in result.items() if name not in ("table", "faults")})
    sys.exit(0 if not result["faults"] else 1)
