"""Label drawn images in the browser: `make demo-label`. Nothing is downloaded; the photos stay in ./demo-photos."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vcc_infuse.cli.main import main

SKIES = ((118, 178, 230), (246, 176, 110), (58, 52, 110), (176, 186, 200))
GROUNDS = ((88, 146, 70), (196, 168, 108), (222, 228, 236), (60, 116, 160))
WIDTH = 480
HEIGHT = 360


def tree(draw: ImageDraw.ImageDraw, x: int, y: int, r: int, color: tuple[int, ...]) -> None:
    draw.rectangle((x - r // 8, y, x + r // 8, y + r), fill=(104, 70, 44))
    for dx, dy in ((-r // 3, 0), (r // 3, 0), (0, -r // 3)):
        draw.ellipse(
            (x + dx - r // 2, y + dy - r // 2, x + dx + r // 2, y + dy + r // 2), fill=(color[0] // 3, 128, 60)
        )


def boat(draw: ImageDraw.ImageDraw, x: int, y: int, r: int, color: tuple[int, ...]) -> None:
    draw.polygon([(x, y - r), (x, y + r // 3), (x + r, y + r // 3)], fill=(246, 244, 236))
    draw.polygon([(x - 5, y - 2 * r // 3), (x - 5, y + r // 3), (x - 2 * r // 3, y + r // 3)], fill=color)
    draw.polygon([(x - r, y + r // 2), (x + r, y + r // 2), (x + 2 * r // 3, y + r), (x - 2 * r // 3, y + r)],
                 fill=(122, 64, 44))  # fmt: skip


def balloon(draw: ImageDraw.ImageDraw, x: int, y: int, r: int, color: tuple[int, ...]) -> None:
    y -= r // 2
    draw.ellipse((x - r, y - r, x + r, y + r), fill=color)
    draw.ellipse((x - r // 2, y - r, x + r // 2, y + r), fill=(246, 240, 226))
    draw.line(
        (x - r // 2, y + r, x - r // 5, y + 3 * r // 2, x + r // 5, y + 3 * r // 2, x + r // 2, y + r), fill=0, width=2
    )
    draw.rectangle((x - r // 5, y + 3 * r // 2, x + r // 5, y + 7 * r // 4), fill=(112, 76, 50))


def house(draw: ImageDraw.ImageDraw, x: int, y: int, r: int, color: tuple[int, ...]) -> None:
    draw.rectangle((x - r, y - r // 4, x + r, y + r), fill=color)
    draw.polygon([(x - 5 * r // 4, y - r // 4), (x + 5 * r // 4, y - r // 4), (x, y - r)], fill=(132, 48, 44))
    draw.rectangle((x - r // 5, y + r // 4, x + r // 5, y + r), fill=(84, 58, 44))
    draw.rectangle((x + r // 2, y, x + 4 * r // 5, y + r // 3), fill=(250, 226, 140))


def flower(draw: ImageDraw.ImageDraw, x: int, y: int, r: int, color: tuple[int, ...]) -> None:
    draw.line((x, y, x, y + 3 * r // 2), fill=(58, 110, 58), width=8)
    for angle in np.arange(8) * np.pi / 4:
        left = x + int(0.55 * r * np.cos(angle))
        top = y + int(0.55 * r * np.sin(angle))
        draw.ellipse((left - r // 3, top - r // 3, left + r // 3, top + r // 3), fill=color)
    draw.ellipse((x - r // 3, y - r // 3, x + r // 3, y + r // 3), fill=(248, 206, 70))


THINGS = (tree, boat, balloon, house, flower)


def draw_photos(folder: Path, count: int = 300) -> list[str]:
    """Scenes with one of five things each; what is on each of them, in the order of their names."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    names = []
    for number in range(count):
        sky, ground = (np.array(colors[rng.integers(len(colors))]) for colors in (SKIES, GROUNDS))
        horizon = int(rng.integers(180, 280))
        shade = np.linspace(0.85, 1.15, HEIGHT)[:, None]
        rows = np.where(np.arange(HEIGHT)[:, None] < horizon, sky * shade, ground * shade)
        pixels = np.clip(rows[:, None] + rng.normal(0, 4, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels)
        thing = THINGS[rng.integers(len(THINGS))]
        x, y, radius = (int(value) for value in rng.integers((140, 150, 44), (340, 210, 92)))
        thing(ImageDraw.Draw(image), x, y, radius, tuple(int(value) for value in rng.integers(60, 230, 3)))
        image.save(folder / f"{number:03d}.jpg", quality=90)
        names.append(thing.__name__)
    return names


if __name__ == "__main__":
    photos = Path("demo-photos")
    draw_photos(photos)
    if status := main(["label", str(photos), *sys.argv[1:]]):
        sys.exit(status)
