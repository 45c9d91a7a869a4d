"""A simulated person who labels: answers, what each costs, and what is overlooked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

RIGHT = 1.8  # seconds for a single image whose suggestion is right
WRONG = 3.8  # … is wrong, or is not shown
PRESS = 0.3  # for every single image
NEW_CLASS = 3.0
GRID = 3.0  # to take in a new grid
TILE = 0.25
CORRECTION = 1.5  # to click a wrong tile and give its class
MISSED = 0.05  # of wrong tiles are overlooked


@dataclass
class Spent:
    """What a person did so far; minutes follow from it for any seconds per tile."""

    right: int = 0
    wrong: int = 0
    new_classes: int = 0
    grids: int = 0
    tiles: int = 0
    corrections: int = 0

    def minutes(self, tile: float = TILE) -> float:
        """Minutes for all of it."""
        singles = self.right * (RIGHT + PRESS) + self.wrong * (WRONG + PRESS) + self.new_classes * NEW_CLASS
        return (singles + self.grids * GRID + self.tiles * tile + self.corrections * CORRECTION) / 60


@dataclass
class Person:
    """Knows the truth, takes time, overlooks wrong tiles.

    Attributes:
        truth: of shape (rows,).
        labels: what was said so far, of shape (rows,), −1 where nothing; overlooked tiles are wrong labels.
        seed: of what is overlooked.
    """

    truth: np.ndarray
    seed: int
    labels: np.ndarray = field(init=False)
    spent: Spent = field(init=False, default_factory=Spent)
    known: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.labels = np.full(len(self.truth), -1)
        self._rng = np.random.default_rng([self.seed, 11])

    def ask(self, row: int, suggestion: int | None) -> None:
        """One image: cheaper where the suggestion is right."""
        if suggestion == self.truth[row]:
            self.spent.right += 1
        else:
            self.spent.wrong += 1
        self._name(row)

    def look(self, rows: np.ndarray, cls: int) -> np.ndarray:
        """A grid of one class: True for the tiles that are clicked and given their class; the rest are confirmed."""
        wrong = self.truth[rows] != cls
        clicked = wrong & (self._rng.random(len(rows)) >= MISSED)
        self.spent.grids += 1
        self.spent.tiles += len(rows)
        self.spent.corrections += int(clicked.sum())
        self.labels[rows] = cls
        for row in rows[clicked]:
            self._name(int(row))
        return np.asarray(clicked)

    def record(self, error: float) -> dict[str, Any]:
        """A point of the learning curve."""
        return {**asdict(self.spent), "labels": int((self.labels >= 0).sum()), "error": round(error, 5)}

    def _name(self, row: int) -> None:
        cls = int(self.truth[row])
        if cls not in self.known:
            self.known.add(cls)
            self.spent.new_classes += 1
        self.labels[row] = cls
