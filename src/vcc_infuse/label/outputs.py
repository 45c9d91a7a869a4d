"""What a session leaves behind: labels.csv and audit.csv at any time, other formats and a run folder when asked."""

from __future__ import annotations

import csv
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data.sources.label_table import find_label_file, label_layout
from ..errors import UserError, check_choice
from ..utils.io import table_cell, write_atomic, write_json, write_text
from .embedding import FEATURES, FeatureRows
from .label_studio import studio_tasks
from .session import Session
from .state import SOURCES

if TYPE_CHECKING:
    from .launch import LabelOptions

FORMATS = ("csv", "run", "label-studio", "fiftyone", "cleanlab", "huggingface")
DELAY = 2.0  # seconds after a change until labels.csv is written
SHARE = 20  # and at least as many times as long as writing took


class Row(NamedTuple):
    """One line of labels.csv; `split` keeps `train` from taking a suggestion for a label."""

    file: str
    label: str
    source: str
    confidence: str
    split: str


class Outputs:
    """Writes the files of a session."""

    def __init__(self, session: Session, options: LabelOptions) -> None:
        self.session = session
        self.out = session.out
        self.options = options
        self._written = -1
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    # --- labels to begin with

    def read_label_file(self) -> None:
        """Take over the labels of --label_file, once."""
        path = self.options.label_file
        if path is None:
            return
        store = self.session.pool.store
        name, content = find_label_file(store, path)
        layout = label_layout(store, name, content, self.session.pool.source.path)
        labels = [(file, label) for file, label in [*layout.train, *layout.test] if label is not None]
        self.session.import_labels(labels, f"label_file {hashlib.sha256(content).hexdigest()[:32]}")

    # --- labels.csv, whenever something has changed

    def start(self) -> None:
        """Write labels.csv after changes, in a thread of its own."""
        self._thread = threading.Thread(target=self._keep_writing, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is not written yet."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        self.write_labels()

    def _keep_writing(self) -> None:
        delay = DELAY
        while not self._end.wait(delay):
            if self.session.state.version != self._written:
                began = time.perf_counter()
                try:
                    self.write_labels()
                except OSError as fault:  # the journal has everything; this is tried again
                    self.session.message = f"labels.csv cannot be written: {fault.strerror}"
                delay = max(DELAY, SHARE * (time.perf_counter() - began))

    def write_labels(self) -> list[str]:
        """labels.csv and audit.csv."""
        with self._writing:
            version = self.session.state.version
            write_table(self.out / "labels.csv", Row._fields, self.rows())
            write_table(self.out / "audit.csv", ("file", "label", "predicted", "confidence"), self._audit())
            self._written = version
        return ["labels.csv", "audit.csv"]

    def rows(self) -> Iterator[Row]:
        """Every image that has a label or a suggestion."""
        with self.session.lock:
            state = self.session.state
            names = {number: item.name for number, item in state.classes.items()}
            label = state.label.copy()
            source = state.source.copy()
            status = state.status.copy()
            guess = self.session.guess()
            probs = self.session.probs()
            column = {number: place for place, number in enumerate(self.session.answer.classes)}
        for image, name in enumerate(self.session.pool.names):
            cls = int(label[image]) if label[image] >= 0 else int(guess[image])
            if cls < 0 or (status[image] and label[image] < 0):
                continue
            said = probs[image, column[cls]] if probs is not None and cls in column else np.nan
            word = SOURCES[source[image]] or "suggested"
            split = "unlabeled" if word == "suggested" else "train"
            yield Row(name, names[cls], word, f"{said:.4f}" if np.isfinite(said) else "", split)

    def _audit(self) -> Iterator[tuple[str, ...]]:
        """The images of the audit, and what the model says, which does not learn from them."""
        with self.session.lock:
            state = self.session.state
            audited = np.flatnonzero(state.audit & (state.label >= 0))
            probs = self.session.probs()
            classes = self.session.answer.classes
            names = {number: item.name for number, item in state.classes.items()}
            labels = state.label[audited].tolist()
        for image, label in zip(audited.tolist(), labels, strict=True):
            row = None if probs is None or not np.isfinite(probs[image, 0]) else probs[image]
            said = ("", "") if row is None else (names[classes[int(row.argmax())]], f"{row.max():.4f}")
            yield self.session.pool.names[image], names[label], *said

    # --- other formats

    def export(self, kind: str) -> dict[str, Any]:
        """Write a format; returns the names of the files in the output folder, and a note of what they are."""
        makers: dict[str, Callable[[], list[str]]] = {
            "csv": self.write_labels, "label-studio": self._label_studio, "fiftyone": self._fiftyone,
            "cleanlab": self._cleanlab, "huggingface": self._huggingface,
        }  # fmt: skip
        if check_choice("format", kind, FORMATS) != "run":
            return {"files": makers[kind](), "note": ""}
        files, note = self._run()
        return {"files": files, "note": note}

    def _label_studio(self) -> list[str]:
        write_json(self.out / "label-studio.json", studio_tasks(self.session))
        return ["label-studio.json"]

    def _fiftyone(self) -> list[str]:
        """labels.json of FiftyOne's image classification dataset, whose `data/` are the photos."""
        classes, labels = self._labels()
        table = {str(Path(name).with_suffix("")): number for name, number in labels.items()}
        (self.out / "fiftyone").mkdir(exist_ok=True)
        write_json(self.out / "fiftyone" / "labels.json", {"classes": classes, "labels": table})
        return ["fiftyone/labels.json"]

    def _huggingface(self) -> list[str]:
        """metadata.csv of an imagefolder; the paths are those inside of the photos."""
        rows = ((row.file, row.label) for row in self.rows() if row.source != "suggested")
        write_table(self.out / "huggingface" / "metadata.csv", ("file_name", "label"), rows)
        return ["huggingface/metadata.csv"]

    def _cleanlab(self) -> list[str]:
        """labels.npy, pred_probs.npy (by heads that have not seen the label) and features.npy of labeled images."""
        with self.session.lock:
            answers = self.session.answer.out_of_fold
            classes = self.session.answer.classes
            label = self.session.state.label.copy()
        if answers is None:
            raise UserError("there is no model yet; label images of two classes first")
        images, probs = answers
        kept = np.flatnonzero(np.isin(label[images], classes))
        stored = FeatureRows(self.out / FEATURES, self.session.pool.keys)
        stored.refresh()
        place = {int(image): row for row, image in enumerate(stored.images)}
        column = {number: place for place, number in enumerate(classes)}
        arrays = {
            "labels.npy": np.array([column[int(label[image])] for image in images[kept]]),
            "pred_probs.npy": probs[kept],
            "features.npy": stored.features[[place[int(image)] for image in images[kept]]],
        }
        for name, array in arrays.items():
            _write_array(self.out / "cleanlab" / name, array)
        files = "".join(f"{self.session.pool.names[image]}\n" for image in images[kept])
        write_text(self.out / "cleanlab" / "files.txt", files, "surrogateescape")
        return [f"cleanlab/{name}" for name in (*arrays, "files.txt")]

    def _labels(self) -> tuple[list[str], dict[str, int]]:
        """The classes, and the number of the class of each image that has a label."""
        rows = [row for row in self.rows() if row.source != "suggested"]
        classes = sorted({row.label for row in rows})
        return classes, {row.file: classes.index(row.label) for row in rows}

    def _run(self) -> tuple[list[str], str]:
        """A run folder with model and report, trained on the labels as they are."""
        from .export_run import train_run

        self.write_labels()
        return train_run(self.session, self.options, self.out)


def write_table(path: Path, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    """A CSV file that appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.StringIO()
    writer = csv.writer(content)
    writer.writerow(columns)
    writer.writerows([table_cell(cell) for cell in row] for row in rows)
    write_text(path, content.getvalue(), "surrogateescape")


def _write_array(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)

    def fill(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.save(file, array, allow_pickle=False)

    write_atomic(path, fill)
