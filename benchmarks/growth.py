"""How time grows with the batch, the image and the classes, and memory with the classes and the pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from vcc_infuse.algorithms import FlexMatch
from vcc_infuse.calibrators import VCC, Calibrator, RobustVCC
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.types import Task

from .page import Part, Table
from .turns import take_turns
from .workloads import Case, our_step, random_images

POOLS = (10**4, 10**5, 10**6, 10**7)
CLASSES = (10, 100, 1000)


def measure_growth(rounds: int) -> Part:
    """Steps of VCC-FlexMatch on SmallConv, and the bytes that a pool keeps."""
    part = Part("growth", "Growth")
    sizes = {"batch 4/28": (4, 16, 10), "batch 16/112": (16, 16, 10), "batch 64/448": (64, 16, 10)}
    sides = {f"{side} px": (16, side, 10) for side in (16, 32, 64)}
    classes = {f"{count} classes": (16, 16, count) for count in CLASSES}
    for title, points in (("batch", sizes), ("image size", sides), ("classes", classes)):
        makers = {name: our_step(*_case(name, *point), calibrator=VCC()) for name, point in points.items()}
        part.comparisons.append(take_turns(f"A step of VCC-FlexMatch, SmallConv: {title}", makers, rounds))
    columns = ("calibrator", "classes", *(f"{pool:,} rows" for pool in POOLS))
    rows: list[Sequence[str | float]] = [
        (type(calibrator).__name__, count, *(round(pool_bytes(calibrator, count, pool), 1) for pool in POOLS))
        for calibrator in (VCC(), RobustVCC())
        for count in CLASSES
    ]
    part.tables.append(Table("Bytes per pool row: FlexMatch's memory and the calibrator's history", columns, rows))
    part.notes.append("results/select_stream.md has time and memory of ranking up to 10⁷ rows.")
    return part


def _case(name: str, batch_size: int, side: int, classes: int) -> tuple[Case, SSLData]:
    data = random_images(side, classes, max(2000, 10 * classes))
    return Case(name, lambda: data, SmallConv, batch_size), data


def pool_bytes(calibrator: Calibrator, classes: int, pool: int) -> float:
    """Bytes of all buffers per row beyond those of an almost empty pool; nothing is allocated."""
    return (state_bytes(calibrator, classes, pool) - state_bytes(calibrator, classes, 1)) / pool


def state_bytes(calibrator: Calibrator, classes: int, pool: int) -> int:
    """Bytes of the buffers of FlexMatch and the calibrator."""
    with torch.device("meta"):
        counts = torch.zeros(classes, dtype=torch.long)
        task = Task(classes, 4 * classes, pool, counts, 1000, 64, 448)
        model = Classifier(nn.Identity(), nn.Linear(128, classes))
        algorithm = FlexMatch()
        calibrator = type(calibrator)()
        for part in (algorithm, calibrator):
            part.setup(model, task)
    return sum(buffer.nbytes for part in (algorithm, calibrator) for buffer in part.buffers())
