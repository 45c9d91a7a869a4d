"""The gallery: thumbnails with their scores and labels."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...utils.io import Columns
from ..format import UNKNOWN, name_of, percent
from ..read import Run

PARTS = {
    "helpful": ("Most helpful", "highest scores of the selector"),
    "harmful": ("Most harmful", "lowest scores of the selector"),
    "mistakes": ("Most confident mistakes", "{} images, by calibrated confidence"),
}

SMALL = 32
"""Up to this many pixels per side, PNG is as small as JPEG and lossless."""


class Thumbnail(NamedTuple):
    """One image inside the page; `truth` is ✓ beside a correct label and empty where the true class is unknown."""

    source: str
    title: str
    alt: str
    label: str
    truth: str
    value: str
    is_wrong: bool


class Strip(NamedTuple):
    """A title, the order of the images, and the images."""

    title: str
    order: str
    images: list[Thumbnail]


def gallery(run: Run) -> list[Strip]:
    """One strip for each part of which the run kept images."""
    kept = run.gallery or {}
    parts = [part for part in PARTS if f"{part}_images" in kept]
    return [
        Strip(
            PARTS[part][0],
            PARTS[part][1].format(run.measured_on),
            [thumbnail(run, kept, part, i) for i in rows(kept, part)],
        )
        for part in parts
    ]


def rows(kept: Columns, part: str) -> range:
    """The places of the images of one part."""
    return range(len(kept[f"{part}_images"]))


def thumbnail(run: Run, kept: Columns, part: str, i: int) -> Thumbnail:
    """One image with its labels and its score or confidence."""
    name = str(kept[f"{part}_names"][i])
    truth, label = (int(kept[f"{part}_{column}"][i]) for column in ("truth", "label"))
    true_name, label_name = class_name(run, truth), class_name(run, label)
    if part == "mistakes":
        value, word = percent(float(kept["mistakes_confidence"][i])), "predicted"
    else:
        value, word = f"{float(kept[f'{part}_score'][i]):+.3g}", "pseudo label"
    place = f"{PARTS[part][0]}, number {i + 1}{': ' + name if name else ''}"
    alt = f"{place}: {word} {label_name}, true class {true_name}, {value}"
    mark = "" if truth < 0 else "✓" if truth == label else true_name
    source = data_uri(kept[f"{part}_images"][i])
    return Thumbnail(source, name or alt, alt, label_name, mark, value, is_wrong=truth >= 0 and truth != label)


def class_name(run: Run, number: int) -> str:
    """A class name, or a dash where the class is unknown."""
    return name_of(run.classes, number) if number >= 0 else UNKNOWN


def data_uri(image: np.ndarray) -> str:
    """An image as text that an `src` attribute can hold."""
    kind = "PNG" if max(image.shape[:2]) <= SMALL else "JPEG"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
