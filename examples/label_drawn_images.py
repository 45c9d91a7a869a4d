"""Label drawn images in the browser: `make demo-label`. Nothing is downloaded; the photos stay in ./demo-photos."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vcc_infuse.cli.main import main

CORNERS = {"triangle": 3, "square": 4, "circle": 40}


def draw(folder: Path, count: int = 300) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for number in range(count):
        image = Image.new("RGB", (160, 120), tuple(int(v) for v in rng.integers(90, 160, 3)))
        x, y, radius = (int(v) for v in rng.integers((50, 45, 20), (110, 75, 40)))
        corners = list(CORNERS.values())[number % len(CORNERS)]
        color = tuple(int(v) for v in rng.integers(0, 256, 3))
        ImageDraw.Draw(image).regular_polygon((x, y, radius), corners, rotation=int(rng.integers(0, 90)), fill=color)
        image.save(folder / f"{number:03d}.jpg")


if __name__ == "__main__":
    photos = Path("demo-photos")
    draw(photos)
    if status := main(["label", str(photos), *sys.argv[1:]]):
        sys.exit(status)
