"""Whole runs with a core set against the full run: every run is made, none is extrapolated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vcc_infuse.algorithms import FlexMatch
from vcc_infuse.calibrators import VCC, Calibrator
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import SSLData, load
from vcc_infuse.models import Identity, SmallConv, WideResNet
from vcc_infuse.selectors import INFUSE, Selector
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.memory import keep_freed_memory

from .page import Part
from .reference import reference_step
from .turns import Maker, Work, take_turns
from .workloads import Case, random_vectors

KEEP = 0.4
BATCH = 16


def measure_selection(rounds: int) -> Part:
    """FlexMatch on digits and on a bank, in full and on core sets of 40 %, and as the reference trains it."""
    part = Part("selection", "What core sets of 40 % save")
    for steps, case in (
        (400, Case("SmallConv, digits of 8 px", digits, SmallConv, BATCH)),
        (200, Case("WRN-10-1, digits of 32 px", lambda: digits(enlarge=4), lambda: WideResNet(10, 1), BATCH)),
        (600, Case("head on a bank of 5,000 rows", lambda: random_vectors(5000, 1280, 10, (2, 4)), Identity, BATCH)),
    ):
        title = f"{case.name}: runs of {steps} steps of 16/112 images, 40 % of them with INFUSE; evaluation included"
        part.comparisons.append(take_turns(title, variants(case, steps), rounds, warmup=0, per="run"))
    part.notes.append("`reference` is the step of steps.md, as often as a full run, without any evaluation.")
    return part


def digits(enlarge: int = 1) -> SSLData:
    """Digits with 40 labels; enlarged, they are in color, because the reference makes views of RGB images only."""
    dataset = load("digits")
    if enlarge > 1 and dataset.test is not None:
        pixel = np.ones((1, enlarge, enlarge, 3), np.uint8)
        train, test = (replace(part, x=np.kron(part.x, pixel)) for part in (dataset.train, dataset.test))
        dataset = replace(dataset, train=train, test=test, mean=dataset.mean * 3, std=dataset.std * 3)
    return SSLData(dataset, balanced(dataset.train.y, 40, dataset.classes, 0))


def variants(case: Case, steps: int) -> dict[str, Maker]:
    """FlexMatch in full, with a core set, with VCC as well; and the reference's run where the images have colors."""
    data = case.data()
    ours = {
        "FlexMatch": whole_run(case, data, steps),
        "INFUSE-FlexMatch": whole_run(case, data, steps, None, INFUSE(keep=KEEP)),
        "VCC-INFUSE-FlexMatch": whole_run(case, data, steps, VCC(), INFUSE(keep=KEEP)),
        "VCC-INFUSE-FlexMatch, target_fraction=0.25": whole_run(
            case, data, steps, VCC(target_fraction=0.25), INFUSE(keep=KEEP)
        ),
        "VCC-INFUSE-FlexMatch, lazy": whole_run(case, data, steps, VCC(), INFUSE(keep=KEEP), lazy=True),
    }
    reference = {"reference": reference_run(case, data, steps)} if data.dataset.shape[2:] == (3,) else {}
    return {**reference, **ours}


def whole_run(
    case: Case, data: SSLData, steps: int, calibrator: Calibrator | None = None, selector: Selector | None = None,
    **options: Any,
) -> Maker:  # fmt: skip
    """Makes a run; another seed in every round."""

    def make() -> Work:
        keep_freed_memory()
        common: dict[str, Any] = dict(steps=steps, eval_every=steps, batch_size=BATCH, device="cpu", progress=False)
        return lambda number: train(number, {**common, **options})

    def train(seed: int, options: dict[str, Any]) -> None:
        Trainer(case.model(), FlexMatch(), calibrator, selector, seed=seed, **options).fit(data)

    return make


def reference_run(case: Case, data: SSLData, steps: int) -> Maker:
    """Makes as many reference steps."""

    def make() -> Work:
        step = reference_step(case, data)()

        def work(number: int) -> None:
            for done in range(steps):
                step(number * steps + done)

        return work

    return make
