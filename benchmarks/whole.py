"""How long from a zip of 6,000 photos to a trained model, on the cores at hand?

VCC_INFUSE_DATA=/folder/with/zips python benchmarks/whole.py --out results/whole

The photos are those of cifar10.zip, as JPEGs of 96 px in class folders. `vcc-infuse train` with its defaults does the
rest in a process of its own and with an empty cache: it decodes, embeds, compares with the probe, trains and reports.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

from PIL import Image

from vcc_infuse.utils.io import write_json, write_text

SIDE, LABELS = 96, 100


def make_zip(source, target, count):
    """`count` photos, as many of each class, resized and written as JPEGs."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        by_class = {}
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


def run(photos, home):
    """The summary of the run, with its wall-clock and CPU seconds."""
    command = [sys.executable, "-m", "vcc_infuse", "train", "--data", str(photos), "--labels", str(LABELS)]
    out = home / "run"
    cache = {"VCC_INFUSE_CACHE": str(home / "cache")}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "--out", str(out)], check=True, env={**os.environ, **cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = json.loads((out / "summary.json").read_text())
    spent = {"seconds": time.perf_counter() - began, "seconds_cpu": cpu, "peak_mb": after.ru_maxrss / 1024}
    return {**{k: summary.get(k) for k in ("error", "error_probe", "seconds_embed", "seconds_train")}, **spent}


def table(count, cores, found):
    lines = [
        f"# From a zip of {count:,} photos of {SIDE} px to a trained model and its report", "",
        f"`vcc-infuse train --data photos.zip --labels {LABELS}` with an empty cache on {cores} cores.", "",
        "    VCC_INFUSE_DATA=… python benchmarks/whole.py --out results/whole", "",
        "| | |", "|---|---|",
        f"| whole, wall clock | {found['seconds']:.0f} s |",
        f"| whole, CPU | {found['seconds_cpu']:.0f} s |",
        f"| peak memory | {found['peak_mb']:,.0f} MB |",
        f"| error of the linear probe | {100 * found['error_probe']:.1f} % |",
        f"| error of the model | {100 * found['error']:.1f} % |", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=Path("results/whole"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        photos = Path(home) / "photos.zip"
        count = make_zip(Path(os.environ["VCC_INFUSE_DATA"]) / "cifar10.zip", photos, options.count)
        found = {"images": count, **run(photos, Path(home))}
    write_json(options.out.with_suffix(".json"), found)
    write_text(options.out.with_suffix(".md"), table(count, len(os.sched_getaffinity(0)), found))
