"""What is timed: data made of noise, and steps of our own training on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vcc_infuse.algorithms import FlexMatch
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import MLP, Identity, SmallConv, WideResNet
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.types import Calibrated, PseudoLabels, Step
from vcc_infuse.utils.memory import keep_freed_memory

from .turns import Maker

NETWORKS = ("WRN-28-2", "SmallConv", "MLP", "head")
STEPS = 2**20  # steps are numbered from the middle of such a run, after every warm-up of a method


def random_images(size: int, classes: int, count: int) -> SSLData:
    """Noise in the shape of an image dataset, with eight labels per class."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return SSLData.from_arrays(x, _few_labels(count, classes), x[:classes], np.arange(classes))


def random_vectors(count: int, width: int, classes: int, slots: tuple[int, int] | None = None) -> SSLData:
    """Noise in the shape of feature vectors, or with `slots` of a bank that has as many weak and strong views."""
    shape = (count, width) if slots is None else (count, 1 + sum(slots), width)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32 if slots is None else np.float16)
    options: dict[str, Any] = {} if slots is None else {"slots": slots}
    return SSLData.from_arrays(x, _few_labels(count, classes), x[:classes], np.arange(classes), **options)


def _few_labels(count: int, classes: int) -> np.ndarray:
    return np.where(np.arange(count) < 8 * classes, np.arange(count) % classes, -1)


class Case(NamedTuple):
    """A network, its data, and the labeled rows per step; there are seven unlabeled rows per labeled one."""

    name: str
    data: Callable[[], SSLData]
    model: Callable[[], nn.Module]
    batch_size: int
    images: bool = True
    precision: str = "auto"

    @property
    def steps_per_turn(self) -> int:
        """Short steps are timed together: a calibrator does other things in every second, fourth or twentieth."""
        return 1 if self.images else 20


def cases(batch_size: int, size: int) -> list[Case]:
    """The networks of the tables, from the largest to none at all."""
    sizes = f"{batch_size}/{7 * batch_size} images of {size} px"
    return [
        Case(f"WRN-28-2, {sizes}", lambda: random_images(size, 10, 2000), lambda: WideResNet(28, 2), batch_size),
        Case(f"SmallConv, {sizes}", lambda: random_images(size, 10, 2000), SmallConv, batch_size),
        Case("MLP on 256 features, 32/224 rows", lambda: random_vectors(5000, 256, 10), MLP, 32, False),
        Case("head 1280 → 10 on a bank, 32/224 rows", lambda: random_vectors(5000, 1280, 10, (2, 4)), Identity, 32,
             False),
    ]  # fmt: skip


class Covered(FlexMatch):
    """FlexMatch whose pseudo labels count for a fixed share of every batch, drawn at random."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.share = share

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """The labels of FlexMatch, with other weights."""
        targets = super().pseudo_label(calibrated, step).targets
        rows = len(targets)
        return PseudoLabels(targets, (torch.randperm(rows) < round(self.share * rows)).float())


def our_step(
    case: Case, data: SSLData, share: float = 1.0, calibrator: Calibrator | None = None, malloc: bool = True,
    **options: Any,
) -> Maker:  # fmt: skip
    """Makes a turn of our own training; `malloc` says whether freed memory is kept, as the command line does."""

    def make() -> Callable[[int], None]:
        if malloc:
            keep_freed_memory()
        common: dict[str, Any] = dict(steps=STEPS, batch_size=case.batch_size, device="cpu", progress=False)
        common |= {"precision": case.precision}
        common |= {} if case.images else {"optimizer": "adamw", "lr": 0.01}  # as of the preset `frozen`
        trainer = Trainer(case.model(), Covered(share), calibrator, **{**common, **options})
        trainer.prepare(data)

        def turn(number: int) -> None:
            for step in range(case.steps_per_turn):
                trainer.train_step(STEPS // 2 + case.steps_per_turn * number + step)

        return turn

    return make
