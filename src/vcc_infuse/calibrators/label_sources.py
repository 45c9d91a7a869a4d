"""Whose labels a calibrator learns from. Never the network's own word on the same view.

Judged by its own argmax a network is always right, and every calibrator then asks for full confidence. Labels that can
contradict it are those of images held out from training ("held_out"), those of labeled images it has to recognize
strongly augmented ("labeled_strong"), and the weak view's pseudo label for the strong view ("weak_strong").
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..types import Outputs, Step


class Evidence(NamedTuple):
    """Images, and labels the network may fail on."""

    images: Tensor
    labels: Tensor


def find(source: str, step: Step, outputs: Outputs) -> Evidence | None:
    """The step's images with labels from `source`, no more than labeled ones in the batch; None where it has none.

    `outputs` are those of the weak view.
    """
    batch, name = step.batch, "strong" if source == "weak_strong" else source
    if name not in batch.views:
        return None
    if source == "weak_strong":
        return Evidence(batch.views[name][: len(batch.y)], outputs.logits[: len(batch.y)].argmax(1))
    labels = batch.held_out_y if source == "held_out" else batch.y
    return None if labels is None else Evidence(batch.views[name], labels)


def collect(sources: tuple[str, ...], step: Step, outputs: Outputs) -> Evidence | None:
    """The evidence of all sources together; None, with a warning, where the step has none of them."""
    found = [evidence for source in sources if (evidence := find(source, step, outputs)) is not None]
    if not found:
        warnings.warn(f"labels={'+'.join(sources)}: the batch brings none, so nothing is calibrated", stacklevel=2)
        return None
    return Evidence(*(torch.cat(column) for column in zip(*found, strict=True)))


def chosen(value: str, choices: tuple[str, ...]) -> str:
    """`value` if it is a source of labels among `choices`."""
    if value not in choices:
        raise UserError(f"labels={value!r} is not known; choose from {', '.join(choices)}")
    return value
