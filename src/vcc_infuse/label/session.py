"""A labeling session: what the person said (state), what the model says (answers), and what is shown next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .bounds import Bound, bulk_bound, clopper_pearson, promise
from .cleaning import Cleaning
from .embedding import THUMBNAILS, Progress
from .grids import Grids
from .images import ImagePool
from .jobs import Answer, Job
from .journal import Journal
from .policy import audit_reserve, is_audit
from .state import CONFIRMED, FOREIGN, PERSON, SKIPPED, GridBatch, LabelState
from .thumbnails import Reader

MOST_WRONG = 0.05  # share of wrong labels that a batch may have at most (95 %) to be confirmed as a whole
ALTERNATIVES = 3
GROWTH = 1.3  # times as many embedded images are worth a new answer
FEWEST = 64
FIELDS = {
    "label": ("image", "class", "audit", "suggested"), "skip": ("image",), "foreign": ("image",),
    "unlabel": ("image",), "new_class": ("name", "key"), "rename": ("class", "name"), "key": ("class", "key"),
    "merge": ("class", "into"), "grid": ("class", "batch", "tiles"), "undo": (), "redo": (),
}  # fmt: skip
"""What a page may send with each action."""


class Session:
    """All that the server answers from. Methods may be called from any thread.

    Args:
        pool: the images.
        out: folder of the journal and of everything that is written.
        submit: takes a job for the process that trains; by default nothing is trained.
        seed: of everything that is drawn.
        most_wrong: a batch is confirmed as a whole if at most this share of it is wrong, with 95 % confidence.
    """

    def __init__(
        self,
        pool: ImagePool,
        out: Path,
        *,
        submit: Callable[[Job], None] = lambda job: None,
        seed: int = 0,
        most_wrong: float = MOST_WRONG,
    ) -> None:
        self.pool = pool
        self.out = out
        self.seed = seed
        self.most_wrong = most_wrong
        self.lock = threading.RLock()
        self.changed = 0  # grows with everything that a page should hear of
        self.embedded = 0
        self.unreadable = np.zeros(len(pool), bool)
        self.thumbnails = Reader(out / THUMBNAILS, len(pool))
        self.answer = Answer(-1, "none")
        self.copies = np.full(len(pool), -1)  # the group of each image; −1 if it has no copy
        self.reserve = audit_reserve(len(pool), seed)
        self.reserved = np.zeros(len(pool), bool)
        self.reserved[self.reserve] = True
        self.training = False
        self._submit = submit
        self._order = np.random.default_rng(seed).permutation(len(pool))
        self._kept: tuple[Answer, tuple[int, ...], np.ndarray | None, np.ndarray] | None = None
        self._asked_with = 0  # images that were embedded when an answer was last asked for
        self.state = LabelState(len(pool))
        self.journal = Journal(out / "journal.jsonl")
        self.message = self.journal.note
        try:
            self._replay()
        except BaseException:
            self.journal.close()
            raise
        self.grids = Grids(self)
        self.cleaning = Cleaning(self)

    def close(self) -> None:
        """Release the folder."""
        self.journal.close()
        self.thumbnails.close()

    # --- actions

    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a page asks for: checked, on disk, then applied. A click that is repeated is not done twice."""
        action = self._read(given)
        with self.lock:
            if action.get("client") not in self.state.clients:
                self.state.check(action)
                if action["action"] == "grid":
                    action["promised"] = self._promised(action)
                if action["action"] == "label":  # what was not drawn for the audit measures nothing
                    action["audit"] = bool(action.get("audit")) and bool(self.reserved[action["image"]])
                self._keep(action)
                self.ask()
            done = {"ok": True, "version": self.state.version, "state": self.state_json()}
            return {**done, "again": self._again()} if action["action"] == "undo" else done

    def _again(self) -> dict[str, Any] | None:
        """The image whose answer was undone, to be shown once more; None if it was something else."""
        undone = self.state.undone or {}
        if undone.get("action") not in ("label", "skip", "foreign"):
            return None
        image = undone["image"]
        return self._audit_item(image) if self.reserved[image] else self._item(image, "its answer was undone")

    def _read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        name = given.get("action")
        if not isinstance(name, str) or name not in FIELDS:
            raise UserError(f"action must be one of {', '.join(FIELDS)}, got {str(name)[:50]!r}")
        client = given.get("client")
        if client is not None and (not isinstance(client, str) or len(client) > 64):
            raise UserError("client must be a text of at most 64 characters")
        seconds = given.get("seconds", 0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
            raise UserError(f"seconds must be a number of at least 0, got {str(seconds)[:50]!r}")
        action = {field: given[field] for field in FIELDS[name] if field in given}
        if name == "grid" and type(action.get("batch")) is int and action["batch"] not in self.state.batches:
            action["members"] = self.grids.members(action["batch"])
        return {"action": name, **action, "client": client, "seconds": seconds, "time": round(time.time(), 3)}

    def _promised(self, action: Mapping[str, Any]) -> bool:
        """Whether the whole batch may be confirmed after these tiles."""
        tiles = frozenset(tile["id"] for tile in action["tiles"])
        wrong = frozenset(tile["id"] for tile in action["tiles"] if not tile["right"])
        batch = self.state.batches.get(action["batch"]) or GridBatch(action["class"], frozenset(action["members"]))
        return bulk_bound(batch.after(tiles, wrong).counts())["at_most"] <= self.most_wrong

    def _keep(self, action: dict[str, Any]) -> None:
        """Write an action to the journal, then apply it."""
        self.journal.append(self._with_names(action))
        self.state.apply(action)
        self.changed += 1

    def import_labels(self, labels: Iterable[tuple[str, str]], key: str) -> int:
        """Take over labels of a table once: (name of the image, class); `key` says which table. Returns how many."""
        with self.lock:
            if key in self.state.clients:
                return 0
            known = [(self.pool.number[name], label) for name, label in labels if name in self.pool.number]
            self._keep({"action": "import", "labels": known, "client": key, "time": round(time.time(), 3)})
            return len(known)

    # --- the journal knows images by name, because their numbers change with the folder

    def _with_names(self, action: Mapping[str, Any]) -> dict[str, Any]:
        names = self.pool.names
        record = dict(action)
        if "image" in record:
            record["image"] = names[record["image"]]
        if "tiles" in record:
            record["tiles"] = [{**tile, "id": names[tile["id"]]} for tile in record["tiles"]]
        if "members" in record:
            record["members"] = [names[image] for image in record["members"]]
        if "labels" in record:
            record["labels"] = [(names[image], label) for image, label in record["labels"]]
        return record

    def _with_numbers(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The action of a record; images that are gone are left out."""
        number = self.pool.number
        action = dict(record)
        if "image" in action:
            if action["image"] not in number:
                return {"action": "nothing"}
            action["image"] = number[action["image"]]
        if "tiles" in action:
            action["tiles"] = [{**t, "id": number[t["id"]]} for t in action["tiles"] if t["id"] in number]
            if not action["tiles"]:
                return {"action": "nothing"}
        if "members" in action:
            action["members"] = [number[name] for name in action["members"] if name in number]
        if "labels" in action:
            action["labels"] = [(number[name], label) for name, label in action["labels"] if name in number]
        return action

    def _replay(self) -> None:
        for line, record in enumerate(self.journal.records, 2):
            try:
                action = self._with_numbers(record)
                if action["action"] not in ("nothing", "import"):
                    self.state.check(action)
                self.state.apply(action)
            except (UserError, LookupError, TypeError, ValueError, AttributeError) as fault:
                remedy = "restore the file, or give another --out"
                raise UserError(f"{self.journal.path}, line {line} cannot be repeated ({fault}); {remedy}") from fault
        self.journal.records.clear()

    # --- what the other processes say

    def on_progress(self, progress: Progress) -> None:
        """Images were embedded."""
        with self.lock:
            self.changed += 1
            if progress.fault:
                self.message = progress.fault
                return
            self.thumbnails.tell(progress.places)
            self.unreadable[progress.unreadable] = True
            self.embedded = progress.done
            if self.unreadable.any():
                self.message = f"{int(self.unreadable.sum()):,} images cannot be read and are left out"
            if progress.done == len(self.pool) or progress.done > GROWTH * self._asked_with + FEWEST:
                self.ask()

    def on_answer(self, answer: Answer) -> None:
        """The model has learned."""
        with self.lock:
            self.changed += 1
            if answer.copies is not None:
                for group in answer.copies:
                    self.copies[group] = group[0]
            if answer.kind == "copies":
                return
            if answer.gain is None and answer.labels == self.answer.labels:
                answer.gain = self.answer.gain
            self.answer = answer
            self._said()  # now, and not at the next click
            self.training = answer.version < self.state.version or (answer.kind == "quick" and self._full())

    def ask(self) -> None:
        """Ask for an answer to the labels as they are now."""
        with self.lock:
            if self.embedded == 0:
                return
            state = self.state
            classes = state.open_classes()
            job = Job(
                state.version, state.label.copy(), (state.status > 0) | self.unreadable | self.reserved,
                state.status == FOREIGN, state.audit.copy(), tuple(classes),
                tuple(item.name for item in classes.values()),
                60 * int((state.label >= 0).sum()) / max(state.seconds, 60.0), self._full(),
            )  # fmt: skip
            self.training = len(classes) > 1
            self._asked_with = self.embedded
            self._submit(job)

    def _full(self) -> bool:
        """Whether it is worth to train the default method: all images are embedded, and classes have some labels."""
        labels = self.state.label[self.state.label >= 0]
        return self.embedded == len(self.pool) and len(labels) > 0 and len(np.unique(labels)) > 1

    # --- what a page asks for

    def state_json(self) -> dict[str, Any]:
        """The answer of /api/state."""
        with self.lock:
            state = self.state
            answer = self.answer
            gain = answer.gain and {"minutes": 10, **dict(zip(("error", "low", "high"), answer.gain, strict=True))}
            model = None
            if answer.kind in ("quick", "full"):
                model = {"version": answer.version, "labels": answer.labels, "seconds": round(answer.seconds, 2),
                         "training": self.training}  # fmt: skip
            return {
                "version": state.version,
                "folder": Path(self.pool.source.path).name.encode("utf-8", "backslashreplace").decode(),
                "images": len(self.pool),
                "embedded": self.embedded,
                "phase": "ready" if self.embedded == len(self.pool) else "embedding",
                "classes": self._classes(),
                "labeled": int((state.label >= 0).sum()),
                "skipped": int((state.status == SKIPPED).sum()),
                "foreign": int((state.status == FOREIGN).sum()),
                "audited": int((state.audit & (state.label >= 0)).sum()),
                "error": self._error(),
                "bound": self.bound(),
                "model": model,
                "minutes": round(state.seconds / 60, 2),
                "gain": gain,
                "undo": state.undo_depth,
                "redo": state.redo_depth,
                "message": self.message,
            }

    def _classes(self) -> list[dict[str, Any]]:
        state = self.state
        most = max(state.classes, default=0) + 2
        person = np.bincount(state.label[state.source == PERSON], minlength=most)
        confirmed = np.bincount(state.label[state.source == CONFIRMED], minlength=most)
        suggested = np.bincount(self.guess()[~(state.judged() | self.reserved)] + 1, minlength=most + 1)[1:]
        return [
            {
                "id": number, "name": item.name, "key": item.key, "labels": int(person[number]),
                "confirmed": int(confirmed[number]), "suggested": int(suggested[number]),
            }
            for number, item in state.open_classes().items()
        ]  # fmt: skip

    def guess(self) -> np.ndarray:
        """The class that the model puts each image in, of shape (images,); −1 where it says nothing."""
        return self._said()[1]

    def probs(self) -> np.ndarray | None:
        """What the model says, of shape (images, classes); columns of classes that were merged since are 0."""
        return self._said()[0]

    def _said(self) -> tuple[np.ndarray | None, np.ndarray]:
        """Probabilities and likeliest classes of the newest answer, kept because every click needs them."""
        gone = tuple(place for place, number in enumerate(self.answer.classes) if not self.is_open(number))
        if self._kept is None or self._kept[0] is not self.answer or self._kept[1] != gone:
            self._kept = (self.answer, gone, *self.answer.without(gone, len(self.pool)))
        return self._kept[2:]

    def is_open(self, number: int) -> bool:
        """Whether a class exists and was not merged."""
        item = self.state.classes.get(number)
        return item is not None and item.into is None

    def _error(self) -> dict[str, Any] | None:
        if not self.answer.wrong or not self.answer.wrong[1]:
            return None
        wrong, count = self.answer.wrong
        low, high = clopper_pearson(wrong, count, side="two")
        return {"value": wrong / count, "low": low, "high": high, "n": count}

    def bound(self, cls: int | None = None) -> Bound | None:
        """The promise on what was confirmed as a whole, of one class or of all."""
        begun = [batch for batch in self.state.batches.values() if cls is None or self._final(batch.cls) == cls]
        if not any(batch.promised for batch in begun):
            return None
        return promise(tuple(batch.counts() for batch in begun))  # also of those given up, see `bounds`

    def _final(self, cls: int) -> int:
        """The class that a class was merged into at last."""
        while (item := self.state.classes.get(cls)) is not None and item.into is not None:
            cls = item.into
        return cls

    def next(self, count: int, skip: Iterable[int]) -> dict[str, Any]:
        """The answer of /api/next."""
        with self.lock:
            held = set(skip)
            busy = self.state.judged() | self.unreadable
            busy[[image for image in held if image < len(self.pool)]] = True
            audits = iter([int(image) for image in self.reserve if not busy[image]])
            others = self._waiting(busy | self.reserved)
            position = self.state.answers + len(held)
            items: list[dict[str, Any]] = []
            while len(items) < count:
                audit = next(audits, None) if is_audit(position + len(items), self.seed) else None
                if audit is not None:
                    items.append(self._audit_item(audit))
                    continue
                image, reason = next(others, (None, ""))
                image = next(audits, None) if image is None else image
                if image is None:
                    break
                items.append(self._audit_item(image) if self.reserved[image] else self._item(image, reason))
            return {"items": items}

    def _waiting(self, busy: np.ndarray) -> Iterator[tuple[int, str]]:
        """What the policy suggests, then the others at random."""
        first = {image: reason for image, reason in self.answer.following if not busy[image]}
        yield from first.items()
        rest = (int(image) for image in self._order if not busy[image] and image not in first)
        yield from ((image, "drawn at random") for image in rest)

    def _audit_item(self, image: int) -> dict[str, Any]:
        return {"id": image, "audit": True, "reason": "drawn at random, to measure the error", "suggestion": None,
                "alternatives": [], "unknown_p": None, "copies": 0}  # fmt: skip

    def _item(self, image: int, reason: str) -> dict[str, Any]:
        ranked = self.ranked(image)
        p = self.answer.unknown_p
        group = self.copies[image]
        return {
            "id": image,
            "audit": False,
            "reason": reason,
            "suggestion": ranked[0] if ranked else None,
            "alternatives": ranked[1 : 1 + ALTERNATIVES],
            "unknown_p": round(float(p[image]), 4) if p is not None and np.isfinite(p[image]) else None,
            "copies": int((self.copies == group).sum()) - 1 if group >= 0 else 0,
        }

    def ranked(self, image: int) -> list[dict[str, Any]]:
        """Classes of an image, the likeliest first, without those that a person has refused."""
        probs = self.probs()
        if probs is None or not np.isfinite(probs[image, 0]):
            return []
        order = np.argsort(-probs[image], kind="stable")[: 2 + ALTERNATIVES + len(self.answer.classes) // 10]
        pairs = [(self.answer.classes[place], float(probs[image, place])) for place in order]
        return [
            {"class": cls, "confidence": round(confidence, 4)}
            for cls, confidence in pairs
            if self.is_open(cls) and not self.state.refused.get((image, cls))
        ]
