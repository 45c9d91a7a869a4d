"""One training step: an algorithm's losses for a batch, and the parameters a little further down."""

from __future__ import annotations

from torch import Tensor

from .averaging import settle
from .parts import Parts
from .processes import average_step_
from .types import Step


def take_step(parts: Parts, step: Step, rate: float) -> None:
    """One batch: usually one optimiser step, or as many as the method yields losses."""
    settle(parts.momentum, step.number)
    for group in parts.optimiser.param_groups:
        group["lr"] = rate
    losses = parts.algorithm.losses(step)
    with parts.accelerator.autocast():
        terms = next(losses, None)
    while terms is not None:
        descend(parts, terms.total())
        parts.tally.add(terms, parts.truth[step.batch.pool_ids])
        with parts.accelerator.autocast():
            terms = next(losses, None)
    parts.ema.update(parts.model, step.number)
    parts.tally.steps += 1


def descend(parts: Parts, loss: Tensor) -> None:
    """One optimiser step, by the gradient that all processes share."""
    parts.optimiser.zero_grad(set_to_none=True)
    parts.accelerator.backward(loss)
    average_step_(parts.modules, parts.model)
    parts.optimiser.step()
