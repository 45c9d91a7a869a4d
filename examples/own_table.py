"""Photos in one folder and their labels in a table, first as files, then as a dataset in Python.

This example draws its own photos. For files of your own the command line is enough:
vcc-infuse train --data photos --label_file labels.csv

python examples/own_table.py
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vcc_infuse import SmallConv, SSLData, train

SHAPES = ("disc", "square")


def draw(shape, rng):
    """A bright shape on noise; no two photos have the same size."""
    width, height = (int(side) for side in rng.integers(40, 80, 2))
    photo = Image.fromarray(rng.integers(0, 90, (height, width, 3), dtype=np.uint8))
    left, top = width // 5, height // 5
    pencil = ImageDraw.Draw(photo)
    paint = pencil.ellipse if shape == "disc" else pencil.rectangle
    paint([left, top, width - left, height - top], fill=tuple(int(c) for c in rng.integers(120, 255, 3)))
    return photo


def make_photos(root, count=120, labeled=30):
    """photos/0.png, 1.png, … and labels.csv with a label for the first ones."""
    rng, rows = np.random.default_rng(0), [("file", "label")]
    (root / "photos").mkdir(parents=True)
    for number in range(count):
        shape = SHAPES[number % 2]
        draw(shape, rng).save(root / "photos" / f"{number}.png")
        rows += [(f"{number}.png", shape)] if number < labeled else []
    with open(root / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)


def main(steps):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_photos(root)
        result = train(
            root / "photos", label_file=str(root / "labels.csv"), size=24, cache=str(root / "cache"),
            model=SmallConv(width=16), steps=steps, batch_size=16, unlabeled_ratio=4,
        )  # fmt: skip
        summary = result.summary
        images = summary["evaluated_images"]
        error = 100 * summary["error"]
        print(f"error on {images} labels kept for {summary['evaluated_on']}: {error:.0f} %")

        # The same from Python objects: any list of files or PIL images, or a dataset of another library.
        photos = sorted((root / "photos").iterdir(), key=lambda path: int(path.stem))
        labels = [SHAPES[number % 2] if number < 30 else None for number in range(len(photos))]
        same = SSLData.from_dataset(photos, labels, size=24, validation=0.2)
        print(f"{len(photos)} photos, {len(same.split.labeled)} labels, classes {', '.join(same.dataset.classes)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
