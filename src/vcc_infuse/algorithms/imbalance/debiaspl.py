"""DebiasPL (Wang et al., CVPR 2022): remove the average bias of the predictions from each pseudo label."""

import torch
from torch import Tensor, nn

from ...errors import check_range
from ...types import Calibrated, Step, Task
from ..base import PseudoLabeling
from .wrapper import Wrapper


class DebiasPL(Wrapper):
    """Subtract the log of the running mean prediction from the weak logits, and add it to the strong ones as a margin.

    Args:
        strength: factor of the log of the mean prediction.
        momentum: of the running mean; less in short runs, see `Step.momentum`.

    References:
        Wang et al., Debiased Learning from Naturally Imbalanced Pseudo-Labels, CVPR 2022.
    """

    needs_strong = True

    def __init__(self, base: PseudoLabeling | None = None, *, strength: float = 0.5, momentum: float = 0.999) -> None:
        super().__init__(base)
        self.strength = check_range("strength", strength)
        self.momentum = check_range("momentum", momentum, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """The mean prediction per class, initially uniform."""
        super().setup(model, task)
        self.mean = nn.Buffer(torch.full((task.classes,), 1 / task.classes))

    def margin(self) -> Tensor:
        """The part of each logit that is due to the frequency of its class.

        Frequent classes of strong views get it added, so that the network need not learn it.
        """
        return self.strength * self.mean.clamp(min=torch.finfo(torch.float32).tiny).log()

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Debiased probabilities; the mean is updated afterwards, and the step's margin is that of the same mean."""
        probs = calibrated.probs.float()
        logits = probs.clamp(min=torch.finfo(torch.float32).tiny).log()
        debiased = (logits - self.margin()).softmax(1)
        if self.training:
            self.mean.lerp_(step.gather(probs).mean(0), 1 - step.momentum(self.momentum))
        return calibrated._replace(probs=debiased, confidence=debiased.amax(1))
