"""Training steps: ours against the reference step, with lazy strong views, and with calibrators."""

from __future__ import annotations

from collections.abc import Sequence

from vcc_infuse.calibrators import VCC, Evidence, RobustVCC
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.errors import UserError

from .page import Part
from .plain_loop import plain_step
from .reference import reference_step
from .turns import Maker, take_turns
from .workloads import STEPS, Case, cases, our_step


def measure_steps(
    rounds: int,
    batch_size: int,
    size: int,
    network: str | None = None,
    precision: str = "auto",
    only: Sequence[str] = (),
) -> Part:
    """Every network of the tables, or the one named; where it has images, the reference step is the base.

    Of `only` some variants the first is the base.
    """
    part = Part("steps", "A training step of FlexMatch")
    for case in cases(batch_size, size):
        if not case.name.startswith(network or ""):
            continue
        case = case._replace(precision=precision)
        makers = variants(case, case.data())
        turns = rounds if case.images else 2 * rounds
        chosen = {name: maker for name, maker in makers.items() if name in (only or makers)}
        if not chosen:
            raise UserError(f"--variants {only[0]} is none of {case.name}; choose among {', '.join(makers)}")
        part.comparisons.append(take_turns(case.name, chosen, turns, count=case.steps_per_turn))
    part.notes.append(
        "`reference` is one forward in single precision with gradient for all images, PIL augmentation and NCHW. "
        "`plain loop` is the step of examples/fixmatch_vcc_one_file.py on the same network, without and with VCC, and "
        "torchvision's v2 transforms image by image. "
        "A lazy step computes the strong views of the given share of the batch. On vectors and banks a turn is 20 "
        "steps of AdamW. The data are noise: these times say "
        "nothing about accuracy (accuracy.md does). `glibc as it is` is ours with VCC_INFUSE_MALLOC=system."
    )
    return part


def seldom(case: Case, data: SSLData) -> dict[str, Maker]:
    """Calibrators that learn in few steps or never: what is left is the price of asking them."""
    return {
        "VCC, every=4": our_step(case, data, calibrator=VCC(every=4)),
        "VCC, never learns": our_step(case, data, calibrator=VCC(every=STEPS)),
        "Evidence, never learns": our_step(case, data, calibrator=Evidence(every=STEPS)),
    }


def others(case: Case, data: SSLData) -> dict[str, Maker]:
    """What ours is compared with: the step of toolboxes, and what people write themselves."""
    return {
        "reference": reference_step(case, data),
        "plain loop": plain_step(case, data),
        "plain loop, VCC": plain_step(case, data, vcc=True),
    }


def variants(case: Case, data: SSLData) -> dict[str, Maker]:
    """All ways to take a step on this data."""
    return {
        **(others(case, data) if case.images else {}),
        "ours": our_step(case, data),
        "ours, glibc as it is": our_step(case, data, malloc=False),
        "ours, lazy, 30 %": our_step(case, data, 0.3, lazy=True),
        "ours, lazy, 5 %": our_step(case, data, 0.05, lazy=True),
        "VCC": our_step(case, data, calibrator=VCC()),
        **({} if case.images else seldom(case, data)),
        "VCC, target_fraction=0.25": our_step(case, data, calibrator=VCC(target_fraction=0.25)),
        "RobustVCC": our_step(case, data, calibrator=RobustVCC()),
        "Evidence": our_step(case, data, calibrator=Evidence()),
        "VCC, lazy, 30 %": our_step(case, data, 0.3, VCC(), lazy=True),
    }
