"""Gradients of a linear head in closed form: an example's gradient is error ⊗ [feature; 1], so autograd is not needed.

An error is weight · (softmax − target). Features h are extended to h̃ = [h; 1], which makes the bias one more column.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def augmented(features: Tensor) -> Tensor:
    """[h; 1] for each row: `(rows, width)` becomes `(rows, width + 1)`."""
    return F.pad(features, (0, 1), value=1.0)


def mean_gradient(errors: Tensor, features: Tensor) -> Tensor:
    """The head's gradient of the mean loss, `(classes, width + 1)`, from `(rows, classes)` and `(rows, width)`."""
    return errors.T @ augmented(features) / len(errors)


def alignment(direction: Tensor, errors: Tensor, features: Tensor) -> Tensor:
    """Inner product of each example's gradient with `direction`, `(rows,)`."""
    return (errors * (augmented(features) @ direction.T)).sum(1)


class ExampleGradients:
    """One gradient per example, stored as its two factors: C + D numbers instead of C·D."""

    def __init__(self, errors: Tensor, features: Tensor) -> None:
        self.errors = errors
        self.features = features

    def __len__(self) -> int:
        return len(self.errors)

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

    def __len__(self) -> int:
        return len(self.means)

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
