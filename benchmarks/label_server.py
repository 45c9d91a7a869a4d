"""The labeling page with very many photos: memory, latency over HTTP while the model learns, and time to learn.

The photos are links to a few files and their features are made up, so that embedding takes no time here; everything
else is real: `vcc-infuse label` in a process of its own, HTTP, and Chromium where it is installed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.label import Network, PoolSource
from vcc_infuse.label.embedding import open_features
from vcc_infuse.label.images import ImagePool
from vcc_infuse.label.jobs import Job
from vcc_infuse.label.thumbnails import Records
from vcc_infuse.label.worker import Learner

from .label_browser import in_chromium, pss

CLASSES = 10
WIDTH = 1280
LINKS = 30_000
PATIENCE = 300.0  # seconds
RETRAINED = 10_000
LABELS = (100, 400)


def main(argv: Sequence[str]) -> None:
    """Write results/label/server.md."""
    parser = Parser("python -m benchmarks label_server", "Memory and latency of the labeling page.")
    parser.add_argument("--images", type=integer(), default=100_000, help="photos (100,000)")
    parser.add_argument("--clicks", type=integer(), default=150, help="labels given while the model learns (150)")
    parser.add_argument("--out", default="results/label/server.md")
    options = parser.read(argv)
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(Path(folder), options.images, options.clicks)
    with tempfile.TemporaryDirectory() as folder:
        lines += retraining(Path(folder))
    page = "\n".join(lines)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(page)
    print(page)


class Client:
    """A browser's connection to the page."""

    def __init__(self, address: str) -> None:
        self.port = int(address.split(":")[2].split("/")[0])
        self.headers = {"origin": f"http://127.0.0.1:{self.port}", "content-type": "application/json"}
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.connection.request("GET", address.split(str(self.port))[1])
        response = self.connection.getresponse()
        response.read()
        self.headers["cookie"] = str(response.getheader("set-cookie")).split(";")[0]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[Any, float]:
        """The answer, and how many seconds it took."""
        began = time.perf_counter()
        content = None if body is None else json.dumps(body)
        self.connection.request("GET" if body is None else "POST", path, content, self.headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(answer.decode())
        return answer, time.perf_counter() - began

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer."""
        return json.loads(self.ask(path, body)[0])


def measure(folder: Path, images: int, clicks: int) -> list[str]:
    """Start the command on images that are embedded already, and label while it trains."""
    began = time.perf_counter()
    prepare(folder, images)
    prepared = time.perf_counter()
    command = [sys.executable, "-m", "vcc_infuse", "label", str(folder / "photos"), "--out", str(folder / "out")]
    server = subprocess.Popen([*command, "--no-browser"], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(found[1] for line in server.stderr if (found := re.search(r"open (http\S+)", line)))
        client = Client(address)
        item = client.json("/api/next?count=1")["items"][0]
        client.ask(f"/thumb/{item['id']}")
        first = time.perf_counter() - prepared
        while client.json("/api/state")["phase"] != "ready" and time.perf_counter() - prepared < PATIENCE:
            time.sleep(0.5)
        for cls in range(CLASSES):
            client.ask("/api/act", {"action": "new_class", "name": f"class {cls}", "key": str(cls) if cls else ""})
        act, following, learning = label(client, clicks)
        memory = {"the server": pss(server.pid), "the process that trains": max(map(pss, children(server.pid)))}
        waited = time.perf_counter()
        while (model := client.json("/api/state")["model"]) is None and time.perf_counter() - waited < PATIENCE:
            time.sleep(1)
        seen = in_chromium(client.port, client.headers["cookie"], folder) if shutil.which("chromium") else {}
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
    rows = {
        "first image after": f"{first:.1f} s",
        f"a label over HTTP, median (90 %) of {clicks}, the model learning in {learning:.0%} of them": _ms(act),
        "the next image over HTTP, median (90 %)": _ms(following),
        "a head on all labels": f"{model['seconds']} s" if model else "more than 300 s",
        **{f"memory of {name} (PSS)": f"{size:,.0f} MB" for name, size in memory.items()},
        **{name: _ms(value) if isinstance(value, list) else value for name, value in seen.items()},
    }
    return [
        f"# The labeling page with {images:,} photos",
        "",
        f"`python -m benchmarks label_server --images {images} --clicks {clicks}` on {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; made-up features of width {WIDTH}, preparing took {prepared - began:.0f} s.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
    ]


def _ms(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{1000 * statistics.median(ordered):.0f} ms ({1000 * ordered[int(0.9 * len(ordered))]:.0f} ms)"


def prepare(folder: Path, images: int) -> PoolSource:
    """Photos that are links to a few files, with features of groups and one thumbnail for all."""
    rng = np.random.default_rng(0)
    photos = folder / "photos"
    photos.mkdir()
    for number in range(images):
        path = photos / f"{number}.png"
        if number % LINKS == 0:  # a file system allows so many names of one file
            original = path
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(path)
        else:
            os.link(original, path)
    source = PoolSource(str(photos))
    pool = ImagePool(source)
    centers = rng.normal(0, 0.3, (CLASSES, WIDTH))
    thumbnail = pool.webp(0)
    with Records(folder / "out" / "thumbnails.bin") as thumbnails, open_features(folder / "out", Network().key) as rows:
        for number, key in enumerate(pool.keys):
            thumbnails.add(key, thumbnail)
            row = centers[_class(pool.names[number])] + rng.standard_normal(WIDTH, np.float32)
            rows.add(key, row.astype(np.float16).tobytes())
    return source


def _class(name: str) -> int:
    return int(name.removesuffix(".png")) % CLASSES


def label(client: Client, clicks: int) -> tuple[list[float], list[float], float]:
    """Seconds of each label and each request for the next image, three a second; how often the model was learning."""
    names = sorted(f"{number}.png" for number in range(client.json("/api/state")["images"]))
    act = []
    following = []
    learning = 0
    for _ in range(clicks):
        answer, seconds = client.ask("/api/next?count=1")
        following.append(seconds)
        item = json.loads(answer)["items"][0]
        body = {"action": "label", "image": item["id"], "class": _class(names[item["id"]]), "audit": item["audit"]}
        answer, seconds = client.ask("/api/act", {**body, "seconds": 2})
        act.append(seconds)
        model = json.loads(answer)["state"]["model"]
        learning += model is None or bool(model["training"])
        time.sleep(0.3)
    return act, following, learning / clicks


def retraining(folder: Path) -> list[str]:
    """CPU seconds of the process that trains, for as many photos and labels."""
    source = prepare(folder, RETRAINED)
    pool = ImagePool(source)
    truth = np.array([_class(name) for name in pool.names])
    learner = Learner(folder / "out", pool.keys)
    nobody = np.zeros(RETRAINED, bool)
    body = []
    for labels in (20, *LABELS):  # the first one reads the features
        label = np.where(np.arange(RETRAINED) < labels, truth, -1)
        job = Job(1, label, nobody, nobody, nobody, tuple(range(CLASSES)), tuple("0123456789"), 20.0, True)
        began = time.process_time()
        learner.quick(job)
        middle = time.process_time()
        learner.full(job, lambda: None)
        body.append(f"| {labels} | {middle - began:.1f} | {time.process_time() - middle:.1f} |")
    return [
        f"## Learning from {RETRAINED:,} photos",
        "",
        "CPU seconds of one core; the default method is cross-validated and takes over only where it is better.",
        "",
        "| labels | quick head | default method |",
        "|---|---|---|",
        *body[1:],
        "",
    ]


def children(process: int) -> list[int]:
    """Those that a process has started."""
    return [int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


if __name__ == "__main__":
    main(sys.argv[1:])
