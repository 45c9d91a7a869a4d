"""Pool: the unlabeled pool as the algorithm would learn from it now, and the gradients of its examples.

An example's gradient in a linear head is error ⊗ [feature; 1], so autograd is not needed. An error is weight · (softmax
− target). Features h are extended to h̃ = [h; 1], which makes the bias one more column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithms import Algorithm, PseudoLabeling
from ..augment.views import MakeRows
from ..calibrators import Calibrator
from ..data.batches import Batches
from ..types import Batch, LazyViews, Outputs, PseudoLabels, Step, Task, WeakOutputs, identity_gather
from ..utils.seeding import seed_chunk

POOL, LABELED, SAMPLE = 1, 2, 3  # keys of random streams


class PoolChunk(NamedTuple):
    """Some examples of the pool; of those numbered `rows`, the only ones with a gradient, the view that is learned."""

    ids: Tensor
    targets: Tensor
    labels: Tensor
    weights: Tensor
    confidence: Tensor
    rows: Tensor
    learned_images: Tensor
    learned: Outputs

    @property
    def images(self) -> Tensor:
        """The view with gradient, zero where the weight is zero."""
        return self.spread(self.learned_images)

    @property
    def outputs(self) -> Outputs:
        """The outputs for it, zero where the weight is zero."""
        return Outputs(*map(self.spread, self.learned))

    def spread(self, values: Tensor) -> Tensor:
        """Values of `rows`, with zeros for the other examples."""
        count = len(self.ids)
        if len(values) == count:
            return values
        return values.new_zeros(count, *values.shape[1:]).index_copy_(0, self.rows, values)

    @property
    def errors(self) -> Tensor:
        """Gradient of each example's loss in its logits, weight · (softmax − target), `(rows, classes)`."""
        return self.weights[:, None] * (self.outputs.logits.softmax(1) - self.targets)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The unlabeled pool and the labeled set at one step of a run.

    Every chunk has its own seed and is computed by a single process, so the result does not depend on the number of
    processes. `chunk` is the number of examples per forward pass; `trained` (`model` if None) says by its parameters
    which of them are trained.
    """

    batches: Batches
    model: nn.Module
    ema: nn.Module
    algorithm: Algorithm
    calibrator: Calibrator
    task: Task
    number: int = 0
    gather: Callable[[Tensor], Tensor] = identity_gather
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    chunk: int = 256
    trained: nn.Module | None = None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.batches.seed

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self.batches.device

    @property
    def size(self) -> int:
        """Number of examples in the pool."""
        return self.task.pool

    def rng(self, purpose: int) -> np.random.Generator:
        """A generator that depends on seed, step and purpose, not on process or device."""
        return np.random.default_rng([self.seed, self.number, purpose])

    def using(self, weights: str) -> Self:
        """The same pool, evaluated with the averaged weights if `weights` is "ema"."""
        return replace(self, model=self.ema, trained=self.model) if weights == "ema" else self

    def views(self, ids: np.ndarray, names: Sequence[str] = ()) -> LazyViews:
        """The weak view of pool ids, and others by name, which are made when they are read: the strong one by row."""
        raw = self.batches.rows(self.batches.data.split.pool[ids])
        make = self.batches.views

        def later(name: str) -> MakeRows:
            return make.strong_later(raw) if name == "strong" else lambda rows: make(name, raw)[rows]

        weak = make("weak", raw)  # first, because the views draw from one random stream
        return LazyViews({"weak": weak}, {name: later(name) for name in names if name != "weak"})

    def frozen(self) -> set[str]:
        """Names of the parameters that are not trained; none if no parameter is, as in averaged weights."""
        parameters = dict((self.trained or self.model).named_parameters())
        fixed = {name for name, parameter in parameters.items() if not parameter.requires_grad}
        return fixed if len(fixed) < len(parameters) else set()

    def scan(self, reduce: Callable[[PoolChunk], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """One pass over the pool: `reduce` maps a chunk to named columns with one row per example.

        Returns the same columns with one row per pool id, on the CPU.
        """
        pieces = self._pieces(self.rng(POOL).permutation(self.size))
        columns: dict[str, Tensor] = {}
        rank = self.batches.rank
        for number in range(rank, max(len(pieces), rank + 1), self.batches.world):
            # A process without a chunk still has to know the columns: it repeats the last chunk and zeroes its rows.
            idle = number >= len(pieces)
            chunk = self._evaluate(pieces[-1 if idle else number], POOL, number)
            for name, rows in reduce(chunk).items():
                whole = columns.setdefault(name, torch.zeros(self.size, *rows.shape[1:], dtype=rows.dtype))
                whole[chunk.ids.cpu()] = torch.zeros_like(rows, device="cpu") if idle else rows.detach().cpu()
        if self.batches.world == 1:
            return columns
        # Each process filled its own rows and left zeros elsewhere, so the sum is exact.
        everyone = {name: self.gather(whole[None].to(self.device)).cpu().sum(0) for name, whole in columns.items()}
        return {name: total.to(columns[name].dtype) for name, total in everyone.items()}

    def sample(self, count: int) -> Iterator[PoolChunk]:
        """Random examples from the pool, the same in every process."""
        ids = self.rng(SAMPLE).permutation(self.size)[:count]
        for number, piece in enumerate(self._pieces(ids)):
            yield self._evaluate(piece, SAMPLE, number)

    @torch.no_grad()
    def sample_weak(self, count: int) -> Outputs:
        """The model's outputs for weak views of random examples, in float32, the same in every process."""
        ids = self.rng(SAMPLE).permutation(self.size)[:count]
        outputs: list[Outputs] = []
        for number, piece in enumerate(self._pieces(ids)):
            seed_chunk(self.seed, self.number, SAMPLE, number)
            with self.autocast():
                outputs.append(self.model(self.views(piece)["weak"]))
        return _join(outputs)

    def labeled_chunks(self, views: int = 1, largest: int | None = None) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        """Rows, weak views and labels of the labeled set, in `views` views each; the same in a second call.

        Of more than `largest` views it takes a random part, of which the rows are the numbers.
        """
        data = self.batches.data
        count = views * self.task.labeled
        chosen = np.arange(count)
        if largest is not None and largest < count:
            chosen = np.sort(self.rng(LABELED).choice(count, largest, replace=False))
        for number, rows in enumerate(self._pieces(np.arange(len(chosen)))):
            seed_chunk(self.seed, self.number, LABELED, number)
            ids = chosen[rows] % self.task.labeled
            y = torch.from_numpy(data.labeled_y[ids]).to(self.device)
            yield rows, self.batches.views("weak", self.batches.rows(data.split.labeled[ids])), y

    @torch.no_grad()
    def labeled_features(self, views: int = 1, largest: int | None = None) -> tuple[Outputs, Tensor]:
        """The model's outputs for the rows of `labeled_chunks`, in float32, and the labels."""
        outputs: list[Outputs] = []
        labels = []
        for _, x, y in self.labeled_chunks(views, largest):
            with self.autocast():
                outputs.append(self.model(x))
            labels.append(y)
        return _join(outputs), torch.cat(labels)

    def _pieces(self, ids: np.ndarray) -> list[np.ndarray]:
        return [ids[start : start + self.chunk] for start in range(0, len(ids), self.chunk)]

    def _evaluate(self, ids: np.ndarray, purpose: int, number: int) -> PoolChunk:
        """Pseudo-label some examples as a training step would."""
        seed_chunk(self.seed, self.number, purpose, number)
        views = self.views(ids, self.algorithm.views)
        no_labels = torch.empty(0, dtype=torch.long, device=self.device)
        batch = Batch(
            x=views["weak"][:0],
            y=no_labels,
            ids=no_labels,
            views=views,
            pool_ids=torch.from_numpy(ids).to(self.device),
            weights=torch.ones(len(ids), device=self.device),
        )
        step = Step(batch, self.model, self.ema, self.calibrator, self.number, self.task.steps)
        with self.autocast():
            return evaluate_chunk(step, self.algorithm)


@torch.no_grad()
def evaluate_chunk(step: Step, algorithm: Algorithm) -> PoolChunk:
    """Pseudo-label the step's unlabeled examples; calibrator and algorithm must be in eval mode.

    A method without pseudo labels gets the most likely class of every example. The view that is trained on is the
    strong one, or the last one that the method uses.
    """
    views = step.batch.views
    weak: Outputs = step.model(views["weak"])
    calibrated = step.confidence(views["weak"], WeakOutputs(*weak))
    if isinstance(algorithm, PseudoLabeling):
        pseudo = algorithm.pseudo_label(calibrated, step)
    else:
        pseudo = PseudoLabels(calibrated.labels, torch.ones_like(calibrated.confidence))
    view = "strong" if "strong" in algorithm.views else algorithm.views[-1]
    rows = torch.arange(len(calibrated.labels), device=calibrated.labels.device)
    images = views["weak"]
    outputs = weak
    if view != "weak":
        # An example without weight has no gradient to compute, and its view is not made.
        rows = (pseudo.weights > 0).nonzero()[:, 0]
        images = step.batch.rows(view, rows) if len(rows) else images[:0]
        outputs = step.model(images) if len(rows) else Outputs(*(part[:0] for part in weak))
    targets = pseudo.targets if pseudo.targets.ndim == 2 else F.one_hot(pseudo.targets, weak.logits.shape[1])
    return PoolChunk(
        ids=step.batch.pool_ids,
        targets=targets.float(),
        labels=pseudo.labels,
        weights=(pseudo.weights * calibrated.sample_weights(step.batch)).float(),
        confidence=calibrated.confidence.float(),
        rows=rows,
        learned_images=images,
        learned=Outputs(*(part.float() for part in outputs)),
    )


def _join(outputs: list[Outputs]) -> Outputs:
    return Outputs(*(torch.cat(part).float() for part in zip(*outputs, strict=True)))


def augmented(features: Tensor) -> Tensor:
    """[h; 1] for each row: `(rows, width)` becomes `(rows, width + 1)`."""
    return F.pad(features, (0, 1), value=1.0)


def mean_gradient(errors: Tensor, features: Tensor) -> Tensor:
    """The head's gradient of the mean loss, `(classes, width + 1)`, from `(rows, classes)` and `(rows, width)`."""
    return torch.cat([errors.T @ features, errors.sum(0)[:, None]], 1) / len(errors)


def alignment(direction: Tensor, errors: Tensor, features: Tensor) -> Tensor:
    """Inner product of each example's gradient with `direction`, `(rows,)`."""
    return (errors * F.linear(features, direction[:, :-1], direction[:, -1])).sum(1)


class ExampleGradients(NamedTuple):
    """One gradient per example, stored as its two factors: C + D numbers instead of C·D."""

    errors: Tensor
    features: Tensor

    def against(self, direction: Tensor) -> Tensor:
        """Inner product of each example's gradient with a direction."""
        return alignment(direction, self.errors, self.features)

    def total(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Weighted sum of some examples' gradients."""
        return (self.errors[rows] * factors[:, None]).T @ augmented(self.features[rows])

    def gram(self) -> Tensor:
        """All inner products: (dᵢ·dⱼ)(hᵢ·hⱼ + 1)."""
        return (self.errors @ self.errors.T) * (self.features @ self.features.T + 1)


class GroupGradients:
    """The mean gradient of each group of examples; examples without weight do not count in the mean."""

    def __init__(self, errors: Tensor, features: Tensor, weights: Tensor, groups: list[Tensor]) -> None:
        self.counts = torch.stack([weights[group].sum() for group in groups])
        sums = [errors[group].T @ augmented(features[group]) for group in groups]
        self.means = torch.stack(sums) / self.counts.clamp(min=1e-12)[:, None, None]

    def against(self, direction: Tensor) -> Tensor:
        """Inner product of each group's gradient with a direction."""
        return self.means.flatten(1) @ direction.flatten()

    def total(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Weighted sum of some groups' gradients."""
        return torch.einsum("g,gcd->cd", factors, self.means[rows])

    def gram(self) -> Tensor:
        """All inner products."""
        flat = self.means.flatten(1)
        return flat @ flat.T
