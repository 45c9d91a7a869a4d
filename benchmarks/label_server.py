"""`python -m benchmarks label_server`: memory and latency of the labeling page while it learns, on made-up features."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.label import LabelOptions, LabelServer, Network, PoolSource
from vcc_infuse.label.embedding import open_features
from vcc_infuse.label.images import ImagePool
from vcc_infuse.label.processes import Processes
from vcc_infuse.label.thumbnails import Records

CLASSES = 10
WIDTH = 1280
LINKS = 30_000
PATIENCE = 300.0  # seconds


def main(argv: Sequence[str]) -> None:
    """Write results/label/server.md."""
    parser = Parser("python -m benchmarks label_server", "Memory and latency of the labeling page.")
    parser.add_argument("--images", type=integer(), default=100_000, help="photos (100,000)")
    parser.add_argument("--clicks", type=integer(), default=150, help="labels given while the model learns (150)")
    parser.add_argument("--out", default="results/label/server.md")
    options = parser.read(argv)
    with tempfile.TemporaryDirectory() as folder:
        page = measure(Path(folder), options.images, options.clicks)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(page)
    print(page)


def measure(folder: Path, images: int, clicks: int) -> str:
    """Start a server on images that are embedded already, and label while it trains."""
    from starlette.testclient import TestClient

    began = time.perf_counter()
    source = prepare(folder, images)
    prepared = time.perf_counter()
    network = Network()
    background = Processes(source, network, folder / "out", 0)
    server = LabelServer(source, LabelOptions(out=str(folder / "out"), network=network), background=background)
    base = "http://127.0.0.1:8123"
    client = TestClient(server.app, base_url=base, headers={"origin": base})
    client.get(f"/?token={server.keys.token}")
    item = client.get("/api/next?count=1").json()["items"][0]
    client.get(f"/thumb/{item['id']}")
    first = time.perf_counter() - prepared
    server.start()
    while client.get("/api/state").json()["phase"] != "ready" and time.perf_counter() - prepared < PATIENCE:
        time.sleep(0.5)
    for cls in range(CLASSES):
        client.post("/api/act", json={"action": "new_class", "name": f"class {cls}"})
    act, following = label(client, clicks)
    waited = time.perf_counter()
    while (state := client.get("/api/state").json())["model"] is None and time.perf_counter() - waited < PATIENCE:
        time.sleep(1)
    memory = {"the server": rss(os.getpid()), "the process that trains": rss(background.children[1][0].pid)}
    server.close()
    lines = [
        f"# The labeling page with {images:,} photos",
        "",
        f"`python -m benchmarks label_server --images {images} --clicks {clicks}` on {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; made-up features of width {WIDTH}, preparing took {prepared - began:.0f} s.",
        "",
        "| | |",
        "|---|---|",
        f"| first image after | {first:.1f} s |",
        f"| label, median (90 %) while training | {_ms(act)} |",
        f"| next image, median (90 %) | {_ms(following)} |",
        f"| a head on all labels | {(state['model'] or {}).get('seconds', 'more than 300')} s |",
        *(f"| memory of {name} | {size:,.0f} MB |" for name, size in memory.items()),
        "",
    ]
    return "\n".join(lines)


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


def label(client: object, clicks: int) -> tuple[list[float], list[float]]:
    """Seconds of each label and each request for the next image, three images a second."""
    from starlette.testclient import TestClient

    assert isinstance(client, TestClient)
    names = sorted(f"{number}.png" for number in range(client.get("/api/state").json()["images"]))
    act = []
    following = []
    for _ in range(clicks):
        began = time.perf_counter()
        item = client.get("/api/next?count=1").json()["items"][0]
        middle = time.perf_counter()
        body = {"action": "label", "image": item["id"], "class": _class(names[item["id"]]), "audit": item["audit"]}
        client.post("/api/act", json={**body, "seconds": 2}).raise_for_status()
        following.append(middle - began)
        act.append(time.perf_counter() - middle)
        time.sleep(0.3)
    return act, following


def rss(process: int | None) -> float:
    """Resident megabytes of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    main(sys.argv[1:])
