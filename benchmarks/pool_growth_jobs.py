"""The parts whose growth is measured: each makes its inputs and returns what is timed, which may return a remark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vcc_infuse import pool_audit
from vcc_infuse.algorithms import Algorithm, FixMatch, LabelSpreading, SelfTraining
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.bank import Bank, BankConfig
from vcc_infuse.calibrators.evidence.neighbors import FeatureMemory
from vcc_infuse.calibrators.history import History
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.label import embedding
from vcc_infuse.label.images import PoolSource
from vcc_infuse.label.thumbnails import KEY, KeyIndex, Places, Reader, Records
from vcc_infuse.models import Classifier, Identity
from vcc_infuse.pool_audit import AuditedImages, audit_images
from vcc_infuse.report import write_report
from vcc_infuse.selectors import INFUSE, AlignedINFUSE, Selector
from vcc_infuse.selectors.pool import Pool
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.io import npz_bytes

Note = str | Callable[[], str] | None  # a remark, or what finds it out after the time is taken
Timed = Callable[[], Note]
WIDTH = 64
CLASSES = 10
LABELS = 100
CENTERS = 200
STEPS = 200
BATCH = 448
CHECKED = 300  # rows whose neighbors are compared with exact ones
APART = 0.8  # noise with which only copies reach the threshold of copies
COPIES = 20  # one of so many rows is followed by a near copy


def features(rows: int, *, noise: float = 0.4, copies: bool = False) -> np.ndarray:
    """Rows of unit length around centers, float16; with `copies` one of twenty is a near copy of the row before."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((CENTERS, WIDTH), np.float32)
    spread = rng.standard_normal((8, WIDTH), np.float32)
    x = np.empty((rows, WIDTH), np.float16)
    for start in range(0, rows, 10_000):
        count = min(10_000, rows - start)
        part = centers[rng.integers(0, CENTERS, count)] + 0.4 * rng.standard_normal((count, 8), np.float32) @ spread
        part += noise * rng.standard_normal((count, WIDTH), np.float32)
        if copies:
            part[1::COPIES] = part[::COPIES][: len(part[1::COPIES])]
            part[1::COPIES] += 0.05 * rng.standard_normal(part[1::COPIES].shape, np.float32)
        x[start : start + count] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return x


def few_labels(rows: int, classes: int = CLASSES) -> np.ndarray:
    """Ten labels of each class, or as many as fill half of the rows, −1 elsewhere."""
    return np.where(np.arange(rows) < min(10 * classes, rows // 2), np.arange(rows) % classes, -1)


def some_keys(rows: int) -> np.ndarray:
    """Sixteen bytes per row, in no order."""
    return np.random.default_rng(0).integers(0, 2**64, (rows, 2), np.uint64).view(KEY).ravel()


class FakePool:
    """Images that are made, not read: what the embedding queue asks of a pool."""

    def __init__(self, source: PoolSource) -> None:
        self.keys = some_keys(int(source.path))
        self.pixels = np.zeros((2, 2, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.keys)

    def decoded(self, number: int, side: int) -> tuple[np.ndarray, bytes]:
        """The same pixels and thumbnail for all."""
        return self.pixels, b"thumbnail"


class FakeNetwork:
    """A network that costs nothing."""

    key = b"k" * 16

    def load(self, images: int) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
        """Features of zeros."""
        return 2, lambda pixels: np.zeros((len(pixels), WIDTH), np.float16)


def queue(rows: int) -> Timed:
    """All images wait for a network that costs nothing."""
    embedding.__dict__["ImagePool"] = FakePool  # in this process only

    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            embedding.embed_pool(PoolSource(str(rows)), FakeNetwork(), Path(folder), 0, lambda progress: None)

    return job


def read_queue(rows: int) -> Timed:
    """What the process that trains reads of it."""
    folder = tempfile.mkdtemp()
    keys = some_keys(rows)
    with embedding.open_features(Path(folder), FakeNetwork.key) as records:
        for key, row in zip(keys, features(rows), strict=True):
            records.add(key, row.tobytes())

    def job() -> None:
        stored = embedding.FeatureRows(Path(folder) / embedding.FEATURES, keys)
        stored.refresh()
        (Path(folder) / embedding.FEATURES).unlink()
        Path(folder).rmdir()

    return job


def bank(rows: int) -> Timed:
    """Plain views of a lazy bank: digests of all images, chunks, files."""
    images = np.random.default_rng(0).integers(0, 256, (rows, 4, 4, 3), np.uint8)
    data = SSLData.from_arrays(images, few_labels(rows))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH))

    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            views = ImageViews((0.5,) * 3, (0.25,) * 3)
            options: dict[str, Any] = {"cache": folder, "engine": "torch"}
            config = BankConfig(weak=1, strong=1, lazy=True, batch_size=512)
            Bank(data.dataset, encoder, views, config, **options).build(progress=False)

    return job


def slots(rows: int, classes: int = CLASSES) -> SSLData:
    """A plain, a weak and a strong view of each row."""
    x = np.repeat(features(rows)[:, None], 3, axis=1)
    y = few_labels(rows, classes)
    return SSLData.from_arrays(x, y, x[:classes], y[:classes], slots=(1, 1))


def prepared(rows: int, algorithm: Algorithm | None = None, classes: int = CLASSES, **options: Any) -> Trainer:
    """FixMatch, or another method, on views of made-up features, ready for its first step."""
    common: dict[str, Any] = dict(steps=STEPS, batch_size=BATCH // 7, device="cpu", progress=False)
    trainer = Trainer(Identity(), algorithm or FixMatch(threshold=0), **common, **options)
    trainer.prepare(slots(rows, classes))
    return trainer


def batches(rows: int) -> Timed:
    """200 batches of a bank."""
    made = prepared(rows).batches_

    def job() -> None:
        for step in range(STEPS):
            made.at(step)

    return job


def history(rows: int) -> Timed:
    """200 steps of a history."""

    def job() -> None:
        memory = History(rows, CLASSES, window=2)
        probs = torch.rand(BATCH, CLASSES).softmax(1)
        for step in range(STEPS):
            ids = torch.randint(rows, (BATCH,))
            memory.read(ids, step)
            memory.write(ids, probs, step)

    return job


def memory_of(rows: int) -> FeatureMemory:
    """Evidence's memory of a pool, every row seen once."""
    memory = FeatureMemory(rows, labeled=LABELS, width=WIDTH, code_size=WIDTH, neighbors=10)
    for part in torch.split(torch.from_numpy(features(rows)), 10_000):
        place = int(memory.seen.sum())
        memory.write(torch.arange(place, place + len(part)), part.float())
    return memory


def neighbors(rows: int) -> Timed:
    """One of the two searches of a run."""
    memory = memory_of(rows)

    def job() -> Note:
        memory.find_neighbors()
        return lambda: f"recall {recall(memory):.3f}"

    return job


def recall(memory: FeatureMemory) -> float:
    """The share of the exact neighbors of some rows that were found."""
    codes = nn.functional.normalize(memory.codes[: memory.pool].float())
    some = torch.linspace(0, memory.pool - 1, CHECKED).long()
    shares = []
    for row in some.tolist():
        similarity = codes @ codes[row]
        similarity[row] = -2
        shares.append(torch.isin(similarity.topk(memory.neighbors).indices, memory.nearest[row]).float().mean())
    return float(torch.stack(shares).mean())


def look_up(rows: int) -> Timed:
    """Evidence for 64 new images, after a run."""
    memory = memory_of(rows)
    new = torch.from_numpy(features(64)).float()

    def job() -> str:
        memory.look_up(new)
        return "64 new images, each against the whole pool"

    return job


def spreading(rows: int) -> Timed:
    """LabelSpreading on the pool."""
    x = torch.from_numpy(features(rows))
    labels = torch.from_numpy(few_labels(rows)[:LABELS])
    model = Classifier.build(Identity(), (WIDTH,), CLASSES)

    def job() -> None:
        LabelSpreading().solve(model, x[:LABELS], labels, x[LABELS:])

    return job


def selection(rows: int, selector: Selector, classes: int = CLASSES) -> Timed:
    """What a selector says of every row of a pool, and which a tenth are kept."""
    trainer = prepared(rows, classes=classes, selector=selector)
    state = trainer.state_
    parts: dict[str, Any] = {name: getattr(state, name) for name in ("algorithm", "calibrator", "task")}
    model = state.ema.module.eval()
    pool = Pool(batches=trainer.batches_, model=model, ema=model, chunk=4096, **parts)

    def job() -> None:
        assert isinstance(state.selector, INFUSE)
        state.selector.choose(pool, rows // 10)

    return job


def self_training(rows: int) -> Timed:
    """A whole fit of the default method, which looks at some of the rows."""
    algorithm = SelfTraining()
    x = features(rows)
    y = np.where(few_labels(rows) < 0, -1, x[:, :CLASSES].argmax(1))  # which can be learned from the features
    data = SSLData.from_arrays(np.repeat(x[:, None], 3, axis=1), y, slots=(1, 1))

    def job() -> Note:
        Trainer(Identity(), algorithm, device="cpu", progress=False, cross_fit=False).fit(data)
        seen = len(algorithm.pool_rows(np.arange(rows - LABELS), CLASSES))
        return f"learns from {seen:,} rows of the pool"

    return job


def unknown(rows: int) -> Timed:
    """find_unknown."""
    x = features(rows)

    def job() -> None:
        pool_audit.find_unknown(x, x[:LABELS])

    return job


def duplicates(rows: int) -> Timed:
    """find_duplicates with hashes."""
    x = features(rows, noise=APART, copies=True)
    hashes = np.random.default_rng(0).integers(0, 2**63, (rows, 2), dtype=np.uint64)

    def job() -> str:
        found = pool_audit.find_duplicates(x, hashes=hashes)
        places = np.arange(rows) % 10_000 % COPIES == 1
        return f"{(found.partner[places] == np.flatnonzero(places) - 1).mean():.3f} of the copies found"

    return job


def suggest(rows: int) -> Timed:
    """suggest_labels without a label."""
    x = features(rows)

    def job() -> None:
        pool_audit.suggest_labels(x)

    return job


def audit(rows: int) -> Timed:
    """Everything that `vcc-infuse audit` looks for."""
    x = features(rows, noise=APART, copies=True)
    labels = few_labels(rows)
    parts = np.where(labels >= 0, "labeled", "pool")
    names = [f"{number}.jpg" for number in range(rows)]
    images = AuditedImages(x, labels, parts, names, [str(number) for number in range(CLASSES)])

    def job() -> None:
        audit_images(images)

    return job


def report(rows: int) -> Timed:
    """A report on as many test images."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLASSES, rows).astype(np.int32)
    confidence = rng.random(rows, np.float32)
    answers: dict[str, Any] = {
        "truth": truth,
        "predicted": np.where(rng.random(rows) < confidence, truth, 0).astype(np.int32),
    }
    answers |= {"confidence": confidence, "calibrated": confidence**2}
    folder = Path(tempfile.mkdtemp())
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "model.json").write_text(f'{{"classes": {list("abcdefghij")}}}'.replace("'", '"'))
    (folder / "predictions.npz").write_bytes(npz_bytes(answers))

    def job() -> str:
        page = write_report([folder], folder / "report.html")
        return f"page of {page.stat().st_size / 1e6:.1f} MB"

    return job


def thumbnails(rows: int) -> Timed:
    """Written, found again after a start, and read."""
    keys = some_keys(rows)

    def job() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "thumbnails.bin"
            with Records(path) as records:
                for key in keys:
                    records.add(key, b"thumbnail")
            reader = Reader(path, rows)
            with Records(path) as records:
                places = KeyIndex(records.keys).find(keys)
                reader.tell(Places(np.arange(rows), records.offsets[places], records.lengths[places]))
            for number in range(0, rows, 1000):
                assert reader.get(number) == b"thumbnail"
            reader.close()

    return job


JOBS: dict[str, Callable[[int], Timed]] = {
    "embedding queue": queue,
    "reading the queue": read_queue,
    "bank, plain views": bank,
    "200 batches": batches,
    "200 steps of history": history,
    "Evidence: neighbors": neighbors,
    "Evidence: look-up": look_up,
    "LabelSpreading": spreading,
    "SelfTraining": self_training,
    "INFUSE": lambda rows: selection(rows, INFUSE(keep=0.1)),
    "AlignedINFUSE": lambda rows: selection(rows, AlignedINFUSE(keep=0.1)),
    "AlignedINFUSE, 1,000 classes": lambda rows: selection(rows, AlignedINFUSE(keep=0.1), 1000),
    "find_unknown": unknown,
    "find_duplicates": duplicates,
    "suggest_labels": suggest,
    "audit": audit,
    "report": report,
    "thumbnails": thumbnails,
}
