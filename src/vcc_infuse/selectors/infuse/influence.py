"""Influence of unlabeled examples on the loss of a support set: pure functions of features, logits and labels.

The influence of an example u is dL(V)/dε = −∇L(V)ᵀ H⁻¹ ∇L_U(u), where V is the support set and ε the weight that u
gains in training (VCC-INFUSE, IJCAI 2024). The functions at the end measure the same through all parameters of a
network.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...types import Outputs
from ..pool import Pool, PoolChunk, alignment, augmented, mean_gradient

Head = tuple[Tensor, Tensor | None]
"""Weight `(classes, width)` and bias `(classes,)` of a linear head."""


def influence(
    features: Tensor, logits: Tensor, *, targets: Tensor, direction: Tensor, weights: Tensor | None = None
) -> Tensor:
    """How training on each example would change the support loss, to first order, through the linear head.

    Args:
        features: inputs of the head, `(batch, width)`.
        logits: outputs of the head for them, `(batch, classes)`.
        targets: pseudo labels: classes `(batch,)`, or distributions `(batch, classes)`.
        direction: gradient of the support loss, `(classes, width + 1)`; see `support_direction`.
        weights: how much each example counts in the unlabeled loss, `(batch,)`; all the same if None.

    Returns:
        dL(V)/dε of each example, `(batch,)`: the support loss falls where it is negative.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0], [1.0]])
        >>> direction = torch.tensor([[-0.5, 0.0], [0.5, 0.0]])  # the support set wants a larger first logit
        >>> influence(features, torch.zeros(2, 2), targets=torch.tensor([0, 1]), direction=direction)
        tensor([-0.5000,  0.5000])
    """
    target = F.one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets
    errors = logits.softmax(1) - target
    return -alignment(direction, errors if weights is None else weights[:, None] * errors, features)


def support_direction(
    features: Tensor, labels: Tensor, *, head: Head, mixup_draws: int = 8, rng: np.random.Generator | None = None
) -> Tensor:
    """Gradient of the support loss in a linear head: the mean cross entropy on Mixup of labeled features.

    Args:
        features: inputs of the head for labeled examples, `(labeled, width)`.
        labels: their classes, `(labeled,)`.
        head: weight `(classes, width)` and bias `(classes,)` or None.
        mixup_draws: number of Mixup draws to average; 0 takes the examples as they are, as for a validation set.
        rng: draws partners and shares; seeded with 0 if None.

    Returns:
        The gradient, `(classes, width + 1)`; the last column belongs to the bias.

    Example:
        >>> import torch
        >>> head = torch.zeros(2, 1), None
        >>> support_direction(torch.tensor([[1.0]]), torch.tensor([0]), head=head, mixup_draws=0)
        tensor([[-0.5000, -0.5000],
                [ 0.5000,  0.5000]])
    """
    return mean_gradient(mixup_errors(features, labels, head=head, mixup_draws=mixup_draws, rng=rng), features)


def mixup_errors(
    features: Tensor,
    labels: Tensor,
    *,
    head: Head,
    mixup_draws: int,
    rng: np.random.Generator | None = None,
    population: int = 0,
) -> Tensor:
    """The gradient of the summed loss in each row's logits, `(labeled, classes)`, over draws.

    Mixup and head are both linear, so that logits are mixed instead of features, and errors are handed back to the
    rows that were mixed. The features, which are far wider, enter two products, however many draws there are. The rows
    may be a random part of a `population` of more rows.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    weight, bias = (None if part is None else part.detach().float() for part in head)
    assert weight is not None
    logits = F.linear(features, weight, bias)
    truth = F.one_hot(labels, len(weight)).float()
    draws = [FeatureMixup.draw(len(labels), rng, features.device, population) for _ in range(mixup_draws)]
    draws = draws or [FeatureMixup.none(len(labels), features.device)]
    errors = torch.zeros_like(logits)
    for mix in draws:
        errors += mix.backward(mix(logits).softmax(1) - mix(truth)) / len(draws)
    return errors


class FeatureMixup(NamedTuple):
    """Mixup over the whole labeled set: each row is mixed with a partner, which gets one minus the share of the row."""

    partner: Tensor
    share: Tensor

    @classmethod
    def draw(
        cls, count: int, rng: np.random.Generator, device: torch.device | str = "cpu", population: int = 0
    ) -> Self:
        """A random partner for each row, and λ ~ Beta(1, 1).

        A row is its own partner as often as in a whole `population`, of which the rows may be a random part: so the
        gradient of such parts is on average that of the population.
        """
        partner = rng.permutation(count)
        if count < population and rng.random() >= count / population:
            circle = partner.copy()
            partner[circle] = np.roll(circle, 1)  # each row with its neighbor in a random circle, never with itself
        share = torch.from_numpy(rng.random(count)).float()
        return cls(torch.from_numpy(partner).to(device), share.to(device)[:, None])

    @classmethod
    def none(cls, count: int, device: torch.device | str = "cpu") -> Self:
        """Rows as they are."""
        return cls(torch.arange(count, device=device), torch.ones(count, 1, device=device))

    def __call__(self, rows: Tensor) -> Tensor:
        """λ · row + (1 − λ) · partner, for features and for one-hot labels."""
        return torch.lerp(rows[self.partner], rows, self.share)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient in the original rows, given the gradient in the mixed rows."""
        return (self.share * gradient).index_add(0, self.partner, (1 - self.share) * gradient)


class GaussNewton:
    """The head's Gauss-Newton matrix S ⊗ A (K-FAC), summed over batches of probabilities, features and weights."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        self.count = 0.0
        self.inputs: Tensor | float = 0.0
        self.outputs: Tensor | float = 0.0
        for probs, features, weights in batches:
            p = probs.double()
            w = weights.double()
            rows = augmented(features).double()
            self.inputs = self.inputs + (rows * w[:, None]).T @ rows
            self.outputs = self.outputs + torch.diag(w @ p) - (p * w[:, None]).T @ p
            self.count += float(w.sum())

    def solve(self, direction: Tensor, damping: float) -> Tensor:
        """(S + λ_S I)⁻¹ · direction · (A + λ_A I)⁻¹; each λ is `damping` times the factor's mean eigenvalue."""
        if self.count == 0:
            return direction
        once = torch.linalg.solve(self._damped(self.outputs, damping), direction.double())
        solved: Tensor = torch.linalg.solve(self._damped(self.inputs, damping), once.T)
        return solved.T.to(direction.dtype)

    def _damped(self, total: Tensor | float, damping: float) -> Tensor:
        factor = torch.as_tensor(total) / self.count
        size = len(factor)
        return factor + damping * factor.trace() / size * torch.eye(size, dtype=factor.dtype, device=factor.device)


Tangent = dict[str, Tensor]
"""A value for each parameter of a network, by name."""


class SupportGradient(NamedTuple):
    """The gradient of the support loss in the head, and what that in the features takes, which is not always wanted.

    `errors` is the gradient of the summed loss in the logits, `weight` the head's; `chunks` yields row numbers and
    inputs of the examples.
    """

    head: Tensor
    errors: Tensor
    weight: Tensor
    chunks: Iterator[tuple[np.ndarray, Tensor]]

    def in_features(self) -> Tensor:
        """The gradient in the features, `(rows, width)`."""
        return self.errors @ self.weight.detach().float() / len(self.errors)


def full_direction(pool: Pool, support: SupportGradient) -> Tangent:
    """The gradient of the support loss in all trainable parameters.

    The support set passes through the backbone a second time in chunks, because Mixup pairs may cross chunks.
    """
    parameters = {name: p.detach() for name, p in pool.model.named_parameters()}
    backbone = {name: p for name, p in parameters.items() if not name.startswith("head.")}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    in_features = support.in_features()
    for rows, x in support.chunks:

        def features(moved: Tangent, x: Tensor = x) -> Tensor:
            outputs: Outputs = functional_call(pool.model, moved, (x,))
            return outputs.features

        for name, gradient in vjp(features, backbone)[1](in_features[rows])[0].items():
            total[name] += gradient
    total["head.weight"] += support.head[:, :-1]
    if "head.bias" in total:
        total["head.bias"] += support.head[:, -1]
    frozen = pool.frozen()
    return {name: torch.zeros_like(v) if name in frozen else v for name, v in total.items()}


def directional_derivatives(model: nn.Module, tangent: Tangent, chunk: PoolChunk) -> Tensor:
    """⟨∇ weight·CE(u), tangent⟩ for each example of a chunk, `(rows,)`; zero where the weight is zero."""
    derivatives = torch.zeros_like(chunk.weights)
    wanted = chunk.weights > 0
    if not wanted.any():
        return derivatives
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images = chunk.images[wanted]
    targets = chunk.targets[wanted]
    weights = chunk.weights[wanted]

    def losses(moved: Tangent) -> Tensor:
        outputs: Outputs = functional_call(model, moved, (images,))
        return -weights * (targets * outputs.logits.float().log_softmax(1)).sum(1)

    # Fused attention has no forward-mode rule, and half precision is too coarse for the derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.autocast(images.device.type, enabled=False):
        derivatives[wanted] = jvp(losses, (parameters,), (tangent,))[1]
    return derivatives
