"""CrossFitted: a confidence whose scale was learned from answers for labels that the answering run did not see."""

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from .base import Calibrator, Softmax

SURE = 1e-7  # distance from 0 and 1 beyond which all confidences count the same
SLOPE_DEVIATION = 0.7  # of the prior of log(slope), around slope 1
BIAS_DEVIATION = 1.0  # of the prior of the bias, around 0


class CrossFitted(Calibrator):
    """Maps the confidence c of another calibrator to sigmoid(slope · logit(c) + bias), at inference.

    A run makes it at its end, with the option `cross_fit`.

    Args:
        base: the calibrator of the run; the softmax if not given.
    """

    def __init__(self, base: Calibrator | None = None) -> None:
        super().__init__()
        self.base = Softmax() if base is None else base
        self.slope = nn.Buffer(torch.ones(()))
        self.bias = nn.Buffer(torch.zeros(()))

    def setup(self, model: nn.Module, task: Task) -> None:
        """That of the base."""
        self.base.setup(model, task)

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """What the base says of pseudo labels."""
        calibrated: Calibrated = self.base(step, images, outputs)
        return calibrated

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The mapped confidence."""
        return torch.sigmoid(self.slope * logit(self.base.predict(outputs)) + self.bias)

    def fit(self, confidence: Tensor, right: Tensor) -> Self:
        """Learn the map from confidences of the base (labels,) and whether its labels were right (labels,)."""
        slope, bias = fit_map(logit(confidence), right)
        self.slope.fill_(slope)
        self.bias.fill_(bias)
        return self


def logit(confidence: Tensor) -> Tensor:
    """log(c / (1 − c)), of a confidence kept a little away from 0 and 1."""
    kept = to_float64(confidence).clamp(SURE, 1 - SURE)
    return kept.log() - (1 - kept).log()


def fit_map(logits: Tensor, right: Tensor) -> tuple[float, float]:
    """Slope and bias of the logistic regression of `right` on `logits` (both (labels,)), under a prior around 1 and 0.

    Few labels hardly move the map away from what the confidence says by itself; many decide alone.

    Example:
        >>> fit_map(torch.zeros(0), torch.zeros(0))
        (1.0, 0.0)
    """
    from scipy.optimize import minimize  # here, because it takes a while to import

    x = logits.detach().cpu().double()
    signs = 2 * right.detach().cpu().double() - 1

    def loss(values: list[float]) -> float:
        log_slope, bias = values
        log_loss = -torch.nn.functional.logsigmoid(signs * (math.exp(log_slope) * x + bias)).sum()
        prior = (log_slope / SLOPE_DEVIATION) ** 2 + (bias / BIAS_DEVIATION) ** 2
        return float(log_loss) + prior / 2

    log_slope, bias = minimize(loss, [0.0, 0.0], method="BFGS").x
    return float(math.exp(log_slope)), float(bias)
