"""A folder of which one image in a hundred is broken: the run ends, and every broken image is listed.

    python tools/reliability/broken_images.py                      2,000 images → results/reliability/broken_images.json
    python tools/reliability/broken_images.py --images 300 --out /tmp/broken.json

Broken means empty, cut short, text, zeros, or a PNG with one wrong byte, in turns.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vcc_infuse.cli.main import main
from vcc_infuse.utils.io import write_json

ROOT = Path(__file__).parents[2]
CLASSES, SHARE = ("ant", "bee", "cat"), 100


def png(rng: np.random.Generator) -> bytes:
    """A picture of noise."""
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def broken(content: bytes, kind: int) -> bytes:
    """One of five ways to spoil a file."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :]
    return (b"", content[:middle], b"not an image", bytes(len(content)), flipped)[kind % 5]


def make(folder: Path, images: int) -> set[str]:
    """Write the folder; returns the names of the broken images."""
    rng, names = np.random.default_rng(0), set()
    for number in range(images):
        name = f"{CLASSES[number % 3]}/{number}.png"
        content = png(rng)
        if number % SHARE == SHARE // 2:
            names.add(name)
            content = broken(content, number // SHARE)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return names


def run(images: int) -> dict[str, Any]:
    """Train on such a folder through the command line, and compare what is listed with what is broken."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="broken-") as temporary:
        folder = Path(temporary)
        names = make(folder / "data", images)
        words = "--labels 30 --preset scratch --steps 20 --batch_size 8 --unlabeled_ratio 2 --progress false"
        places = ["--data", f"{folder}/data", "--cache", f"{folder}/cache", "--out", f"{folder}/run"]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            status = main(["train", *words.split(), *places])
        listed = {
            os.path.normpath(line.split("\t")[0]) for line in (folder / "run/skipped.tsv").read_text().splitlines()
        }
        summary = json.loads((folder / "run/summary.json").read_text())
        page = (folder / "run/report.html").read_text()
    return {
        "images": images, "broken": len(names), "listed": len(listed & names), "listed_but_whole": len(listed - names),
        "exit_status": status, "warnings": summary["warnings"],
        "on_the_screen": any("skipped" in str(one.message) for one in said),
        "in_the_report": f"{len(names)} files skipped" in page, "seconds": round(time.perf_counter() - began),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=ROOT / "results/reliability/broken_images.json")
    chosen = parser.parse_args()
    found = {"command": f"python tools/reliability/broken_images.py --images {chosen.images}", **run(chosen.images)}
    found["warnings"] = [text.replace(tempfile.gettempdir(), "TMP") for text in found["warnings"]]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out, found)
    print(f"{found['listed']} of {found['broken']} broken images are listed; exit status {found['exit_status']}")
