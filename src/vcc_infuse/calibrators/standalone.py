"""A calibrator in a training loop of the user's own.

Inside the library a calibrator receives a `Step` from the Trainer. `StandaloneCalibrator` builds that step from the
tensors of another loop, averages the model, counts the updates and checks what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..models import Classifier
from ..models.classifier import EMA
from ..types import Batch, Calibrated, Outputs, Step, Task, WeakOutputs

if TYPE_CHECKING:
    from .base import Calibrator

ModelOutputs = Tensor | tuple[Tensor, Tensor]
"""Logits (batch, classes), or logits and features (batch, width); `Outputs` is such a pair."""


class StandaloneCalibrator(nn.Module):
    """A calibrator with the state that the Trainer would keep for it: an averaged model and the number of updates.

    `state_dict()` is complete, so that a loop resumes where it stopped. For training in several processes use the
    Trainer.
    """

    def __init__(
        self, calibrator: Calibrator, model: nn.Module, task: Task, *, ema: nn.Module | None, ema_decay: float
    ) -> None:
        super().__init__()
        classifier = with_features(model, task.classes)
        # Lists hide the user's modules: they are no part of this one's state.
        self._classifier = [classifier]
        self._users_ema = [] if ema is None else [with_features(ema, task.classes)]
        self._own_ema = EMA(classifier, ema_decay) if ema is None else None
        self.task = task
        self.updates = 0
        self.averaged = 0
        self.last: Calibrated | None = None
        """The full answer of the last update: class probabilities, and weights if there are any."""
        calibrator.setup(classifier, task)
        self.calibrator = calibrator.to(next(model.parameters()).device)

    def update(
        self,
        images: Tensor,
        outputs: ModelOutputs | None,
        pool_ids: Tensor,
        *,
        labeled: tuple[Tensor, Tensor, Tensor] | None = None,
        held_out: tuple[Tensor, Tensor] | None = None,
        views: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Learn from a batch. Call it once per step, before the optimizer's.

        Args:
            images: (batch, …), the weak views of unlabeled images.
            outputs: the model's outputs for them; None computes them here as at inference, as the Trainer does.
            pool_ids: (batch,), the row of each image within the unlabeled pool, 0 to pool_size − 1.
            labeled: labeled images, their labels and their rows within the labeled set, if the calibrator needs them.
            held_out: images and labels kept out of training, if the calibrator needs them.
            views: further views, if the calibrator needs them: "strong" of `images`, "labeled_strong" of `labeled`.

        Returns:
            The confidence (batch,) in the predicted class, without gradient, and a scalar to add to the loss, or None
            if there is nothing to learn. In eval mode no memory changes and there is no loss.
        """
        x, y, ids = labeled or (images[:0], pool_ids[:0], pool_ids[:0])
        every_view = {"weak": images, **(views or {}), **({"held_out": held_out[0]} if held_out else {})}
        weights = torch.ones(len(images), device=images.device)
        batch = Batch(x, y, ids, every_view, pool_ids, weights, held_out[1] if held_out else None)
        self._check(batch)
        self.update_ema()
        step = Step(batch, self._classifier[0], self.ema, self.calibrator, self.updates, self.task.steps)
        with preserved_modes(step.model):
            self.last = step.confidence(images, self._weak_outputs(step, outputs))
        self.updates += self.training
        loss = self.last.loss
        self.last = self.last._replace(loss=None, outputs=None)
        return self.last.confidence.detach(), loss

    @torch.no_grad()
    def predict(self, outputs: ModelOutputs) -> Tensor:
        """Confidence (batch,) in the predicted class at inference, given outputs of the model or of `ema`."""
        return self.calibrator.predict(self._as_outputs(outputs).detach())

    @property
    def ema(self) -> nn.Module:
        """The averaged model, which is usually the better classifier; it returns `Outputs`."""
        return self._users_ema[0].eval() if self._own_ema is None else self._own_ema.module

    def update_ema(self) -> None:
        """Add the weights after the last optimizer step to the average; `update` does so before anything else."""
        if self._own_ema is not None and self.averaged < self.updates:
            self._own_ema.update(self._classifier[0], self.updates - 1)
            self.averaged = self.updates

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """What the optimizer trains: the parameters of the calibrator, not those of the averaged model."""
        return self.calibrator.parameters(recurse)

    def get_extra_state(self) -> dict[str, int]:
        """The counters, for `state_dict`."""
        return {"updates": self.updates, "averaged": self.averaged}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """The counters, from `load_state_dict`."""
        self.updates = state["updates"]
        self.averaged = state["averaged"]

    def _weak_outputs(self, step: Step, given: ModelOutputs | None) -> WeakOutputs:
        images = step.batch.views["weak"]
        if given is None:
            return step.forward_weak(images)
        outputs = self._as_outputs(given)
        if len(outputs.logits) != len(images):
            raise UserError(f"outputs has {len(outputs.logits)} rows for {len(images)} images; pass those of one batch")
        attached = outputs if outputs.logits.requires_grad else None
        return WeakOutputs(*outputs.detach(), with_gradient=attached, at_inference=not step.model.training)

    def _as_outputs(self, given: ModelOutputs) -> Outputs:
        if isinstance(given, Tensor):
            wrapped = [model for model in (self._classifier[0], self.ema) if isinstance(model, WithFeatures)]
            recorded = [model.recorder.last for model in wrapped if model.recorder.last is not None]
            features = next((last.features for last in recorded if torch.equal(last.logits, given)), None)
            if features is None:
                raise UserError(
                    "outputs are logits without features, and not those of the model's last forward pass; call this "
                    "right after model(images), or pass (logits, features)"
                )
            outputs = Outputs(given, features)
        elif isinstance(given, tuple) and len(given) == 2:
            outputs = Outputs(*given)
        else:
            raise UserError(f"outputs must be logits or (logits, features), got {type(given).__name__}")
        head: Any = self._classifier[0].head
        check_finite("logits", outputs.logits, self.task.classes)
        check_finite("features", outputs.features, head.in_features)
        return outputs

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that lacks what the calibrator learns from, or whose numbers are out of range."""
        check_numbers("pool_ids", batch.pool_ids, len(batch.views["weak"]), self.task.pool, "pool_size")
        check_numbers("labels", batch.y, len(batch.x), self.task.classes, "classes")
        if self.task.labeled:
            check_numbers("ids of labeled images", batch.ids, len(batch.x), self.task.labeled, "the length of y")
        if not self.training:
            return
        name = type(self.calibrator).__name__
        needed = [*(f"labeled_{view}" for view in self.calibrator.labeled_views), *self.calibrator.unlabeled_views]
        if (needed or self.calibrator.learns_from_labeled) and not len(batch.x):
            raise UserError(f"{name} learns from labeled images; pass labeled=(x, y, ids)")
        if self.calibrator.held_out and "held_out" not in batch.views:
            raise UserError(f"{name} learns from images kept out of training; pass held_out=(x, y)")
        for view in needed:
            if view not in batch.views:
                raise UserError(f'{name} learns from {view} views; pass views={{"{view}": images}}')


def check_numbers(name: str, numbers: Tensor, rows: int, limit: int, option: str) -> None:
    """Refuse anything but one integer from 0 to `limit` − 1 per row."""
    if numbers.dtype != torch.long or numbers.shape != (rows,):
        kind = str(numbers.dtype).removeprefix("torch.")
        raise UserError(f"{name} must be a long tensor ({rows},), got {kind} {tuple(numbers.shape)}")
    if rows and not (numbers.min() >= 0 and numbers.max() < limit):
        low, high = numbers.aminmax()
        raise UserError(f"{name} must lie in 0…{limit - 1}, got {low}…{high}; count from 0, or raise {option}")


def check_finite(name: str, values: Tensor, columns: int) -> None:
    """Refuse outputs of another shape, and numbers that are not finite."""
    if values.ndim != 2 or values.shape[1] != columns:
        raise UserError(f"{name} must be (batch, {columns}), got {tuple(values.shape)}")
    if not values.isfinite().all():
        raise UserError(f"{name} has NaN or infinite values; lower the learning rate")


class FeatureRecorder:
    """A forward hook that keeps the features that entered a layer and the logits that left it."""

    last: Outputs | None = None

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        """The signature of a forward hook."""
        self.last = Outputs(logits, inputs[0])

    def __getstate__(self) -> dict[str, Any]:
        return {}  # tensors of a graph can be neither copied nor pickled, but the model may be


class WithFeatures(nn.Module):
    """Any classifier as one that returns `Outputs` and has a `head`: its last linear layer with `classes` outputs."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        layers = dict(model.named_modules())
        heads = [n for n, layer in layers.items() if isinstance(layer, nn.Linear) and layer.out_features == classes]
        if not heads:
            name = type(model).__name__
            raise UserError(f"{name} has no nn.Linear with {classes} outputs whose inputs are features; check classes")
        self.model = model
        self.head_name = heads[-1]
        self.recorder = FeatureRecorder()
        self.head.register_forward_hook(self.recorder)

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        layer = self.model.get_submodule(self.head_name)
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, images: Tensor) -> Outputs:
        """The logits, and the features that the model returns or that entered its last layer."""
        result = self.model(images)
        if isinstance(result, tuple):
            return Outputs(*result)
        assert self.recorder.last is not None
        return Outputs(result, self.recorder.last.features)


def with_features(model: nn.Module, classes: int) -> nn.Module:
    """The model as it is if it is a `Classifier`; wrapped otherwise."""
    return model if isinstance(model, Classifier) else WithFeatures(model, classes)


@contextmanager
def preserved_modes(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every module, which a forward pass as at inference changes."""
    modes = [(module, module.training) for module in model.modules()]
    if isinstance(model, WithFeatures):
        model.training = model.model.training
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
