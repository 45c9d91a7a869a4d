"""Very many requests to one labeling server: do memory, threads or open files grow?

    python tools/reliability/soak_label.py --requests 100000

The server is that of `vcc-infuse label`, with its two processes, on drawn photos. Eight clients ask for what a page
asks for, answer one request in fifty, send one in ten that must be refused, drop streams of events half-way and open
new connections. Every thousand requests the memory, threads and open files of the server and the memory of its
processes are noted. An answer may leave something behind, because any number of them can be undone; a question may not.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from kill_services import CLASSES, Client, below, draw, serve
from soak import growth

from vcc_infuse.runs.folder import versions
from vcc_infuse.utils.io import write_json

PHOTOS = 300
ANSWERS = 50  # requests per answer
AT_ONCE = 8  # pages
STRETCH = 1000  # requests between two samples
REFUSED = [
    ("GET", "/thumb/999999", None), ("GET", "/thumb/../secret", None), ("GET", "/api/next?count=0", None),
    ("GET", "/api/grid?class=77", None), ("GET", "/nothing", None), ("POST", "/api/act", "no JSON"),
    ("POST", "/api/act", '{"action": "label", "image": -1}'), ("POST", "/api/export", '{"format": "moon"}'),
    ("PUT", "/api/state", None), ("GET", "/page/x.exe", None),
]  # fmt: skip


def memory(process: int) -> float:
    """Megabytes of a process, or 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def sample(server: int) -> dict[str, float]:
    beside = [memory(pid) for pid in below(server)]
    return {
        "server_mb": round(memory(server), 2), "processes_mb": round(sum(beside), 2), "processes": len(beside),
        "threads": len(os.listdir(f"/proc/{server}/task")), "files": len(os.listdir(f"/proc/{server}/fd")),
    }  # fmt: skip


class Page:
    """What a browser asks for."""

    def __init__(self, out: Path, log: Path, rng: random.Random) -> None:
        self.place = (out, log)
        self.rng = rng
        self.status = Counter[int]()
        self.client = Client(out, log, 1)

    def stretch(self, first: int) -> None:
        """This page's part of the requests until the next sample."""
        for number in range(first, first + STRETCH, AT_ONCE):
            self.request(number + 1)

    def request(self, number: int) -> None:
        """One request of the mixture."""
        if number % 97 == 0:
            self.client.connection.close()
            self.client = Client(*self.place, 1)
        if number % 499 == 0:
            self.drop_events()
        elif number % 2000 == 0:
            self.ask("POST", "/api/export", '{"format": "csv"}')
        elif number % ANSWERS == 0:
            image = self.rng.randrange(PHOTOS)
            body = {"action": "label", "image": image, "class": self.rng.randrange(len(CLASSES)), "client": f"{number}"}
            self.ask("POST", "/api/act", json.dumps(body))
        elif number % 10 == 0:
            self.ask(*self.rng.choice(REFUSED), refused=True)
        else:
            self.ask("GET", self.question(), None)

    def question(self) -> str:
        image = self.rng.randrange(PHOTOS)
        return self.rng.choice([
            f"/thumb/{image}", f"/thumb/{image}", f"/image/{image}", "/api/state", "/api/next?count=5", "/",
            f"/api/class/{image % 3}", f"/api/grid?class={image % 3}&count=12", "/api/clean?kind=doubtful",
            "/page/page.css",
        ])  # fmt: skip

    def ask(self, method: str, path: str, body: str | None, refused: bool = False) -> None:
        self.client.connection.request(method, path, body, self.client.headers)
        response = self.client.connection.getresponse()
        response.read()
        self.status[response.status] += 1
        if response.status >= 500 or (response.status >= 400) != refused:
            known = path.startswith(("/api/grid", "/api/clean", "/page", "/api/export"))  # before there is a model
            if response.status >= 500 or not known:
                raise RuntimeError(f"{method} {path}: {response.status}")

    def drop_events(self) -> None:
        """Listen for a moment, and go without a word."""
        stream = http.client.HTTPConnection("127.0.0.1", self.client.connection.port, timeout=10)
        stream.request("GET", "/api/events", None, self.client.headers)
        stream.getresponse().read1(100)
        self.status[200] += 1
        stream.close()


def soak(requests: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Ask, and take samples."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        photos, out, log = (Path(folder) / name for name in ("photos", "out", "log"))
        draw(photos, PHOTOS)
        log.touch()
        server = serve(photos, out, log, idle=False)
        began = time.monotonic()
        samples = []
        try:
            page = Page(out, log, rng)
            for name in CLASSES:
                page.ask("POST", "/api/act", json.dumps({"action": "new_class", "name": name}))
            pages = [page, *(Page(out, log, random.Random(f"{seed} {number}")) for number in range(1, AT_ONCE))]
            done = 0
            with ThreadPoolExecutor(AT_ONCE) as pool:
                while done < requests and time.monotonic() - began < seconds:
                    list(pool.map(Page.stretch, pages, range(done, done + AT_ONCE)))
                    done += STRETCH
                    samples.append(sample(server))
            lines = len((out / "journal.jsonl").read_text().splitlines()) - 1
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
        said = log.read_text()
    series = {name: [one[name] for one in samples] for name in samples[0]}
    after = series["server_mb"][len(samples) // 5 :]
    slope = float(np.polyfit(np.arange(len(after)) * STRETCH / ANSWERS, after, 1)[0]) * 2**20
    status = {str(key): sum(one.status[key] for one in pages) for key in (200, 400, 401, 404, 405)}
    return {
        "requests": done, "answers": lines, "status": status,
        "growth": {name: growth(values) for name, values in series.items()}, "server_bytes_per_answer": round(slope),
        "tracebacks": said.count("Traceback"), "said": said[-1000:] if "Traceback" in said else "",
        "seconds": round(time.monotonic() - began), "samples": series, "versions": versions(),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("results/reliability/soak_label.json"))
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found = {
        "command": f"python tools/reliability/soak_label.py --requests {chosen.requests}",
        **soak(chosen.requests, chosen.seconds),
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out, found)
    print({name: value for name, value in found.items() if name not in ("samples", "versions")})
