"""Whole runs with a core set against the full run: nothing is reckoned, every run is made."""

from __future__ import annotations

from typing import Any

from ..algorithms import FlexMatch
from ..calibrators import VCC, Calibrator
from ..data.loading import load
from ..data.split import balanced
from ..data.ssl_data import SSLData
from ..models import SmallConv
from ..selectors import INFUSE, Selector
from ..training.trainer import Trainer
from ..utils.allocator import keep_freed_memory
from .page import Part
from .turns import Maker, Work, take_turns

KEEP = 0.4


def measure_selection(rounds: int, steps: int = 150) -> Part:
    """FlexMatch on digits with 40 labels, in full and on core sets of 40 %."""
    dataset = load("digits")
    data = SSLData(dataset, balanced(dataset.train.y, 40, dataset.classes, 0))
    makers = {
        "FlexMatch": whole_run(data, steps),
        "INFUSE-FlexMatch": whole_run(data, steps, None, INFUSE(keep=KEEP)),
        "VCC-INFUSE-FlexMatch": whole_run(data, steps, VCC(), INFUSE(keep=KEEP)),
        "VCC-INFUSE-FlexMatch, lazy": whole_run(data, steps, VCC(), INFUSE(keep=KEEP), lazy=True),
    }
    title = f"Runs of {steps} steps (40 % of them with INFUSE) of 16/112 digits on SmallConv, evaluation included"
    part = Part("selection", "What core sets of 40 % save")
    part.comparisons.append(take_turns(title, makers, rounds, warmup=0, per="run"))
    return part


def whole_run(
    data: SSLData, steps: int, calibrator: Calibrator | None = None, selector: Selector | None = None, **options: Any
) -> Maker:
    """Makes a run; another seed in every round."""

    def make() -> Work:
        keep_freed_memory()
        common: dict[str, Any] = dict(steps=steps, eval_every=steps, batch_size=16, device="cpu", progress=False)
        return lambda number: train(number, {**common, **options})

    def train(seed: int, options: dict[str, Any]) -> None:
        Trainer(SmallConv(), FlexMatch(), calibrator, selector, seed=seed, **options).fit(data)

    return make
