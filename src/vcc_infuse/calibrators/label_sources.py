"""Where a calibrator's labels come from. Never from the network's own prediction for the same view.

Measured against its own argmax a network is always right, and every calibrator then asks for full confidence. Three
sources can contradict the network: labeled images held out from training ("held_out"), strongly augmented labeled
images ("labeled_strong"), and the weak view's pseudo label for the strong view ("weak_strong").
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Step, WeakOutputs

SOURCES = ("held_out", "labeled_strong", "weak_strong")


class LabeledExamples(NamedTuple):
    """Images, and labels that the network may get wrong."""

    images: Tensor
    labels: Tensor


def collect_examples(sources: tuple[str, ...], step: Step, outputs: WeakOutputs) -> LabeledExamples | None:
    """The examples of all `sources` together; None, with a warning, if the step has none.

    `outputs` are those of the weak view.
    """
    parts = [examples for source in sources if (examples := _from_source(source, step, outputs)) is not None]
    if not parts:
        warnings.warn(f"labels={'+'.join(sources)}: the batch has none, so nothing is calibrated", stacklevel=2)
        return None
    return LabeledExamples(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _from_source(source: str, step: Step, outputs: WeakOutputs) -> LabeledExamples | None:
    """The examples of one source, at most as many as the labeled batch has; None if the step has none."""
    batch = step.batch
    name = "strong" if source == "weak_strong" else source
    if name not in batch.views:
        return None
    if source == "weak_strong":
        return LabeledExamples(batch.rows(name, slice(len(batch.y))), outputs.logits[: len(batch.y)].argmax(1))
    labels = batch.held_out_y if source == "held_out" else batch.y
    return None if labels is None else LabeledExamples(batch.views[name], labels)
