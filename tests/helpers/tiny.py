"""A training step of toy size: a small network, random vectors, random batches."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from vcc_infuse.algorithms import Algorithm, PseudoLabeling
from vcc_infuse.calibrators import Calibrator, Softmax
from vcc_infuse.models import MLP, Classifier
from vcc_infuse.types import Batch, Calibrated, Losses, PseudoLabels, Step, Task, WeakOutputs

INPUTS, FEATURES = 6, 5


@dataclasses.dataclass
class RecordingStep(Step):
    """A step that remembers the outputs of its weak view, for tests that compare with them."""

    weak: WeakOutputs | None = None

    def confidence(self, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        self.weak = outputs
        return super().confidence(images, outputs)


def make_model(classes: int = 3) -> Classifier:
    return Classifier.build(MLP(hidden=(8, FEATURES)), (INPUTS,), classes)


def make_task(classes=3, batch=4, ratio=2, steps=100, pool=20, labeled=6) -> Task:
    counts = torch.bincount(torch.arange(labeled) % classes, minlength=classes)
    return Task(classes, labeled, pool, counts, steps, batch, batch * ratio)


def make_batch(task: Task, views=("weak", "strong")) -> Batch:
    ids = torch.randint(task.labeled, (task.batch_size,))
    pool_ids = torch.randperm(task.pool)[: task.unlabeled_batch_size]
    raw = torch.randn(len(pool_ids), INPUTS)
    augmented = {name: raw + 0.1 * torch.randn_like(raw) for name in views}
    x = torch.randn(task.batch_size, INPUTS)
    return Batch(x, ids % task.classes, ids, augmented, pool_ids, torch.ones(len(pool_ids)))


def make_step(
    algorithm: Algorithm,
    classes: int = 3,
    batch: int = 4,
    ratio: int = 2,
    number: int = 0,
    steps: int = 100,
    calibrator: Calibrator | None = None,
    seed: int = 0,
    pool: int = 20,
    labeled: int = 6,
) -> RecordingStep:
    """Set up `algorithm` (and `calibrator`) for a new tiny model; labeled image i has label i mod classes."""
    torch.manual_seed(seed)
    task = make_task(classes, batch, ratio, steps, pool, labeled)
    model, calibrator = make_model(classes), calibrator or Softmax()
    for part in (algorithm, calibrator):
        part.setup(model, task)
        part.train()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    data = make_batch(task, algorithm.views)
    return RecordingStep(data, model.train(), ema, calibrator, number, steps)


def pseudo_labels(
    algorithm: PseudoLabeling, step: RecordingStep, probs: Tensor, pool_ids: Tensor | None = None
) -> PseudoLabels:
    """Pseudo labels for given probabilities and random features."""
    ids = torch.arange(len(probs)) if pool_ids is None else pool_ids
    step.batch = step.batch._replace(pool_ids=ids, weights=torch.ones(len(probs)))
    if step.weak is None or len(step.weak.logits) != len(probs):
        step.weak = WeakOutputs(probs.log(), torch.randn(len(probs), FEATURES))
    return algorithm.pseudo_label(Calibrated(probs, probs.amax(1), outputs=step.weak), step)


def random_probs(rows: int, classes: int = 3, scale: float = 2.0) -> Tensor:
    return (scale * torch.randn(rows, classes)).softmax(1)


def run(algorithm: Algorithm, step: Step) -> Losses:
    """The losses of a step with a single optimizer update."""
    (losses,) = algorithm.losses(step)
    return losses


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Equal bit for bit; NaN equals NaN."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) or torch.allclose(one[name], other[name], rtol=0, atol=0, equal_nan=True)
        for name in one
    )


def missing_gradients(losses: Losses, *modules: nn.Module) -> list[str]:
    """Names of trainable parameters without a finite gradient."""
    losses.total().backward()
    parameters = [item for module in modules for item in module.named_parameters() if item[1].requires_grad]
    return [name for name, p in parameters if p.grad is None or not p.grad.isfinite().all()]


def two_processes(work: Callable[[int, Callable[[Tensor], Tensor]], Any]) -> list[Any]:
    """Run `work(rank, gather)` in two threads that gather tensors like two processes; return both results."""
    barrier, slots = threading.Barrier(2, timeout=20), [None, None]

    def gather_on(rank: int) -> Callable[[Tensor], Tensor]:
        def gather(tensor: Tensor) -> Tensor:
            slots[rank] = tensor.clone()
            barrier.wait()
            rows = torch.stack(slots, 1).flatten(0, 1)
            barrier.wait()
            return rows

        return gather

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda rank: work(rank, gather_on(rank)), range(2)))


def part_of(step: RecordingStep, rank: int, gather: Callable[[Tensor], Tensor]) -> RecordingStep:
    """The step of process `rank` of two: every other row."""
    batch = step.batch
    views = {name: view[rank::2] for name, view in batch.views.items()}
    rows = [column[rank::2] for column in (batch.x, batch.y, batch.ids)]
    mine = Batch(*rows, views, batch.pool_ids[rank::2], batch.weights[rank::2])
    weak = WeakOutputs(*(column[rank::2] for column in step.weak.outputs)) if step.weak else None
    return dataclasses.replace(step, batch=mine, gather=gather, weak=weak)
