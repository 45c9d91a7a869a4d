"""The gallery: thumbnails with their scores and labels."""

from __future__ import annotations

import base64
import io
from collections import Counter
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...utils.io import Columns
from ..read import UNKNOWN, Run, percent

PARTS = {
    "helpful": ("Most helpful", "highest scores of the selector"),
    "harmful": ("Most harmful", "lowest scores of the selector"),
    "mistakes": ("Most confident mistakes", "{} images, by calibrated confidence"),
}
AUDIT = {
    "unknown": ("Of no class?", "the most foreign first; those of one group resemble each other"),
    "duplicate": ("Copies", "in groups"),
    "doubtful_label": ("Doubtful labels", "the most doubtful first"),
    "next_to_label": ("Next to label", "the most useful first"),
}
SMALL = 32  # up to so many pixels per side, PNG is as small as JPEG and lossless


class Thumbnail(NamedTuple):
    """One image inside the page; `truth` is ✓ beside a correct label and empty where the true class is unknown."""

    source: str
    alt: str
    label: str
    truth: str
    value: str
    is_wrong: bool


class Strip(NamedTuple):
    """A title, the order of the images, and the images; `wide` leaves room for a sentence below each."""

    title: str
    order: str
    images: list[Thumbnail]
    wide: bool = False


def gallery(run: Run) -> list[Strip]:
    """One strip for each part of which the run kept images."""
    kept = run.gallery or {}
    return [
        Strip(title, order.format(run.measured_on), [thumbnail(run, kept, part, i) for i in range(len(images))])
        for part, (title, order) in PARTS.items()
        if (images := kept.get(f"{part}_images")) is not None
    ]


class Cell(NamedTuple):
    """The images behind a cell of the confusion matrix; `place` is its row and column."""

    place: str
    title: str
    order: str
    images: list[Thumbnail]


def confusion_cells(run: Run) -> list[Cell]:
    """The cells of which the run kept images, those with the most mistakes first and right answers last."""
    kept = run.gallery or {}
    if "cells_images" not in kept or run.predictions is None:
        return []
    numbers = [run.predictions[name].astype(int) for name in ("truth", "predicted")]
    counts = Counter(zip(*(column.tolist() for column in numbers), strict=True))
    members: dict[tuple[int, int], list[int]] = {}
    for i, pair in enumerate(zip(kept["cells_truth"].tolist(), kept["cells_label"].tolist(), strict=True)):
        members.setdefault((int(pair[0]), int(pair[1])), []).append(i)
    wrong_first = sorted(members, key=lambda pair: (pair[0] == pair[1], -counts[pair]))
    return [_cell(run, kept, pair, members[pair], counts[pair]) for pair in wrong_first]


def _cell(run: Run, kept: Columns, pair: tuple[int, int], rows: list[int], count: int) -> Cell:
    names = dict(enumerate(run.classes))
    truth, label = (names.get(number, str(number)) for number in pair)
    images = [thumbnail(run, kept, "cells", i) for i in rows]
    first = "the least confident" if pair[0] == pair[1] else "the most confident"
    title = f"{truth} predicted as {label}" if pair[0] != pair[1] else f"{truth}, predicted right"
    return Cell(f"{run.number}-{pair[0]}-{pair[1]}", title, f"{len(images)} of {count}, {first} first", images)


def thumbnail(run: Run, kept: Columns, part: str, i: int) -> Thumbnail:
    """One image with its labels and its score or confidence."""
    name = str(kept[f"{part}_names"][i])
    truth, label = (int(kept[f"{part}_{column}"][i]) for column in ("truth", "label"))
    names = dict(enumerate(run.classes))  # a run may not name its classes; -1 is unknown
    label_name, true_name = (names.get(number, UNKNOWN if number < 0 else str(number)) for number in (label, truth))
    if f"{part}_confidence" in kept:
        value = percent(float(kept[f"{part}_confidence"][i]))
        word = "predicted"
    else:
        value = f"{float(kept[f'{part}_score'][i]):+.3g}"
        word = "pseudo label"
    title = PARTS[part][0] if part in PARTS else "Test image"
    place = f"{title}, number {i + 1}{': ' + name if name else ''}"
    alt = f"{place}: {word} {label_name}, true class {true_name}, {value}"
    mark = "" if truth < 0 else "✓" if truth == label else true_name
    source = embedded(kept[f"{part}_images"][i])
    return Thumbnail(source, alt, label_name, mark, value, is_wrong=truth >= 0 and truth != label)


def audit_strips(run: Run) -> list[Strip]:
    """What `vcc-infuse audit` found, one strip for each kind."""
    kept = run.audit or {}
    strips = []
    for issue, (title, order) in AUDIT.items():
        if (images := kept.get(f"{issue}_images")) is not None:
            words = zip(*(map(str, kept[f"{issue}_{name}"]) for name in ("names", "groups", "texts")), strict=True)
            shown = [
                Thumbnail(embedded(image), f"{name}: {text}", name.rsplit("/")[-1], group, text, is_wrong=False)
                for image, (name, group, text) in zip(images, words, strict=True)
            ]
            strips.append(Strip(title, f"{len(shown)} of {int(kept[f'{issue}_count'])}, {order}", shown, wide=True))
    return strips


def embedded(image: np.ndarray) -> str:
    """Pixels as an address that needs no file."""
    kind = "PNG" if max(image.shape[:2]) <= SMALL else "JPEG"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
