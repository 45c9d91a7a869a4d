"""From a folder of images to predicted labels, all in Python. This example draws its own images.

python examples/own_images.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vcc_infuse import FixMatch, SmallConv, Trainer, load_ssl
from vcc_infuse.data.sources.folder import read_images


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
        data = load_ssl(str(root))
        trainer = Trainer(SmallConv(16), FixMatch(), steps=steps, eval_every=100, batch_size=20, unlabeled_ratio=5)
        trainer.fit(data)
        images, names, _ = read_images(root / "test" / "disc")
        found = trainer.predictor().predict(images)
        for name, label, confidence in list(zip(names, found.labels, found.confidence, strict=True))[:5]:
            print(f"{name}: {data.dataset.classes[label]} ({100 * confidence:.0f} %)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
