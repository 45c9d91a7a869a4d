"""A labeling session: what the person said (state), what the model says (answers), and what is shown next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, check_choice
from .bounds import Bound, bulk_bound, clopper_pearson, pooled_bound
from .embedding import THUMBNAILS, Progress
from .images import ImagePool
from .jobs import Answer, Job
from .journal import Journal
from .policy import Purpose, audit_reserve, grid_rows, is_audit
from .state import CONFIRMED, FOREIGN, PERSON, SKIPPED, SOURCES, GridBatch, LabelState
from .thumbnails import Reader

MOST_WRONG = 0.05  # share of wrong labels that a batch may have at most (95 %) to be confirmed as a whole
BAD_BOUND = 0.3  # above it a batch is given up once there is a newer model
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
        self.thumbnails = Reader(out / THUMBNAILS)
        self.answer = Answer(-1, "none")
        self.copies = np.full(len(pool), -1)  # the group of each image; −1 if it has no copy
        self.reserve = audit_reserve(len(pool), seed)
        self.reserved = np.zeros(len(pool), bool)
        self.reserved[self.reserve] = True
        self.training = False
        self._submit = submit
        self._order = np.random.default_rng(seed).permutation(len(pool))
        self._grids: dict[tuple[int, str], tuple[int, GridBatch, int]] = {}
        self._last_grid = 0
        self._asked_with = 0  # images that were embedded when an answer was last asked for
        self.state = LabelState(len(pool))
        self.journal = Journal(out / "journal.jsonl")
        self.message = self.journal.note
        try:
            self._replay()
        except BaseException:
            self.journal.close()
            raise

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
                self._keep(action)
                self.ask()
            answer = {"ok": True, "version": self.state.version, "state": self.state_json()}
            return {**answer, "again": self._again()} if action["action"] == "undo" else answer

    def _again(self) -> dict[str, Any] | None:
        """The image whose answer was undone, to be shown once more."""
        image = self.state.last_undone.get("image")
        if image is None or self.state.judged()[image]:
            return None
        return self._audit_item(image) if self.reserved[image] else self._item(image, "undone")

    def _read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        name = given.get("action")
        if name not in FIELDS:
            raise UserError(f"action must be one of {', '.join(FIELDS)}, got {str(name)[:50]!r}")
        client = given.get("client")
        if client is not None and (not isinstance(client, str) or len(client) > 64):
            raise UserError("client must be a text of at most 64 characters")
        seconds = given.get("seconds", 0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
            raise UserError(f"seconds must be a number of at least 0, got {str(seconds)[:50]!r}")
        action = {field: given[field] for field in FIELDS[name] if field in given}
        if name == "grid" and type(action.get("batch")) is int:
            open_grid = next((grid for grid in self._grids.values() if grid[0] == action["batch"]), None)
            if open_grid is not None and action["batch"] not in self.state.batches:
                action["members"] = sorted(open_grid[1].images)
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
        self._last_grid = max(self.state.batches, default=0)

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
            self.training = answer.version < self.state.version or (answer.kind == "quick" and self._full())

    def ask(self) -> None:
        """Ask for an answer to the labels as they are now."""
        with self.lock:
            if self.embedded == 0:
                return
            state = self.state
            classes = state.open_classes()
            labels = int((state.label >= 0).sum())
            job = Job(
                state.version, state.label.copy(), (state.status > 0) | self.unreadable | self.reserved,
                state.status == FOREIGN, state.audit.copy(), tuple(classes),
                tuple(item.name for item in classes.values()),
                60 * labels / state.seconds if state.seconds > 60 else 0.0, self._full(),
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
                "gain": self._gain(),
                "undo": state.undo_depth,
                "redo": state.redo_depth,
                "message": self.message,
            }

    def _classes(self) -> list[dict[str, Any]]:
        state = self.state
        most = max(state.classes, default=0) + 2
        person = np.bincount(state.label[state.source == PERSON], minlength=most)
        confirmed = np.bincount(state.label[state.source == CONFIRMED], minlength=most)
        suggested = np.bincount(self.guess()[~state.judged()] + 1, minlength=most + 1)[1:]
        return [
            {
                "id": number, "name": item.name, "key": item.key, "labels": int(person[number]),
                "confirmed": int(confirmed[number]), "suggested": int(suggested[number]),
            }
            for number, item in state.open_classes().items()
        ]  # fmt: skip

    def guess(self) -> np.ndarray:
        """The class that the model puts each image in, of shape (images,); −1 where it says nothing."""
        probs = self.probs()
        if probs is None:
            return np.full(len(self.pool), -1)
        classes = np.array(self.answer.classes)
        known = np.isfinite(probs[:, 0])
        return np.where(known, classes[np.where(known[:, None], probs, 0).argmax(1)], -1)

    def probs(self) -> np.ndarray | None:
        """What the model says, of shape (images, classes); columns of classes that were merged since are 0."""
        probs = self.answer.probs
        if probs is None:
            return None
        gone = [place for place, number in enumerate(self.answer.classes) if not self._is_open(number)]
        if gone:
            probs = probs.copy()
            probs[:, gone] = np.where(np.isfinite(probs[:, gone]), 0, np.nan)
        return probs

    def _is_open(self, number: int) -> bool:
        item = self.state.classes.get(number)
        return item is not None and item.into is None

    def _error(self) -> dict[str, Any] | None:
        if not self.answer.wrong or not self.answer.wrong[1]:
            return None
        wrong, count = self.answer.wrong
        low, high = clopper_pearson(wrong, count, side="two")
        return {"value": wrong / count, "low": low, "high": high, "n": count}

    def _gain(self) -> dict[str, float] | None:
        if self.answer.gain is None:
            return None
        error, low, high = self.answer.gain
        return {"minutes": 10, "error": error, "low": low, "high": high}

    def bound(self, cls: int | None = None) -> Bound | None:
        """The promise on what was confirmed as a whole, of one class or of all."""
        batches = [batch for batch in self.state.batches.values() if batch.promised]
        batches = [batch for batch in batches if cls is None or self._final(batch.cls) == cls]
        if not batches:
            return None
        return bulk_bound(batches[0].counts()) if len(batches) == 1 else pooled_bound([b.counts() for b in batches])

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
            busy[[image for image in held if 0 <= image < len(self.pool)]] = True
            audits = iter([int(image) for image in self.reserve if not busy[image]])
            others = iter(self._waiting(busy | self.reserved))
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

    def _waiting(self, busy: np.ndarray) -> list[tuple[int, str]]:
        """What the policy suggests, then the others at random."""
        first = [(image, reason) for image, reason in self.answer.following if not busy[image]]
        taken = {image for image, _ in first}
        rest = [(int(image), "drawn at random") for image in self._order if not busy[image] and image not in taken]
        return first + rest

    def _audit_item(self, image: int) -> dict[str, Any]:
        reason = "drawn at random, to measure the error"
        return {"id": image, "audit": True, "reason": reason, "suggestion": None, "alternatives": [],
                "unknown_p": None, "copies": 0}  # fmt: skip

    def _item(self, image: int, reason: str) -> dict[str, Any]:
        ranked = self.ranked(image)
        p = self.answer.unknown_p
        known = p is not None and np.isfinite(p[image])
        group = self.copies[image]
        return {
            "id": image,
            "audit": False,
            "reason": reason,
            "suggestion": ranked[0] if ranked else None,
            "alternatives": ranked[1 : 1 + ALTERNATIVES],
            "unknown_p": round(float(p[image]), 4) if p is not None and known else None,
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
            if self._is_open(cls) and not self.state.refused.get((image, cls))
        ]

    def grid(self, cls: int, count: int, purpose: Purpose = "teach") -> dict[str, Any]:
        """The answer of /api/grid; `purpose` is that of a batch that begins, see `grid_rows`."""
        check_choice("purpose", purpose, ("teach", "confirm"))
        with self.lock:
            self.state.open_class(cls)
            probs = self.probs()
            if probs is None or cls not in self.answer.classes:
                return {"class": cls, "batch": None, "tiles": [], "remaining": 0, "bound": self.bound(cls)}
            column = self.answer.classes.index(cls)
            judged = self.state.judged() | self.reserved | self.unreadable | ~np.isfinite(probs[:, 0])
            refused = self._refused()
            number, batch, _ = self._open_grid(cls, purpose, judged, refused)
            seen = judged.copy()
            seen[list(batch.looked_at)] = True
            members = np.array(sorted(batch.images), np.int64)
            values = np.nan_to_num(probs.astype(np.float32))
            looks = batch.looks
            tiles = grid_rows(values, seen, column, count=count, batch=members, seed=1000 * number + looks)
            guess = np.where(judged, -1, np.where(refused, -1, values).argmax(1))
            promise = bulk_bound(batch.counts()) if looks else self.bound(cls)
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
        refused = np.zeros((len(self.pool), len(self.answer.classes)), bool)
        place = {cls: column for column, cls in enumerate(self.answer.classes)}
        for (image, cls), value in self.state.refused.items():
            if value and cls in place:
                refused[image, place[cls]] = True
        return refused

    def _open_grid(
        self, cls: int, purpose: Purpose, judged: np.ndarray, refused: np.ndarray
    ) -> tuple[int, GridBatch, int]:
        """The batch that the grids of a class are drawn from: the one begun, as long as it promises something."""
        number, batch, version = self._grids.get((cls, purpose), (-1, GridBatch(cls, frozenset()), -1))
        batch = self.state.batches.get(number, batch)
        waiting = any(not judged[image] for image in batch.images - batch.looked_at)
        newer = self.answer.version > version
        useless = newer and (batch.looks == 0 or bulk_bound(batch.counts())["at_most"] > BAD_BOUND)
        if batch.images and waiting and not batch.promised and not useless:
            return number, batch, version
        probs = self.probs()
        assert probs is not None
        column = self.answer.classes.index(cls)
        members = grid_rows(
            np.nan_to_num(probs.astype(np.float32)), judged, column, refused=refused, purpose=purpose
        ).batch
        self._last_grid += 1
        self._grids[cls, purpose] = (self._last_grid, GridBatch(cls, frozenset(members.tolist())), self.answer.version)
        return self._grids[cls, purpose]

    def clean(self, kind: str, count: int) -> dict[str, Any]:
        """The answer of /api/clean."""
        kinds = {"doubtful": self._doubtful, "unknown": self._unknown, "new_class": self._new_class,
                 "duplicates": self._duplicates}  # fmt: skip
        if kind not in kinds:
            raise UserError(f"kind must be one of {', '.join(kinds)}, got {kind[:50]!r}")
        with self.lock:
            return {"items": kinds[kind](count)}

    def _clean_item(self, image: int, score: float, reason: str, group: int | None = None) -> dict[str, Any]:
        label = int(self.state.label[image])
        ranked = self.ranked(image)
        return {"id": image, "class": label if label >= 0 else None, "suggestion": ranked[0] if ranked else None,
                "score": round(score, 4), "group": group, "reason": reason}  # fmt: skip

    def _doubtful(self, count: int) -> list[dict[str, Any]]:
        state = self.state
        items = []
        for image, given, better, p in self.answer.doubtful:
            if state.label[image] == given and self._is_open(better):
                name = state.classes[better].name
                item = self._clean_item(image, p, f"labeled {state.classes[given].name}, looks like {name}")
                items.append({**item, "suggestion": {"class": better, "confidence": round(p, 4)}})
        return items[:count]

    def _unknown(self, count: int) -> list[dict[str, Any]]:
        p = self.answer.unknown_p
        scores = self.answer.scores
        if p is None or scores is None:
            return []
        waiting = np.flatnonzero((p <= 0.05) & ~self.state.judged() & ~self.reserved)
        order = waiting[np.argsort(-scores[waiting], kind="stable")][:count]
        return [
            self._clean_item(int(i), float(scores[i]), f"far from every labeled image (p = {p[i]:.3f})") for i in order
        ]

    def _new_class(self, count: int) -> list[dict[str, Any]]:
        judged = self.state.judged()
        items = []
        for group, images in enumerate(self.answer.clusters):
            waiting = [image for image in images if not judged[image] and not self.reserved[image]]
            reason = f"{len(waiting)} images that resemble each other and no label: a new class?"
            items += [self._clean_item(image, float(len(waiting)), reason, group) for image in waiting]
        return items[:count]

    def _duplicates(self, count: int) -> list[dict[str, Any]]:
        items = []
        for group in np.unique(self.copies[self.copies >= 0]).tolist():
            images = np.flatnonzero(self.copies == group).tolist()
            labels = {int(self.state.label[image]) for image in images} - {-1}
            done = len(labels) == 1 and all(self.state.judged()[images])
            if not done:
                reason = "copies with different labels" if len(labels) > 1 else f"{len(images)} copies of one picture"
                items += [self._clean_item(i, float(len(labels)), reason, group) for i in images]
        items.sort(key=lambda item: -item["score"])
        return items[:count]

    def of_class(self, cls: int, offset: int, count: int) -> dict[str, Any]:
        """The answer of /api/class/ID."""
        with self.lock:
            self.state.open_class(cls)
            images = np.flatnonzero(self.state.label == cls)
            probs = self.probs()
            column = self.answer.classes.index(cls) if cls in self.answer.classes else None
            confidence = np.full(len(images), np.nan)
            if probs is not None and column is not None:
                confidence = probs[images, column].astype(float)
            order = np.argsort(np.nan_to_num(confidence, nan=-1.0), kind="stable")[offset : offset + count]
            items = [
                {
                    "id": int(images[place]), "source": SOURCES[self.state.source[images[place]]],
                    "confidence": round(float(confidence[place]), 4) if np.isfinite(confidence[place]) else None,
                }
                for place in order
            ]  # fmt: skip
            return {"items": items, "total": len(images)}
