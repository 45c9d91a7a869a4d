"""Networks that learn the target r̃ from what comes at no cost: class probabilities and features.

The VAE of VCC (encoder q(z | c, x), decoder p(r | c, x, z), standard normal prior) and an MLP of the same size
without z. Both start at the softmax confidence and learn how far to move from it (unless not `residual`).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HIDDEN = (256, 64)


def kl_to_prior(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, var) ‖ N(0, 1)) of each row, summed over its dimensions: −log σ + (μ² + σ²)/2 − 1/2."""
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of 256 and 64; the last starts at zero."""
    widths = (inputs, *_HIDDEN)
    net = nn.Sequential()
    for before, after in pairwise(widths):
        net.extend([nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()])
    last = nn.Linear(widths[-1], outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return net.append(last)


class MLP(nn.Module):
    """Class probabilities and features in; out a logit of the confidence, or with "distribution" one a class."""

    def __init__(
        self, classes: int, features: int, output: str = "scalar", latent: int = 0, residual: bool = True
    ) -> None:
        super().__init__()
        self.output, self.latent, self.residual = output, latent, residual
        # Features of any scale are brought to one.
        self.normal = nn.LayerNorm(features, elementwise_affine=False)
        self.decoder = layers(classes + features + latent, 1 if output == "scalar" else classes)

    def decode(self, probs: Tensor, seen: Tensor) -> Tensor:
        """Logits: a learned correction of the softmax's own, unless told to start from nothing."""
        change = self.decoder(seen)
        if not self.residual:
            return change.squeeze(1) if self.output == "scalar" else change
        if self.output == "distribution":
            return probs.clamp_min(1e-6).log() + change
        return probs.amax(1).logit(1e-6) + change.squeeze(1)

    def forward(self, probs: Tensor, features: Tensor) -> Tensor:
        """Logits without randomness: z, if there is one, at the prior's mean."""
        seen = self._condition(probs, features)
        return self.decode(probs, F.pad(seen, (0, self.latent)))

    def confidence(self, probs: Tensor, features: Tensor) -> Tensor:
        """Reconstructed confidence in the classifier's label."""
        logits = self(probs, features)
        if self.output == "scalar":
            return logits.sigmoid()
        return logits.softmax(1).gather(1, probs.argmax(1, keepdim=True)).squeeze(1)

    def loss(self, probs: Tensor, features: Tensor, target: Tensor) -> Tensor:
        """Negative log likelihood of the target (a confidence, or a distribution a row)."""
        return self._nll(self(probs, features), target)

    def _condition(self, probs: Tensor, features: Tensor) -> Tensor:
        return torch.cat([probs, self.normal(features.float())], 1)

    def _nll(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.output == "scalar":
            return F.binary_cross_entropy_with_logits(logits, target)
        return F.cross_entropy(logits, target)


class VAE(MLP):
    """The MLP with a latent z, drawn from the encoder while learning."""

    def __init__(
        self, classes: int, features: int, output: str = "scalar", latent: int = 16, residual: bool = True
    ) -> None:
        super().__init__(classes, features, output, latent, residual)
        self.encoder = layers(classes + features, 2 * latent)

    def loss(self, probs: Tensor, features: Tensor, target: Tensor) -> Tensor:
        """The negative ELBO, NLL + KL; with the printed minus it would have no minimum."""
        seen = self._condition(probs, features)
        mean, log_var = self.encoder(seen).chunk(2, 1)
        log_var = log_var.clamp(-10, 10)  # σ² of 22,000 is far from any use and near to overflow
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self._nll(self.decode(probs, torch.cat([seen, z], 1)), target) + kl_to_prior(mean, log_var).mean()
