"""The thumbnails a run keeps for its report: both ends of the selector's ranking, mistakes, and what they confuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..utils.io import Columns, load_npz

COUNT = 24
BEHIND = 240  # images behind all cells of the confusion matrix: a report stays below a megabyte with them
IN_CELL = 12
SIDE = 64

Names = Sequence[str] | None


def mistakes(x: np.ndarray, names: Names, predictions: Columns, count: int = COUNT) -> Columns:
    """Wrong predictions on the test set, the most confident first."""
    wrong = np.flatnonzero(predictions["predicted"] != predictions["truth"])
    rows = wrong[np.argsort(-predictions["calibrated"][wrong], kind="stable")][:count]
    columns = {"truth": "truth", "label": "predicted", "confidence": "calibrated"}
    return thumbnails("mistakes", x, names, rows, {name: predictions[key][rows] for name, key in columns.items()})


def cells(x: np.ndarray, names: Names, predictions: Columns, count: int = BEHIND) -> Columns:
    """Test images behind each cell of the confusion matrix: mistakes by confidence, right answers by the lack of it.

    The first of every cell come before the second of any, so that no cell stays empty while there is room.
    """
    truth, predicted, confidence = (predictions[name] for name in ("truth", "predicted", "calibrated"))
    order = np.lexsort((np.where(truth == predicted, confidence, -confidence), predicted, truth))
    _, starts, sizes = np.unique(np.stack([truth, predicted])[:, order], axis=1, return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    first = np.flatnonzero(place < IN_CELL)
    rows = order[np.sort(first[np.argsort(place[first], kind="stable")][:count])]
    columns = {"truth": truth[rows], "label": predicted[rows], "confidence": confidence[rows]}
    return thumbnails("cells", x, names, rows, columns)


def ranked(
    x: np.ndarray, names: Names, pool: np.ndarray, truth: np.ndarray, scored: Columns, count: int = COUNT
) -> Columns:
    """Pool examples with the highest and with the lowest scores; `pool[i]` is the row of pool id `i` in `x`."""
    kept: Columns = {}
    for part, ids in zip(("helpful", "harmful"), ends(scored["scores"], scored["selected"], count), strict=True):
        columns = {"score": scored["scores"], "label": scored["labels"], "truth": truth}
        kept |= thumbnails(part, x, names, pool[ids], {name: column[ids] for name, column in columns.items()})
    return kept


def ends(scores: np.ndarray, usable: np.ndarray, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the highest and of the lowest usable scores, the most extreme first; no index is in both."""
    indices = np.flatnonzero(usable & np.isfinite(scores))
    order = indices[np.argsort(-scores[indices], kind="stable")]
    count = min(count, len(order) // 2)
    return order[:count], order[::-1][:count]


def last_scores(folder: Path) -> Columns | None:
    """The newest core set with scores: one drawn during the warm-up has none."""
    for path in sorted(folder.glob("step-*.npz"), reverse=True):
        columns = load_npz(path)
        if columns and "scores" in columns:
            return columns
    return None


def thumbnails(part: str, x: np.ndarray, names: Names, rows: np.ndarray, columns: Columns) -> Columns:
    """The columns of one part of the gallery; empty if the data are not images."""
    if x.ndim != 4 or not len(rows):
        return {}
    files = np.array([str(names[i]) if names is not None else "" for i in rows], dtype=np.str_)
    shown = {"images": np.stack([thumbnail(np.asarray(x[i])) for i in rows]), "names": files, **columns}
    return {f"{part}_{name}": column for name, column in shown.items()}


def thumbnail(image: np.ndarray, side: int = SIDE) -> np.ndarray:
    """An H×W×C image as gray or RGB, shrunk to fit `side` pixels; a small one keeps its size."""
    pixels = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((side, side), Image.Resampling.BOX)
    return np.asarray(picture)
