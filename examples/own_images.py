"""From a folder of images to predicted labels, all in Python. This example draws its own images.

python examples/own_images.py
"""

import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vcc_infuse import SmallConv, train


def draw(shape, rng):
    """A disc or a square somewhere on a noisy background."""
    image = Image.fromarray(rng.integers(0, 90, (24, 24, 3), dtype=np.uint8))
    x, y, side = *rng.integers(2, 12, 2), rng.integers(7, 11)
    box = [int(x), int(y), int(x + side), int(y + side)]
    color = tuple(int(c) for c in rng.integers(120, 255, 3))
    pencil = ImageDraw.Draw(image)
    (pencil.ellipse if shape == "disc" else pencil.rectangle)(box, fill=color)
    return image


def make_folder(root, unlabeled=200):
    """labeled/<class>/, unlabeled/ and test/<class>/: the layout for images of your own."""
    rng = np.random.default_rng(0)
    for part, count in (("labeled", 10), ("test", 40)):
        for shape in ("disc", "square"):
            folder = root / part / shape
            folder.mkdir(parents=True)
            for number in range(count):
                draw(shape, rng).save(folder / f"{number}.png")
    (root / "unlabeled").mkdir()
    for number in range(unlabeled):
        draw(("disc", "square")[number % 2], rng).save(root / "unlabeled" / f"{number}.png")


def main(steps):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_folder(root)
        result = train(root, model=SmallConv(width=16), steps=steps, eval_every=100, batch_size=20, unlabeled_ratio=5)
        for answer in islice(result.predictor.stream(root / "test" / "disc"), 5):
            print(f"{answer.name}: {answer.label} ({answer.calibrated:.0%})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
