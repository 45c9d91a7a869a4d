"""CrossFitted: a confidence whose scale was learned from answers for labels that the answering run did not see."""

from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from .base import Calibrator, Softmax

SURE = 1e-7  # distance from 0 and 1 beyond which all confidences count the same
SLOPE_DEVIATION = 0.3  # of the prior of each slope
BIAS_DEVIATION = 0.3


class CrossFitted(Calibrator):
    """The softmax at a scale fitted to labels unseen in training, joined with the confidence of another calibrator.

    A run makes it at its end, with the option `cross_fit`. If `base` is the softmax, the confidence is that of
    `scale` times the logits; else sigmoid(slopes · logits of both confidences + bias).

    Args:
        base: the calibrator of the run; the softmax if not given.
    """

    def __init__(self, base: Calibrator | None = None) -> None:
        super().__init__()
        self.base = Softmax() if base is None else base
        self.scale = nn.Buffer(torch.ones(()))
        self.base_scale = nn.Buffer(torch.ones(()))  # brings logits to the scale that the base saw in training
        self.slopes = nn.Buffer(torch.tensor([0.5, 0.5]))
        self.bias = nn.Buffer(torch.zeros(()))

    @property
    def joins(self) -> bool:
        """Whether there is a second confidence to join."""
        return type(self.base) is not Softmax

    def setup(self, model: nn.Module, task: Task) -> None:
        """That of the base."""
        self.base.setup(model, task)

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """What the base says of pseudo labels."""
        calibrated: Calibrated = self.base(step, images, outputs)
        return calibrated

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The probability that each label is right."""
        own = Softmax().predict(Outputs(self.scale * outputs.logits, outputs.features))
        if not self.joins:
            return own
        return torch.sigmoid(self.columns(self.base, outputs) @ to_float64(self.slopes) + self.bias)

    @torch.no_grad()
    def columns(self, base: Calibrator, outputs: Outputs) -> Tensor:
        """Logits of both confidences, (batch, 2); `base` may be that of another run of the same method."""
        own = Softmax().predict(Outputs(self.scale * outputs.logits, outputs.features))
        other = base.predict(Outputs(self.base_scale * outputs.logits, outputs.features))
        return torch.stack([logit(own), logit(other)], 1)

    def fit(self, columns: Tensor, right: Tensor) -> Self:
        """Learn how to join the two from `columns` (labels, 2) and whether the labels were right (labels,)."""
        values = fit_join(columns, right)
        self.slopes.copy_(values[:2])
        self.bias.copy_(values[2])
        return self


def logit(confidence: Tensor) -> Tensor:
    """log(c / (1 − c)), of a confidence kept a little away from 0 and 1."""
    kept = to_float64(confidence).clamp(SURE, 1 - SURE)
    return kept.log() - (1 - kept).log()


def fit_join(columns: Tensor, right: Tensor) -> Tensor:
    """Slopes and bias (3,) of the logistic regression of `right` on two columns, under a prior around their mean.

    Few labels hardly move it away from the mean of the two logits; many decide alone.

    Example:
        >>> fit_join(torch.zeros(0, 2), torch.zeros(0)).tolist()
        [0.5, 0.5, 0.0]
    """
    from scipy.optimize import minimize  # here, as expit, because they take a while to import
    from scipy.special import expit

    x = F.pad(columns.detach().cpu().double(), (0, 1), value=1.0).numpy()
    signs = 2 * right.detach().cpu().double().numpy() - 1
    center = np.array([0.5, 0.5, 0.0])
    deviation = np.array([SLOPE_DEVIATION, SLOPE_DEVIATION, BIAS_DEVIATION])

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (x @ values)
        apart = (values - center) / deviation
        slope = -(signs * expit(-margins)) @ x + apart / deviation
        return float(np.logaddexp(0, -margins).sum() + (apart**2).sum() / 2), slope

    return torch.from_numpy(minimize(loss, center, jac=True, method="BFGS").x)
