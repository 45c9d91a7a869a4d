"""Draw docs/augment.png: what each augmentation does to an image of its kind, in the library's own views.

Run: python tools/augment_sheet.py [docs/augment.png]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.datasets import load_sample_image

from vcc_infuse.augment.recipe import PRESETS
from vcc_infuse.augment.views import ImageViews

SIDE, GAP, LEFT, TOP = 72, 6, 96, 22
COLUMNS = ("plain", "weak", "weak", "strong", "strong", "strong", "strong", "strong")


def photo(name, left, top, side):
    return Image.fromarray(load_sample_image(name)).crop((left, top, left + side, top + side)).resize((SIDE, SIDE))


def cells():
    """Stained cells: dark nuclei in pale bodies."""
    rng = np.random.default_rng(3)
    image = Image.new("RGB", (SIDE * 2, SIDE * 2), (238, 226, 236))
    draw = ImageDraw.Draw(image)
    for _ in range(16):
        x, y, r = (*rng.integers(0, 2 * SIDE, 2), rng.integers(10, 20))
        draw.ellipse((x - r, y - r * 0.8, x + r, y + r * 0.8), fill=(214, 170, 206))
        draw.ellipse((x - r * 0.4, y - r * 0.3, x + r * 0.4, y + r * 0.4), fill=(92, 52, 130))
    return image.filter(ImageFilter.GaussianBlur(1)).resize((SIDE, SIDE))


def field():
    """Fields, a road and a house, from above."""
    image = Image.new("RGB", (SIDE, SIDE), (86, 122, 60))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 30, 26), fill=(150, 140, 80))
    draw.rectangle((40, 44, SIDE, SIDE), fill=(110, 150, 70))
    draw.line((0, 60, SIDE, 8), fill=(180, 176, 168), width=5)
    draw.rectangle((46, 50, 58, 60), fill=(170, 80, 66))
    return image


def letter():
    image = Image.new("RGB", (SIDE, SIDE), (244, 242, 236))
    ImageDraw.Draw(image).text((16, 6), "R", fill=(30, 30, 40), font=ImageFont.load_default(54))
    return image


def pictures():
    return {
        "natural": photo("flower.jpg", 130, 20, 400),
        "gentle": photo("china.jpg", 180, 60, 300),
        "microscopy": cells(),
        "satellite": field(),
        "text": letter(),
        "none": photo("flower.jpg", 130, 20, 400),
    }


def sheet():
    """One row per preset."""
    torch.manual_seed(0)
    size = LEFT + len(COLUMNS) * (SIDE + GAP), TOP + len(PRESETS) * (SIDE + GAP)
    page = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for column, name in enumerate(COLUMNS):
        draw.text((LEFT + column * (SIDE + GAP), 4), name, fill="black", font=font)
    for row, (preset, picture) in enumerate(pictures().items()):
        draw.text((6, TOP + row * (SIDE + GAP) + SIDE // 2 - 8), preset, fill="black", font=font)
        views = ImageViews((0.0,) * 3, (1 / 255,) * 3, augment=preset)
        raw = torch.from_numpy(np.array(picture))[None]
        for column, name in enumerate(COLUMNS):
            made = views(name, raw)[0].permute(1, 2, 0).round().to(torch.uint8).numpy()
            page.paste(Image.fromarray(made), (LEFT + column * (SIDE + GAP), TOP + row * (SIDE + GAP)))
    return page


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "augment.png")
    sheet().save(target, optimize=True)
    print(f"{target}: {target.stat().st_size:,} bytes")
