"""A calibrator estimates how much a pseudo label can be trusted. `Softmax`, the default, trusts the classifier."""

import warnings
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError, check_integer
from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from ..utils.params import HasOptions
from .standalone import StandaloneCalibrator, check_numbers


class Calibrator(HasOptions, nn.Module):
    """Turns outputs into confidence. `__init__` takes hyperparameters only; state is buffers and submodules."""

    labeled_views: tuple[str, ...] = ()
    """Extra views of the labeled images: "strong" arrives as `step.batch.views["labeled_strong"]`."""

    unlabeled_views: tuple[str, ...] = ()
    """Views of the unlabeled images that it requires; an algorithm that does not provide them is rejected."""

    learns_from_labeled: ClassVar[bool] = False
    """Whether it needs the labeled images of every batch."""

    follows_schedule: bool = False
    """Whether the number of steps of the run matters to it."""

    @property
    def held_out(self) -> float:
        """The fraction of the labeled images to keep out of training.

        Their weak views arrive as `step.batch.views["held_out"]`, their labels as `step.batch.held_out_y`.
        """
        return 0.0

    @property
    def promise(self) -> dict[str, float]:
        """The share of wrong labels that it promises not to exceed, by the name of the option; empty if none."""
        return {}

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        *,
        classes: int,
        pool_size: int,
        y: Tensor | None = None,
        steps: int | None = None,
        batch_size: int = 64,
        ema: nn.Module | None = None,
        ema_decay: float = 0.999,
        **options: Any,
    ) -> StandaloneCalibrator:
        """This calibrator for a training loop of your own; then call `update` in every step.

        Args:
            model: a `Classifier`, or any module that returns logits, or logits and features. Features that are not
                returned are the inputs of its last nn.Linear with `classes` outputs.
            classes: number of classes.
            pool_size: number of unlabeled examples.
            y: (labeled,), the labels of the labeled set, for a calibrator that learns from them.
            steps: updates in the whole run, for a calibrator that follows a schedule.
            batch_size: approximate number of unlabeled examples per update, which defines a pass through the pool.
            ema: your own averaged model, which you update; by default the calibrator keeps one.
            ema_decay: of the average that it keeps.
            options: the options of the calibrator.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> calibrator = Softmax.for_model(model, classes=3, pool_size=100)
            >>> images = torch.randn(5, 4)
            >>> confidence, loss = calibrator.update(images, model(images), torch.arange(5))
            >>> confidence.shape, loss
            (torch.Size([5]), None)
        """
        calibrator = cls(**options)
        if steps is None and calibrator.follows_schedule:
            raise UserError(f"{cls.__name__} follows a schedule; pass steps, the number of updates in the whole run")
        if y is None and cls.learns_from_labeled:
            raise UserError(f"{cls.__name__} learns from labeled images; pass y, the labels of all of them")
        labels = torch.zeros(0, dtype=torch.long) if y is None else y.cpu()
        check_numbers("y", labels, len(labels), check_integer("classes", classes, 2), "classes")
        counts = torch.bincount(labels, minlength=classes)
        check_integer("pool_size", pool_size)
        check_integer("batch_size", batch_size)
        task = Task(classes, len(labels), pool_size, counts, steps or 1, batch_size, batch_size)
        return StandaloneCalibrator(calibrator, model, task, ema=ema, ema_decay=ema_decay)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build memories and networks once the sizes are known."""

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Confidence during training; memories may change only while `self.training`."""
        raise NotImplementedError

    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference; deterministic."""
        raise NotImplementedError


class Softmax(Calibrator):
    """The classifier's own probability, used when no calibrator is given."""

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Softmax probabilities and their maximum."""
        probs = outputs.logits.detach().float().softmax(1)
        return Calibrated(probs, probs.amax(1))

    def predict(self, outputs: Outputs) -> Tensor:
        """The largest softmax probability."""
        return to_float64(outputs.logits.float()).softmax(1).amax(1)


def set_top_confidence(probs: Tensor, confidence: Tensor) -> Tensor:
    """Set the largest probability of each row to `confidence` and scale the others to fill the rest.

    The label stays the largest entry: a confidence too low for that is raised to just above the runner-up.

    Args:
        probs: (batch, classes)
        confidence: (batch,)

    Returns:
        (batch, classes), rows sum to one.

    Example:
        >>> set_top_confidence(torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([0.8]))
        tensor([[0.8000, 0.1500, 0.0500]])
    """
    labels = probs.argmax(1, keepdim=True)
    others = probs.scatter(1, labels, 0)
    total = others.sum(1, keepdim=True)
    even = torch.full_like(probs, 1 / (probs.shape[1] - 1)).scatter(1, labels, 0)
    shares = torch.where(total > 1e-7, others / total.clamp_min(1e-7), even)
    second = shares.amax(1, keepdim=True)
    least = second / (1 + second) * (1 + 1e-5)
    confidence = torch.maximum(confidence[:, None], least).clamp(max=1)
    return (shares * (1 - confidence)).scatter(1, labels, confidence)


class LabeledExamples(NamedTuple):
    """Images, and labels that the network may get wrong.

    Measured against its own argmax a network is always right, and every calibrator then asks for full confidence. Three
    sources can contradict it: labeled images held out from training ("held_out"), strongly augmented labeled images
    ("labeled_strong"), and the weak view's pseudo label for the strong view ("weak_strong").
    """

    images: Tensor
    labels: Tensor


def collect_examples(sources: tuple[str, ...], step: Step, outputs: WeakOutputs) -> LabeledExamples | None:
    """The examples of all `sources`, given outputs of the weak view; None, with a warning, if there are none."""
    batch = step.batch
    parts = []
    for source in sources:
        view = "strong" if source == "weak_strong" else source
        labels = {"held_out": batch.held_out_y, "labeled_strong": batch.y}.get(source)
        if view not in batch.views:
            continue
        if source == "weak_strong":
            rows = slice(len(batch.y))  # at most as many as the labeled batch has
            parts.append(LabeledExamples(batch.rows(view, rows), outputs.logits[rows].argmax(1)))
        elif labels is not None:
            parts.append(LabeledExamples(batch.views[view], labels))
    if not parts:
        warnings.warn(f"labels={'+'.join(sources)}: the batch has none, so nothing is calibrated", stacklevel=2)
        return None
    return LabeledExamples(*(torch.cat(column) for column in zip(*parts, strict=True)))
