"""Kill the labeling server and its processes, and workers that embed into shards: nothing answered may be lost.

    python tools/reliability/kill_services.py --sessions 16 --shards 10 --ray 8

label: a client labels, skips, takes back and undoes, and keeps a list of its own of what was answered. The server, or
a process beside it, gets SIGKILL at a random moment, and a new one starts on the same folder. Its labels must be those
of the list; the click that nobody answered may count or not. Every other session embeds photos meanwhile; in the end
their features must have the bits of a session that was left alone.

shards: `embed --shards` on two processes, or on Ray, whose workers, or which itself, get SIGKILL; then the same command
once more. Names and features must have the bits of a bank that was left alone, and no process may be left over.
The same command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vcc_infuse import Shards
from vcc_infuse.cli.main import main
from vcc_infuse.label import LabelOptions, Network, PoolSource, launch
from vcc_infuse.label.embedding import FEATURES, FeatureRows, embed_pool
from vcc_infuse.label.images import ImagePool
from vcc_infuse.label.session import Session
from vcc_infuse.utils.io import write_json

NETWORK = "--model.name test_resnet --model.weights none --model.input_size 32"
CLASSES = ("red", "green", "blue")
PHOTOS = 400
KILLS = 5  # of one session
PATIENCE = 60.0
Labels = dict[str, str]  # what was said of each image, by its name


class Idle:
    """Nothing is computed beside the server."""

    def start(self, *_: object) -> None:
        pass

    def submit(self, job: object) -> None:
        pass

    def close(self) -> None:
        pass


# --- the labeling server


def network() -> Network:
    return Network("test_resnet", "none", 32, "cpu", "torch")


def serve(photos: Path, out: Path, log: Path, idle: bool) -> int:
    """The server in a process of its own; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    if idle:
        launch.Processes = lambda *_: Idle()  # type: ignore[assignment,misc]
    status = 1
    try:
        launch.serve(PoolSource(str(photos)), LabelOptions(out=str(out), network=network()), browser=False)
        status = 0
    finally:
        os._exit(status)


class Client:
    """A browser's connection, opened with the secret that the folder keeps."""

    def __init__(self, out: Path, log: Path, starts: int) -> None:
        wait_for(lambda: len(re.findall(r"open http", log.read_text())) >= starts)
        port = int(re.findall(r"open http://127.0.0.1:(\d+)/", log.read_text())[-1])
        cookie = f"vcc_infuse_label_{port}={(out / '.session').read_text()}"
        self.headers = {"origin": f"http://127.0.0.1:{port}", "content-type": "application/json", "cookie": cookie}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        self.connection.request(
            "POST" if body else "GET", path, json.dumps(body) if body else None, self.headers
        )  # fmt: skip
        response = self.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer[:200]!r}")
        return json.loads(answer)


def wait_for(done: Callable[[], bool], patience: float = PATIENCE) -> bool:
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Person:
    """Says something of random images, and remembers it in the simplest way: a dictionary, and earlier ones."""

    def __init__(self, names: list[str], rng: random.Random) -> None:
        self.names = names
        self.rng = rng
        self.said: Labels = {}
        self.before: list[Labels] = []
        self.pending: Labels | None = None

    def click(self, client: Client) -> None:
        """One action; what is said counts once it was answered."""
        after = dict(self.said)
        image = self.rng.randrange(len(self.names))
        kind = self.rng.choice(["label", "label", "label", "skip", "unlabel", "undo"])
        body: dict[str, Any] = {"action": kind, "seconds": 1, "client": f"{self.rng.getrandbits(64):x}"}
        if kind == "undo":
            if not self.before:
                return
            after = dict(self.before[-1])
        else:
            body["image"] = image
            after.pop(self.names[image], None)
        if kind == "label":
            body["class"] = self.rng.randrange(len(CLASSES))
            after[self.names[image]] = CLASSES[body["class"]]
        if kind == "skip":
            after[self.names[image]] = "skipped"
        self.pending = after
        client.ask("/api/act", body)
        self.before = self.before[:-1] if kind == "undo" else [*self.before, self.said]
        self.said = after
        self.pending = None


def stored_labels(photos: Path, out: Path) -> Labels:
    """What the journal holds."""
    session = Session(ImagePool(PoolSource(str(photos))), out)
    try:
        state = session.state
        found = {
            session.pool.names[i]: state.classes[int(state.label[i])].name for i in np.flatnonzero(state.label >= 0)
        }
        return found | {session.pool.names[i]: "skipped" for i in np.flatnonzero(state.status == 1)}
    finally:
        session.close()


def label_case(rng: random.Random, home: Path, idle: bool) -> dict[str, Any]:
    """One session that is killed several times."""
    photos, out, log = home / "photos", home / "out", home / "log"
    draw(photos, PHOTOS if not idle else 60)
    log.touch()
    person = Person(ImagePool(PoolSource(str(photos))).names, rng)
    found: dict[str, Any] = {"kind": "label" if idle else "label, embedding", "kills": 0, "answers": 0, "faults": []}
    starts = 0
    while found["kills"] < KILLS:
        server = serve(photos, out, log, idle)
        starts += 1
        try:
            client = Client(out, log, starts)
            if starts == 1:
                for name in CLASSES:
                    client.ask("/api/act", {"action": "new_class", "name": name})
            victim = click_and_kill(person, client, server, rng, idle, found)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
        stored = stored_labels(photos, out)
        if stored not in (person.said, person.pending):
            found["faults"].append(f"{victim} was killed: {len(stored)} labels, not {len(person.said)}")
        if stored == person.pending:  # it came to the disk, but not back
            person.before = []
            person.said = stored
        person.before = []
    if not idle:
        found["faults"] += same_features(photos, out, home)
    if "Traceback" in (said := log.read_text()):
        found["faults"].append(said[-2000:])
    return found


def click_and_kill(
    person: Person, client: Client, server: int, rng: random.Random, idle: bool, found: dict[str, Any]
) -> str:
    """Label until a process is killed, and a little longer if that was not the server; returns which it was."""
    victim = "server" if idle else rng.choice(["server", "server", "a process beside it"])
    killer = os.fork()
    if killer == 0:  # in the middle of a click, which a thread of the same process would not hit
        time.sleep(rng.uniform(0.02, 0.6) if idle else rng.uniform(0.1, 8))
        beside = [pid for pid in below(server) if "spawn_main" in command(pid)]
        chosen = rng.choice(beside) if beside and victim != "server" else server
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)
        os._exit(0)
    rng.random()
    ended = False
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            if not ended and os.waitpid(killer, os.WNOHANG)[0]:
                ended = True
                found["kills"] += 1
                last = found["answers"] + 10
            if ended and found["answers"] >= last:
                break
            person.click(client)
            found["answers"] += 1
            time.sleep(0 if idle else 0.05)
    if not ended:
        os.waitpid(killer, 0)
        found["kills"] += 1
    return victim


def same_features(photos: Path, out: Path, home: Path) -> list[str]:
    """Embed the rest, and compare with features of photos that were embedded at once."""
    source = PoolSource(str(photos))
    rows = []
    for folder in (out, home / "alone"):
        folder.mkdir(exist_ok=True)
        with contextlib.redirect_stderr(io.StringIO()):
            embed_pool(source, network(), folder, 0, lambda progress: None)
        stored = FeatureRows(folder / FEATURES, ImagePool(source).keys)
        stored.refresh()
        rows.append({int(image): stored.features[row].tobytes() for row, image in enumerate(stored.images)})
    return [] if rows[0] == rows[1] and len(rows[0]) == PHOTOS else [f"features differ ({len(rows[0])} rows)"]


def draw(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / f"{number:04d}.png")


# --- processes


def below(process: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def command(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


# --- shards


def embed(data: str, bank: Path, log: Path, more: list[str]) -> int:
    """`embed --shards` in a process of its own, which leads a group; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    status = 1
    try:
        words = ["--data", data, "--shards", str(bank), "--device", "cpu", "--engine", "torch", *NETWORK.split()]
        status = main(["embed", *words, *more])
    finally:
        sys.stdout.flush()
        if ray := sys.modules.get("ray"):  # which Python would do on its way out
            ray.shutdown()
        os._exit(status)


def shard_case(rng: random.Random, home: Path, ray: bool) -> dict[str, Any]:
    """Banks of the same tars: one left alone, one killed."""
    data, log = str(home / "part-*.tar"), home / "log"
    write_tars(home, 10)
    found: dict[str, Any] = {"kind": "shards on Ray" if ray else "shards", "kills": 0, "killed itself": 0, "faults": []}
    os.waitpid(embed(data, home / "whole", log, []), 0)
    more = ["--workers", "2", *(["--backend", "ray"] if ray else [])]
    mark = "ray::_in_worker" if ray else "spawn_main"
    for _ in range(4):
        process = embed(data, home / "bank", log, more)
        status = kill_workers(process, mark, rng, found)
        if rest := left_over(process, PATIENCE if ray else 20):
            found["faults"].append(f"left over: {[command(pid)[:60] for pid in rest]}")
            for pid in rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if status == 0:
            break
    else:
        status = os.waitstatus_to_exitcode(os.waitpid(embed(data, home / "bank", log, []), 0)[1])
    if status or digest(home / "whole") != digest(home / "bank"):
        found["faults"].append(f"status {status}, other shards: {log.read_text()[-1500:]}")
    if "Traceback" in log.read_text() and not found["killed itself"]:  # then a worker may find nobody to talk to
        found["faults"].append(log.read_text()[-2000:])
    return found


def kill_workers(process: int, mark: str, rng: random.Random, found: dict[str, Any]) -> int:
    """Kill up to three workers at work, sometimes the process itself at last; returns its exit status."""
    orders = ["worker"] * rng.randint(1, 3) + (["all"] if rng.random() < 0.4 else [])
    while orders:
        at_work: list[int] = []

        def ready(at_work: list[int] = at_work) -> bool:
            at_work[:] = [pid for pid in below(process) if mark in command(pid)]
            return bool(at_work) or ended(process)

        wait_for(ready)
        time.sleep(rng.uniform(0, 4))
        if ended(process):
            break
        chosen = process if orders.pop(0) == "all" else rng.choice(at_work)
        found["killed itself"] += chosen == process
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)
            found["kills"] += 1
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def ended(process: int) -> bool:
    """Whether it has ended; it stays a zombie until somebody asks for its status."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def left_over(group: int, patience: float) -> list[int]:
    """Living processes of the session that a process has led, after some time."""
    found: list[int] = []

    def nobody() -> bool:
        found.clear()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == group and fields[0] != "Z":
                    found.append(int(path.parent.name))
        return not found

    wait_for(nobody, patience)
    return found


def digest(bank: Path) -> list[tuple[str, bytes]]:
    """Every row: its name and its bits."""
    shards = Shards(bank)
    return sorted(zip(shards.names, (row.tobytes() for row in shards.rows(np.arange(len(shards)))), strict=True))


def write_tars(home: Path, count: int, images: int = 500) -> None:
    rng = np.random.default_rng(0)
    content = []
    for _ in range(20):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(file, "JPEG")
        content.append(file.getvalue())
    for number in range(count):
        with tarfile.open(home / f"part-{number}.tar", "w") as archive:
            for place in range(images):
                entry = tarfile.TarInfo(f"{place:04d}.jpg")
                entry.size = len(content[(place + number) % 20])
                archive.addfile(entry, io.BytesIO(content[(place + number) % 20]))


# --- all of them


def run(plan: list[str], seed: int, seconds: float, out: Path, words: str) -> dict[str, Any]:
    """The cases of the plan that an earlier call has not done."""
    cases = json.loads(out.read_text())["cases"] if out.is_file() else []
    began = time.monotonic()
    for number in range(len(cases), len(plan)):
        if time.monotonic() - began > seconds:
            break
        rng = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as home:
            case = label_case if plan[number].startswith("label") else shard_case
            cases.append(case(rng, Path(home), plan[number].endswith("!")))
            print(len(cases), cases[-1], flush=True)
        write(cases, out, words, len(plan))
    return write(cases, out, words, len(plan))


def write(cases: list[dict[str, Any]], out: Path, words: str, planned: int) -> dict[str, Any]:
    table: dict[str, dict[str, int]] = {}
    for one in cases:
        row = table.setdefault(one["kind"], {"cases": 0, "kills": 0, "answers": 0, "faults": 0})
        row["cases"] += 1
        for name in ("kills", "answers"):
            row[name] += one.get(name, 0)
        row["faults"] += len(one["faults"])
    found = {
        "command": f"python tools/reliability/kill_services.py {words}",
        "planned": planned,
        **{name: sum(row[name] for row in table.values()) for name in ("cases", "kills", "answers", "faults")},
        "table": table,
        "cases": cases,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, found)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16, help="of labeling, with five kills each (16)")
    parser.add_argument("--shards", type=int, default=10, help="banks on processes (10)")
    parser.add_argument("--ray", type=int, default=8, help="banks on Ray (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("results/reliability/kill_services.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    order = ["label!", "label!", "label"] * options.sessions
    order = [*order[: options.sessions], *["shards"] * options.shards, *["shards!"] * options.ray]
    said = f"--sessions {options.sessions} --shards {options.shards} --ray {options.ray} --seed {options.seed}"
    result = run(order, options.seed, options.seconds, options.out, said)
    print({name: value for name, value in result.items() if name != "cases"})
    sys.exit(bool(result["faults"]))
