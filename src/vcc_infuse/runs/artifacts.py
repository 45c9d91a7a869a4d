"""Which images a run keeps for its report, as thumbnails: both ends of the ranking, and the most confident mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..utils.io import Columns, load_npz

COUNT, SIDE = 24, 64


Names = Sequence[str] | None


def mistakes(x: np.ndarray, names: Names, answers: Columns, count: int = COUNT) -> Columns:
    """Wrong answers on the test set, the one given with most confidence first."""
    wrong = np.flatnonzero(answers["predicted"] != answers["truth"])
    rows = wrong[np.argsort(-answers["calibrated"][wrong], kind="stable")][:count]
    columns = {"truth": answers["truth"], "label": answers["predicted"], "confidence": answers["calibrated"]}
    return thumbnails("mistakes", x, names, rows, {name: column[rows] for name, column in columns.items()})


def ranked(
    x: np.ndarray, names: Names, pool: np.ndarray, truth: np.ndarray, scored: Columns, count: int = COUNT
) -> Columns:
    """Pool examples with the highest and with the lowest scores; `pool` are their rows in `x`, by pool id."""
    kept: Columns = {}
    for part, ids in zip(("helpful", "harmful"), ends(scored["scores"], scored["selected"], count), strict=True):
        columns = {"score": scored["scores"], "label": scored["labels"], "truth": truth}
        own = {name: column[ids] for name, column in columns.items()}
        kept |= thumbnails(part, x, names, pool[ids], own)
    return kept


def ends(scores: np.ndarray, usable: np.ndarray, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Places of the highest and of the lowest usable scores, the extreme first; no place is in both."""
    places = np.flatnonzero(usable & np.isfinite(scores))
    order = places[np.argsort(-scores[places], kind="stable")]
    count = min(count, len(order) // 2)
    return order[:count], order[::-1][:count]


def last_scores(folder: Path) -> Columns | None:
    """The newest core set of a run that has scores: one drawn for the warm-up has none."""
    for path in sorted(folder.glob("step-*.npz"), reverse=True):
        columns = load_npz(path)
        if columns and "scores" in columns:
            return columns
    return None


def thumbnails(part: str, x: np.ndarray, names: Names, rows: np.ndarray, columns: Columns) -> Columns:
    """Columns of one part of the gallery; nothing where the data are no images."""
    if x.ndim != 4 or not len(rows):
        return {}
    files = np.array([str(names[i]) if names is not None else "" for i in rows], dtype=np.str_)
    shown = {"images": np.stack([thumbnail(np.asarray(x[i])) for i in rows]), "names": files, **columns}
    return {f"{part}_{name}": column for name, column in shown.items()}


def thumbnail(image: np.ndarray, side: int = SIDE) -> np.ndarray:
    """An H×W×C image as gray or RGB, shrunk to fit `side` pixels; a small one stays as it is."""
    pixels = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((side, side), Image.Resampling.BOX)
    return np.asarray(picture)
