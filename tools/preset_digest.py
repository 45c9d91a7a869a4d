"""Digests of the final weights of short runs from the command line, one or more per preset.

A change of how a run is put together must not change them: record them before, compare them after.

    python tools/preset_digest.py SRC record.json            SRC: the src folder of a checkout
    python tools/preset_digest.py SRC now.json --only paper  runs whose name holds a word
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file

COMMON = "--batch_size 6 --progress false --report false --device cpu --precision fp32 --seed 3"
DIGITS = "--data digits --labels 40"
SMALL = "--model.input_size 32"
WIDE = "--model WideResNet --model.depth 10 --model.width 1"
RUNS = {
    "scratch-FixMatch": f"{DIGITS} --preset scratch --steps 30 --algorithm FixMatch --algorithm.threshold 0.5",
    "auto-digits": f"{DIGITS} --steps 8 --algorithm FlexMatch --calibrator VCC --selector INFUSE --selector.keep 0.5",
    "frozen-FixMatch": f"--data photos --preset frozen --steps 12 --algorithm FixMatch {SMALL}",
    "frozen-Evidence-Aligned": "--data photos --preset frozen --steps 20 --calibrator Evidence "
    f"--selector AlignedINFUSE --selector.keep 0.5 {SMALL}",
    "frozen-VCC-mlp": f"--data photos --preset frozen --steps 8 --calibrator VCC --bank.head mlp {SMALL}",
    "frozen-LinearProbe": f"--data photos --preset frozen --algorithm LinearProbe {SMALL}",
    "frozen-ABC": f"--data photos --preset frozen --steps 8 --algorithm ABC --algorithm.base FlexMatch {SMALL}",
    "auto-photos": "--data mixed --steps 6 --bank.weak 1 --bank.strong 1",
    "finetune": f"--data photos --preset finetune --steps 3 {SMALL}",
    "finetune-lazy": "--data photos --preset finetune --steps 3 --lazy true --algorithm FixMatch "
    f"--algorithm.threshold 0.3 {SMALL}",
    "paper": f"{DIGITS} --preset paper --steps 3 {WIDE} --algorithm MixMatch",
    "paper-INFUSE": f"{DIGITS} --preset paper --steps 6 --eval_every 3 {WIDE} --selector INFUSE --selector.every 2 "
    "--selector.keep 0.5",
    "usb": "--data photos --preset usb --steps 2 --model Timm --model.name vit_tiny_patch16_224 --model.weights none "
    f"{SMALL}",
    "usb-MixMatch": f"{DIGITS} --preset usb --steps 2 --layer_decay 1 --model SmallConv --algorithm MixMatch",
    "scratch-validation": "--data valid --preset scratch --steps 6 --size 16",
}


def draw_photos(folder: Path, sizes: list[int]) -> None:
    """Three classes of noisy squares with a dominant color."""
    rng = np.random.default_rng(0)
    for hue, name in enumerate(("red", "green", "blue")):
        for part, count in (("labeled", 6), ("unlabeled", 10), ("test", 4)):
            place = folder / part if part == "unlabeled" else folder / part / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                side = sizes[number % len(sizes)]
                image = rng.integers(0, 120, (side, side, 3))
                image[:, :, hue] += 80
                image[side // 4 * hue : side // 4 * hue + side // 3] //= 2
                stem = f"{name}{number}" if part == "unlabeled" else str(number)
                Image.fromarray(image.astype(np.uint8)).save(place / f"{stem}.png")


def digest(path: Path) -> str:
    """SHA-256 of all tensors, whatever their names; not of the direction that `select` uses."""
    tensors = [tensor for name, tensor in load_file(path).items() if name != "direction"]
    values = hashlib.sha256()
    for value in sorted(str(tuple(t.shape)).encode() + t.contiguous().numpy().tobytes() for t in tensors):
        values.update(value)
    return values.hexdigest()


def run(source: str, folder: Path, name: str) -> str | None:
    """Train one run in a process of its own; None, with what it said, if it failed."""
    environment = {
        **os.environ,
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": "1",
        "VCC_INFUSE_CACHE": str(folder / "cache"),
    }
    words = [*RUNS[name].split(), *COMMON.split(), "--out", str(folder / "runs" / name)]
    command = [sys.executable, "-m", "vcc_infuse", "train", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(name, done.stderr[-600:])
        return None
    return digest(folder / "runs" / name / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the src folder of a checkout")
    parser.add_argument("record", type=Path, help="the record to write")
    parser.add_argument("--only", default="", help="runs whose name holds this word")
    options = parser.parse_args()
    digests = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, sizes in (("photos", [40]), ("mixed", [40, 50, 64]), ("valid", [32])):
            draw_photos(folder / name, sizes)
        shutil.rmtree(folder / "valid" / "test")
        for name in (name for name in RUNS if options.only in name):
            if (found := run(str(Path(options.source).resolve()), folder, name)) is not None:
                digests[name] = found
                print(name, found[:12], flush=True)
    options.record.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    main()
