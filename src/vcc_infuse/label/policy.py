"""What a person is shown next: single images, audit images, and grids of one class. Arrays in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..errors import UserError, check_choice, check_integer
from ..pool_audit import PoolGroups, Suggestions, suggest_labels

AUDIT_EVERY = 5  # single images, one of which is an audit image
AUDIT_FROM = 20  # before there is a model, nothing can be audited
AUDIT_SHARE = 0.1  # of the pool that is kept for audit images
MOST_AUDITS = 500  # an interval of ± 3 points is narrow enough
GRID = 48
SURE = 0.02  # expected share of wrong images in a batch to confirm: a 5 % bound is then within two or three grids

Purpose = Literal["teach", "confirm"]


class Grid(NamedTuple):
    """Tiles of one class.

    Attributes:
        rows: the tiles, the most confident first. They are a random sample of the batch: see `bounds`.
        confidence: of each tile.
        batch: all rows that the promise is about, tiles included, those of earlier grids of the batch, too.
    """

    rows: np.ndarray
    confidence: np.ndarray
    batch: np.ndarray


def next_batch(
    features: np.ndarray,
    labels: np.ndarray,
    probs: np.ndarray | None = None,
    *,
    count: int = 20,
    classes: int | None = None,
    exclude: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    groups: PoolGroups | None = None,
) -> Suggestions:
    """The single images that are worth most, the best first: coverage up to four labels per class, then margin.

    Args:
        features: of the whole pool, of shape (rows, width), as `unit_rows` makes them.
        labels: of shape (rows,), −1 where there is none.
        probs: predictions of shape (rows, classes); by default those of a ridge head on the labels.
        count: of images; fewer where fewer are left.
        classes: how many there are, by default those among the labels.
        exclude: of shape (rows,), True for images not to be shown: skipped, foreign, kept for the audit, on the screen.
        names: of the classes, for the reasons.
        seed: of k-means.
        groups: of the features, kept from one call to the next; they have a seed of their own.
    """
    waiting = labels < 0 if exclude is None else (labels < 0) & ~exclude
    candidates = np.flatnonzero(waiting)
    if len(candidates) == 0:
        return Suggestions(np.empty(0, np.int64), (), np.empty(0), "coverage")
    return suggest_labels(
        features,
        labels,
        count=count,
        probs=probs,
        classes=classes,
        names=names,
        candidates=candidates,
        seed=seed,
        groups=groups,
    )


def is_audit(position: int, seed: int) -> bool:
    """Whether the single image at this position, counted from 0, is an audit image: one of every five, at random."""
    turn, place = divmod(check_integer("position", position, 0), AUDIT_EVERY)
    drawn = np.random.default_rng([seed, turn]).integers(AUDIT_EVERY)
    return bool(drawn == place) and position >= AUDIT_FROM


def audit_reserve(pool_size: int, seed: int) -> np.ndarray:
    """The images that are kept for the audit, in the order in which they are asked.

    They are drawn before anybody saw anything, and nothing else may show them (`exclude`, `judged`): otherwise the
    audit would lack the images that the policy likes, and no longer stand for the pool.
    """
    count = min(MOST_AUDITS, max(1, round(AUDIT_SHARE * pool_size)))
    return np.random.default_rng([seed, pool_size]).permutation(pool_size)[:count]


def grid_rows(
    probs: np.ndarray,
    judged: np.ndarray,
    cls: int,
    *,
    count: int = GRID,
    refused: np.ndarray | None = None,
    batch: np.ndarray | None = None,
    purpose: Purpose = "teach",
    seed: int = 0,
) -> Grid:
    """A grid of images that the model puts in one class, drawn at random from a batch so that it bounds the rest.

    Args:
        probs: predictions of shape (rows, classes), calibrated.
        judged: of shape (rows,), True for images that a person has judged or that are kept for the audit.
        cls: the class of the grid.
        count: of tiles; fewer where fewer are left.
        refused: of shape (rows, classes), True where a person said "not this class".
        batch: rows of the batch that earlier grids were drawn from, to go on with it; by default a new one begins.
        purpose: of a new batch. `teach` takes the less certain half of the class, from which the model learns most;
            `confirm` takes the most certain images, as many as are expected to hold 2 % wrong ones.
        seed: of the draw; a different one for every grid.
    """
    if not 0 <= cls < probs.shape[1]:
        raise UserError(f"cls must be from 0 to {probs.shape[1] - 1}, got {cls}")
    check_choice("purpose", purpose, ("teach", "confirm"))
    wanted = check_integer("count", count)
    if batch is None:
        batch = _new_batch(probs, judged, cls, refused, purpose, wanted)
    waiting = batch[~judged[batch]]
    rows = np.random.default_rng([seed, cls]).permutation(waiting)[:wanted]
    rows = rows[np.argsort(-probs[rows, cls], kind="stable")]
    return Grid(rows, probs[rows, cls], batch)


def _new_batch(
    probs: np.ndarray, judged: np.ndarray, cls: int, refused: np.ndarray | None, purpose: Purpose, count: int
) -> np.ndarray:
    """Rows of the class that nobody judged, the part that the purpose asks for, the most certain first."""
    allowed = probs if refused is None else np.where(refused, -1.0, probs)
    rows = np.flatnonzero((allowed.argmax(1) == cls) & (allowed[:, cls] > 0) & ~judged)
    rows = rows[np.argsort(-probs[rows, cls], kind="stable")]
    if purpose == "teach":
        return rows[-max(count, (len(rows) + 1) // 2) :]
    expected = np.cumsum(1 - probs[rows, cls]) / np.arange(1, len(rows) + 1)
    return rows[: np.searchsorted(expected, SURE, side="right")]  # sorted: each further row is less certain
