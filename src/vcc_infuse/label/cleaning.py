"""What a person should look at again: doubtful labels, unknown images, new classes, copies, and what a class holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .state import SOURCES

if TYPE_CHECKING:
    from .session import Session


class Cleaning:
    """Lists of images of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def show(self, kind: str, count: int) -> dict[str, Any]:
        """The answer of /api/clean."""
        kinds = {"doubtful": self._doubtful, "unknown": self._unknown, "new_class": self._new_class,
                 "duplicates": self._duplicates}  # fmt: skip
        if kind not in kinds:
            raise UserError(f"kind must be one of {', '.join(kinds)}, got {kind[:50]!r}")
        with self.session.lock:
            return {"items": kinds[kind](count)}

    def _clean_item(self, image: int, score: float, reason: str, group: int | None = None) -> dict[str, Any]:
        label = int(self.session.state.label[image])
        ranked = self.session.ranked(image)
        return {"id": image, "class": label if label >= 0 else None, "suggestion": ranked[0] if ranked else None,
                "score": round(score, 4), "group": group, "reason": reason}  # fmt: skip

    def _doubtful(self, count: int) -> list[dict[str, Any]]:
        state = self.session.state
        items = []
        for image, given, better, p in self.session.answer.doubtful:
            if state.label[image] == given and self.session.is_open(better):
                name = state.classes[better].name
                item = self._clean_item(image, p, f"labeled {state.classes[given].name}, looks like {name}")
                items.append({**item, "suggestion": {"class": better, "confidence": round(p, 4)}})
        return items[:count]

    def _unknown(self, count: int) -> list[dict[str, Any]]:
        p = self.session.answer.unknown_p
        scores = self.session.answer.scores
        if p is None or scores is None:
            return []
        waiting = np.flatnonzero((p <= 0.05) & ~self.session.state.judged() & ~self.session.reserved)
        order = waiting[np.argsort(-scores[waiting], kind="stable")][:count]
        return [
            self._clean_item(int(i), float(scores[i]), f"far from every labeled image (p = {p[i]:.3f})") for i in order
        ]

    def _new_class(self, count: int) -> list[dict[str, Any]]:
        judged = self.session.state.judged()
        items = []
        for group, images in enumerate(self.session.answer.clusters):
            waiting = [image for image in images if not judged[image] and not self.session.reserved[image]]
            reason = f"{len(waiting)} images that resemble each other and no label: a new class?"
            items += [self._clean_item(image, float(len(waiting)), reason, group) for image in waiting]
        return items[:count]

    def _duplicates(self, count: int) -> list[dict[str, Any]]:
        items = []
        for group in np.unique(self.session.copies[self.session.copies >= 0]).tolist():
            images = np.flatnonzero(self.session.copies == group).tolist()
            labels = {int(self.session.state.label[image]) for image in images} - {-1}
            done = len(labels) == 1 and all(self.session.state.judged()[images])
            if not done:
                reason = "copies with different labels" if len(labels) > 1 else f"{len(images)} copies of one picture"
                items += [self._clean_item(i, float(len(labels)), reason, group) for i in images]
        items.sort(key=lambda item: -item["score"])
        return items[:count]

    def of_class(self, cls: int, offset: int, count: int) -> dict[str, Any]:
        """The answer of /api/class/ID."""
        with self.session.lock:
            self.session.state.open_class(cls)
            images = np.flatnonzero(self.session.state.label == cls)
            probs = self.session.probs()
            column = self.session.answer.classes.index(cls) if cls in self.session.answer.classes else None
            confidence = np.full(len(images), np.nan)
            if probs is not None and column is not None:
                confidence = probs[images, column].astype(float)
            order = np.argsort(np.nan_to_num(confidence, nan=-1.0), kind="stable")[offset : offset + count]
            items = [
                {
                    "id": int(images[place]), "source": SOURCES[self.session.state.source[images[place]]],
                    "confidence": round(float(confidence[place]), 4) if np.isfinite(confidence[place]) else None,
                }
                for place in order
            ]  # fmt: skip
            return {"items": items, "total": len(images)}
