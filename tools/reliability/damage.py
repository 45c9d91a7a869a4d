"""Damage one file at random, run a command that reads it, and see what happens.

    python tools/reliability/damage.py --count 1000 --seed 0

The files are those of runs, caches, a sharded bank, a labeling session (journal, features, thumbnails, secret) and of
exported models, which are read by ONNX Runtime and PyTorch after their checksum was compared.

detected: the command refuses in one line, or says that it made the damaged part again. harmless: its result is that of
the undamaged files. SILENT: another result without a word. traceback: an error that is not one line.
The same command continues where it was stopped, and tries again what was not detected.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vcc_infuse
from vcc_infuse import Shards
from vcc_infuse.bank.shard_data import labeled_shards
from vcc_infuse.cli.main import main, run_guarded
from vcc_infuse.label import Network, PoolSource
from vcc_infuse.label.embedding import FEATURES, FeatureRows, embed_pool
from vcc_infuse.label.images import ImagePool
from vcc_infuse.label.launch import _stored_secret
from vcc_infuse.label.session import Session
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import write_json

SMALL = "--labels 12 --batch_size 4 --unlabeled_ratio 2 --steps 8 --eval_every 2 --progress false --report false " \
    "--device cpu --selector INFUSE --selector.keep 1 --algorithm FixMatch --algorithm.threshold 0.3"  # fmt: skip
OPTIONS = {
    "scratch": "--preset scratch --model SmallConv --model.width 4",
    "frozen": "--preset frozen --model Timm --model.name test_resnet --model.weights none --bank.strong 1",
}
LIMIT = 120
NETWORK = "--model.name test_resnet --model.weights none --model.input_size 32 --device cpu --engine torch"
Answer = tuple[int, str, str]  # status, result, what was said on stderr
Command = tuple[Callable[[], int], Callable[[], str]]  # what returns the status, and what reads the result


BANK = ("index.json", *(f"shard-{number:05d}.safetensors" for number in range(5)))
UNREAD = ("report.html", "audit.csv", "labels.csv")


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
        self.photos = home / "pool"
        self.photos.mkdir()
        for number, path in enumerate(sorted(self.images.rglob("*.png"))):
            Image.open(path).resize((32, 32), Image.Resampling.NEAREST).save(self.photos / f"{number:02d}.png")
        self.add_shards()
        self.add_session()
        for suffix in ("onnx", "pt2"):
            exported = self.work / "exported"
            exported.mkdir(exist_ok=True)
            train(["export", str(self.work / "scratch"), "-o", str(exported / f"model.{suffix}"), "--device", "cpu"])
        shutil.copytree(self.work, self.pristine)
        self.expected: dict[str, Answer] = {}
        self.whole: dict[str, str] = {}  # what exported models say
        self.alone = ""
        for name in self.commands():
            one, other = self.restored().run(name), self.restored().run(name)
            assert one[0] == 0, (name, one)
            assert one[1] == other[1], f"{name} has another result each time"
            self.expected[name] = one
            self.whole[name] = self.alone

    def embed(self) -> list[str]:
        """Embed into shards."""
        bank = str(self.work / "shards/bank")
        return ["embed", "--data", str(self.photos), "--shards", bank, "--shard_images", "8", *NETWORK.split()]

    def add_shards(self) -> None:
        """A sharded bank, and a run on it."""
        train(self.embed())
        shards = Shards(self.work / "shards/bank")
        data = labeled_shards(shards, {name: f"class {n % 2}" for n, name in enumerate(shards.names[:20])})
        vcc_infuse.train(data, preset="frozen", selector=vcc_infuse.INFUSE(keep=1), out=str(self.work / "shards/run"),
                         steps=8, cross_fit=False, progress=False, report=False, device="cpu")  # fmt: skip

    def add_session(self) -> None:
        """A labeling session with all kinds of actions."""
        source, out = PoolSource(str(self.photos)), self.work / "session"
        _stored_secret(mkdir(out))
        embed_pool(source, network(), out, 0, lambda progress: None)
        session = Session(ImagePool(source), out)
        actions: list[dict[str, object]] = [{"action": "new_class", "name": name} for name in ("cat", "dog", "owl")]
        actions += [{"action": "label", "image": image, "class": image % 3} for image in range(12)]
        actions += [{"action": "skip", "image": 20}, {"action": "foreign", "image": 21}, {"action": "undo"}]
        actions += [{"action": "merge", "class": 2, "into": 1}, {"action": "rename", "class": 0, "name": "lynx"}]
        for number, action in enumerate(actions):
            session.act({**action, "client": f"{number:08x}", "seconds": 1})
        session.close()
        (out / "labels.csv").write_text("file,label\n")  # as the server writes it

    def open_session(self) -> int:
        """What the server does when it starts; its message is shown on the page."""
        source, out = PoolSource(str(self.photos)), self.work / "session"
        _stored_secret(out)
        session = Session(ImagePool(source), out)
        try:
            embed_pool(source, network(), out, 0, session.on_progress)
            stored = FeatureRows(out / FEATURES, session.pool.keys)
            stored.refresh()
            features = {int(image): stored.features[row].tobytes() for row, image in enumerate(stored.images)}
            shown = [session.thumbnails.get(image) for image in range(len(session.pool))]
            state = session.state
            classes = [(number, item.name, item.into) for number, item in state.classes.items()]
            labels = [array.tolist() for array in (state.label, state.source, state.status, state.audit)]
            found = [sorted(features.items()), shown, classes, labels, state.undo_depth, round(state.seconds)]
            (self.work / "out.txt").write_text(repr(found))
            print(session.message, file=sys.stderr)
        finally:
            session.close()
        return 0

    def run_exported(self, suffix: str) -> int:
        """Compare the checksum, then ask the model; what the model alone would have said is noted, too."""
        path = self.work / "exported" / f"model.{suffix}"
        checked = subprocess.run(
            ["sha256sum", "-c", "--strict", f"{path.name}.sha256"], cwd=path.parent, capture_output=True
        )
        pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
        self.alone = "refused"
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            self.alone = hashlib.sha256(np.round(ask(path, pixels), 4).tobytes()).hexdigest()
        if checked.returncode:
            print(f"{path.name}: the checksum does not fit", file=sys.stderr)
            return 2
        (self.work / "out.txt").write_text(self.alone)
        return 0

    def commands(self) -> dict[str, Command]:
        """What is run, and what reads its result."""
        out = self.work / "out"
        bank, sharded = str(self.work / "shards/bank"), str(self.work / "shards/run")
        words = {
            "shards predict": (["predict", sharded, "--shards", bank, "-o", f"{out}.csv"], reader(f"{out}.csv")),
            "shards select": (["select", sharded, "--shards", bank, "-o", f"{out}.csv"], reader(f"{out}.csv")),
            "shards suggest": (["suggest", "--shards", bank, "-o", f"{out}.csv"], reader(f"{out}.csv")),
            "shards embed": (self.embed(), reader(*(self.work / "shards/bank" / name for name in BANK))),
        }
        for run in self.runs:
            path, half = str(self.work / run), self.work / f"{run}-half"
            words |= {
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
        found: dict[str, Command] = {
            name: (functools.partial(main, argv), read) for name, (argv, read) in words.items()
        }
        found["session open"] = (lambda: run_guarded(lambda _: self.open_session(), [], "label"), reader(f"{out}.txt"))
        for suffix in ("onnx", "pt2"):
            found[f"exported {suffix}"] = (functools.partial(self.run_exported, suffix), reader(f"{out}.txt"))
        return found

    def run(self, name: str) -> Answer:
        """Run a command in this process."""
        work, read = self.commands()[name]
        said, shown = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown), warnings.catch_warnings():
            warnings.simplefilter("always")
            status = guarded(work)
        result = read() if status == 0 else ""
        return status, result, said.getvalue()

    def restored(self) -> Bench:
        """With undamaged files, and their times."""
        shutil.rmtree(self.work)
        shutil.copytree(self.pristine, self.work)
        return self


def guarded(work: Callable[[], int]) -> int:
    """The status of a command; −1 with a traceback, −2 if it takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        return work()
    except TimeoutError:
        return -2
    except BaseException:
        traceback.print_exc()
        return -1
    finally:
        signal.alarm(0)


def network() -> Network:
    return Network("test_resnet", "none", 32, "cpu", "torch")


def mkdir(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def ask(path: Path, pixels: np.ndarray) -> np.ndarray:
    """Probabilities by an exported model."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"images": pixels})[0])
    return torch.export.load(path).module()(torch.from_numpy(pixels))[0].detach().numpy()


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
    if path.suffix in (".safetensors", ".json") and path.parent.name == "bank":
        return "shards/index.json" if path.suffix == ".json" else "shards/shard.safetensors"
    folder = next((name for name in ("cache", "session", "exported") if name in path.parts), "")
    folder = "bank" if "banks" in path.parts else folder
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
    if run == "exported":
        return [f"exported {path.name.split('.')[1]}"]
    if run in ("shards", "session"):
        again = path.parent.name != "bank"  # embedding does not read the run
        return [name for name in names if name.startswith(run) and not (again and name.endswith("embed"))]
    if run.endswith("-half"):
        return [f"{run.removesuffix('-half')} {command}" for command in ("resume", "half-report")]
    return [name for name in names if name.startswith(f"{run} ") and not name.endswith(("resume", "half-report"))]


def case(bench: Bench, rng: random.Random) -> dict[str, str]:
    """One damage, and what a command made of it."""
    bench.restored()
    kinds: dict[str, list[Path]] = {}
    for path in sorted(bench.work.rglob("*")):
        if path.is_file() and path.stat().st_size and path.name not in UNREAD:
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
    said = "" if found in ("detected", "harmless") else said[-1500:]
    one = {"kind": kind, "file": where, "damage": how, "command": name, "found": found, "said": said}
    if name.startswith("exported") and not where.endswith(".sha256"):
        same = "same" if bench.alone == bench.whole[name] else "OTHER"
        one["alone"] = "refused" if bench.alone == "refused" else same
    return one


def summary(cases: list[dict[str, str]], command: str) -> dict[str, object]:
    """Counts in total and per kind of file."""
    results = ("detected", "harmless", "SILENT", "traceback", "hang")
    table: dict[str, dict[str, int]] = {}
    for one in cases:
        table.setdefault(one["kind"], dict.fromkeys(results, 0))[one["found"]] += 1
    total = {name: sum(row[name] for row in table.values()) for name in results}
    faults = [one for one in cases if one["found"] not in ("detected", "harmless")]
    alone = Counter(one["alone"] for one in cases if "alone" in one)
    return {
        "command": command, "damages": len(cases), **total, "mended": sum("before" in one for one in cases),
        "exported_without_checksum": dict(alone),
        "table": dict(sorted(table.items())), "faults": faults, "cases": cases,
    }  # fmt: skip


def run(
    count: int, seed: int, seconds: float, out: Path, runs: Sequence[str] = ("scratch", "frozen")
) -> dict[str, object]:
    """So many damages, or as many as the time allows."""
    cases = json.loads(out.read_text())["cases"] if out.is_file() else []
    began = time.monotonic()
    command = f"python tools/reliability/damage.py --count {count} --seed {seed}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(Path(home), runs)
        for number, one in enumerate(cases):
            if one["found"] not in ("detected", "harmless"):  # which may be mended by now
                cases[number] = case(bench, random.Random(f"{seed} {number}"))
                cases[number]["before"] = one["found"]
                print(number, cases[number], flush=True)
        while len(cases) < count and time.monotonic() - began < seconds:
            cases.append(case(bench, random.Random(f"{seed} {len(cases)}")))
            if cases[-1]["found"] not in ("detected", "harmless"):
                print(len(cases), cases[-1], flush=True)
            if len(cases) % 20 == 0:
                write_json(out, summary(cases, command))
    found = summary(cases, command)
    write_json(out, found)
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
    print({name: value for name, value in result.items() if name not in ("table", "faults", "cases")})
    sys.exit(0 if not result["faults"] else 1)
