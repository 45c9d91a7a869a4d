"""How long from a zip of 6,000 photos to a trained model, on the cores at hand?

VCC_INFUSE_DATA=/folder/with/zips python -m benchmarks whole --out results/whole

The photos are those of cifar10.zip, as JPEGs of 96 px in class folders. `vcc-infuse train` with its defaults does the
rest in a process of its own and with an empty cache: it decodes, embeds, compares with the probe, trains and reports.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_json, write_text

SIDE = 96
LABELS = 100
KEPT = ("error", "error_probe", "seconds_embed", "seconds_train", "encoder", "input_size")


def main(argv: Sequence[str]) -> None:
    """Make the zip, train on it and write the table."""
    parser = Parser("python -m benchmarks whole", "Measure the time from a zip of photos to a trained model.")
    parser.add_argument("--count", type=integer(), default=6000, help="photos (6000)")
    parser.add_argument("--out", type=Path, default=Path("results/whole"), help="writes OUT.json and OUT.md")
    options = parser.read(argv)
    source = data_folder() / "cifar10.zip"
    with tempfile.TemporaryDirectory() as home:
        photos = Path(home) / "photos.zip"
        count = make_zip(source, photos, options.count)
        figures = {"images": count, **train(photos, Path(home))}
    write_json(options.out.with_suffix(".json"), figures)
    write_text(options.out.with_suffix(".md"), page(count, len(os.sched_getaffinity(0)), figures))


def data_folder() -> Path:
    """The folder with cifar10.zip and stl10.zip, from the environment."""
    if "VCC_INFUSE_DATA" not in os.environ:
        raise UserError("VCC_INFUSE_DATA is not set; set it to the folder with cifar10.zip and stl10.zip")
    return Path(os.environ["VCC_INFUSE_DATA"])


def make_zip(source: Path, target: Path, count: int) -> int:
    """Write `count` photos, as many of each class, resized, as JPEGs; returns how many there were."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        by_class: dict[str, list[str]] = {}
        for name in old.namelist():
            if name.endswith(".png") and "train" in PurePosixPath(name).parts:
                by_class.setdefault(PurePosixPath(name).parent.name, []).append(name)
        for label, names in by_class.items():
            for number, name in enumerate(names[: count // len(by_class)]):
                buffer = io.BytesIO()
                image = Image.open(io.BytesIO(old.read(name))).convert("RGB")
                image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG")
                new.writestr(f"{label}/{number}.jpg", buffer.getvalue())
        return len(new.namelist())


def train(photos: Path, home: Path) -> dict[str, Any]:
    """The summary of the run, with its wall-clock and CPU seconds."""
    out = home / "run"
    words = ["train", "--data", str(photos), "--labels", str(LABELS), "--out", str(out)]
    environment = {**os.environ, "VCC_INFUSE_CACHE": str(home / "cache")}
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "vcc_infuse", *words], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads((out / "summary.json").read_text())
    return {
        **{name: summary.get(name) for name in KEPT},
        "seconds": time.perf_counter() - began,
        "seconds_cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": after.ru_maxrss / 1024,
    }


def page(count: int, cores: int, figures: dict[str, Any]) -> str:
    """The Markdown page."""
    lines = [
        f"# From a zip of {count:,} photos of {SIDE} px to a trained model and its report", "",
        f"`vcc-infuse train --data photos.zip --labels {LABELS}` with an empty cache on {cores} cores.", "",
        "    VCC_INFUSE_DATA=… python -m benchmarks whole --out results/whole", "",
        "| | |", "|---|---|",
        f"| network, chosen on the labels, and its input size | {figures['encoder']}, {figures['input_size']} px |",
        f"| whole, wall clock | {figures['seconds']:.0f} s |",
        f"| whole, CPU | {figures['seconds_cpu']:.0f} s |",
        f"| peak memory | {figures['peak_mb']:,.0f} MB |",
        f"| error of the linear probe | {100 * figures['error_probe']:.1f} % |",
        f"| error of the model | {100 * figures['error']:.1f} % |", "",
    ]  # fmt: skip
    return "\n".join(lines)
