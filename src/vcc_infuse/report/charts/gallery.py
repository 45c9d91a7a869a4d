"""The gallery: actual images as figures with captions, their scores and labels beneath them."""

from __future__ import annotations

import base64
import html
import io

import numpy as np
from PIL import Image

from ...utils.io import Columns
from ..format import UNKNOWN, name_of, per_cent
from ..read import Run

PARTS = {
    "helpful": ("Most helpful", "highest scores of the selector"),
    "harmful": ("Most harmful", "lowest scores of the selector"),
    "mistakes": ("Most confident mistakes", "test images, by calibrated confidence"),
}


SMALL = 32
"""Up to this many pixels a side PNG is as small as JPEG, and exact."""


def gallery(run: Run) -> str:
    """Every part of which the run kept images."""
    kept = run.gallery or {}
    return "".join(strip(run, kept, part) for part in PARTS if f"{part}_images" in kept)


def strip(run: Run, kept: Columns, part: str) -> str:
    """A heading and a row of images."""
    title, order = PARTS[part]
    cells = "".join(cell(run, kept, part, i) for i in range(len(kept[f"{part}_images"])))
    return f'<h4>{title} <small>{order}</small></h4><div class="gallery">{cells}</div>'


def cell(run: Run, kept: Columns, part: str, i: int) -> str:
    """One image with what is known of it."""
    name = str(kept[f"{part}_names"][i])
    truth, guess = (class_name(run, int(kept[f"{part}_{column}"][i])) for column in ("truth", "label"))
    right = guess == truth
    if part == "mistakes":
        figure, word = per_cent(float(kept["mistakes_confidence"][i])), "predicted"
    else:
        figure, word = f"{float(kept[f'{part}_score'][i]):+.3g}", "pseudo label"
    alt = f"{PARTS[part][0]}, number {i + 1}{': ' + name if name else ''}: {word} {guess}, true class {truth}, {figure}"
    example_columns = "" if truth == UNKNOWN else f'<span class="truth">{"✓" if right else html.escape(truth)}</span>'
    source = data_uri(kept[f"{part}_images"][i])
    return (
        f'<figure class="{"hit" if right or truth == UNKNOWN else "miss"}" title="{html.escape(name or alt)}">'
        f'<img src="{source}" alt="{html.escape(alt)}"><figcaption><b>{html.escape(guess)}</b>'
        f"{example_columns}<i>{figure}</i></figcaption></figure>"
    )


def class_name(run: Run, number: int) -> str:
    """A class name; a dash where nobody knows the class."""
    return name_of(run.classes, number) if number >= 0 else UNKNOWN


def data_uri(image: np.ndarray) -> str:
    """An image inside the page."""
    kind = "PNG" if max(image.shape[:2]) <= SMALL else "JPEG"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
