"""Grids of one class: which tiles are shown, drawn from batches that stay fixed while a person looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import check_choice
from .bounds import bulk_bound
from .policy import Purpose, grid_rows
from .state import GridBatch

if TYPE_CHECKING:
    from .session import Session

BAD_BOUND = 0.3  # above it a batch is given up once there is a newer model


class Grids:
    """The batches that are being looked at, one per class and purpose."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._open: dict[tuple[int, str], tuple[int, GridBatch, int]] = {}
        self._last = max(session.state.batches, default=0)

    def members(self, number: int) -> list[int]:
        """The images of a batch that was shown; empty if there is none of the number."""
        return next((sorted(batch.images) for known, batch, _ in self._open.values() if known == number), [])

    def show(self, cls: int, count: int, purpose: Purpose = "teach") -> dict[str, Any]:
        """The answer of /api/grid; `purpose` is that of a batch that begins, see `grid_rows`."""
        check_choice("purpose", purpose, ("teach", "confirm"))
        with self.session.lock:
            self.session.state.open_class(cls)
            probs = self.session.probs()
            if probs is None or cls not in self.session.answer.classes:
                return {"class": cls, "batch": None, "tiles": [], "remaining": 0, "bound": self.session.bound(cls)}
            column = self.session.answer.classes.index(cls)
            judged = (
                self.session.state.judged()
                | self.session.reserved
                | self.session.unreadable
                | ~np.isfinite(probs[:, 0])
            )
            refused = self._refused()
            number, batch, _ = self._open_grid(cls, purpose, judged, refused)
            seen = judged.copy()
            seen[list(batch.looked_at)] = True
            members = np.array(sorted(batch.images), np.int64)
            values = np.nan_to_num(probs.astype(np.float32))
            looks = batch.looks
            tiles = grid_rows(values, seen, column, count=count, batch=members, seed=1000 * number + looks)
            guess = np.where(judged, -1, np.where(refused, -1, values).argmax(1))
            promise = bulk_bound(batch.counts()) if looks else self.session.bound(cls)
            return {
                "class": cls,
                "batch": number,
                "tiles": [
                    {"id": int(image), "confidence": round(float(confidence), 4)}
                    for image, confidence in zip(tiles.rows, tiles.confidence, strict=True)
                ],
                "remaining": int((guess == column).sum()),
                "bound": promise,
            }

    def _refused(self) -> np.ndarray:
        refused = np.zeros((len(self.session.pool), len(self.session.answer.classes)), bool)
        place = {cls: column for column, cls in enumerate(self.session.answer.classes)}
        for (image, cls), value in self.session.state.refused.items():
            if value and cls in place:
                refused[image, place[cls]] = True
        return refused

    def _open_grid(
        self, cls: int, purpose: Purpose, judged: np.ndarray, refused: np.ndarray
    ) -> tuple[int, GridBatch, int]:
        """The batch that the grids of a class are drawn from: the one begun, as long as it promises something."""
        number, batch, version = self._open.get((cls, purpose), (-1, GridBatch(cls, frozenset()), -1))
        batch = self.session.state.batches.get(number, batch)
        waiting = any(not judged[image] for image in batch.images - batch.looked_at)
        newer = self.session.answer.version > version
        useless = newer and (batch.looks == 0 or bulk_bound(batch.counts())["at_most"] > BAD_BOUND)
        if batch.images and waiting and not batch.promised and not useless:
            return number, batch, version
        probs = self.session.probs()
        assert probs is not None
        column = self.session.answer.classes.index(cls)
        members = grid_rows(
            np.nan_to_num(probs.astype(np.float32)), judged, column, refused=refused, purpose=purpose
        ).batch
        self._last += 1
        self._open[cls, purpose] = (
            self._last,
            GridBatch(cls, frozenset(members.tolist())),
            self.session.answer.version,
        )
        return self._open[cls, purpose]
