"""Networks that learn the target r̃ from class probabilities and features, which cost nothing extra.

The VAE of VCC (encoder q(z | c, x), decoder p(r | c, x, z), standard normal prior) and an MLP of the same size
without z. With `residual` both start at the softmax confidence and learn a correction.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HIDDEN = (256, 64)


def kl_to_prior(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, var) ‖ N(0, 1)) of each row, summed over its dimensions: −log σ + (μ² + σ²)/2 − 1/2."""
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of 256 and 64 units; the output layer starts at zero."""
    widths = (inputs, *_HIDDEN)
    net = nn.Sequential()
    for before, after in pairwise(widths):
        net.extend([nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()])
    last = nn.Linear(widths[-1], outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return net.append(last)


class MLPReconstruction(nn.Module):
    """Maps class probabilities and features to a logit of the confidence, or with "distribution" to one per class."""

    def __init__(
        self, classes: int, features: int, output: str = "scalar", latent_dim: int = 0, residual: bool = True
    ) -> None:
        super().__init__()
        self.output, self.latent_dim, self.residual = output, latent_dim, residual
        # Features come at any scale.
        self.normalize = nn.LayerNorm(features, elementwise_affine=False)
        self.decoder = layers(classes + features + latent_dim, 1 if output == "scalar" else classes)

    def decode(self, probs: Tensor, hidden: Tensor, z: Tensor | None = None) -> Tensor:
        """Logits from the first layer at z, or at the prior's mean; with `residual`, a correction of the softmax's."""
        # z is apart, because it has a gradient, and that of the other inputs would cost as much as all the rest.
        weight = cast(nn.Linear, self.decoder[0]).weight
        hidden = hidden if z is None else hidden + F.linear(z, weight[:, -z.shape[1] :])
        change: Tensor = self.decoder[1:](hidden)
        if not self.residual:
            return change.squeeze(1) if self.output == "scalar" else change
        if self.output == "distribution":
            return probs.clamp_min(1e-6).log() + change
        return probs.amax(1).logit(1e-6) + change.squeeze(1)

    def forward(self, probs: Tensor, features: Tensor) -> Tensor:
        """Deterministic logits: z, if there is one, is at the prior's mean."""
        return self.decode(probs, self._first(probs, features)[1])

    def confidence(self, probs: Tensor, features: Tensor) -> Tensor:
        """Reconstructed confidence in the classifier's label."""
        return self._top(probs, self(probs, features))

    def loss(self, probs: Tensor, features: Tensor, target: Tensor) -> Tensor:
        """Negative log likelihood of the target (one confidence or one distribution per row)."""
        return self._loss(probs, *self._first(probs, features), target)

    def learn(self, probs: Tensor, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Both, the confidence without gradient; they share the first layer, which is most of the work."""
        inputs, hidden = self._first(probs, features)
        with torch.no_grad():
            confidence = self._top(probs, self.decode(probs, hidden))
        return confidence, self._loss(probs, inputs, hidden, target)

    def _first(self, probs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs, and what the first layer makes of them before z comes in."""
        inputs = torch.cat([probs, self.normalize(features.float())], 1)
        first = cast(nn.Linear, self.decoder[0])
        return inputs, F.linear(inputs, first.weight[:, : inputs.shape[1]], first.bias)

    def _top(self, probs: Tensor, logits: Tensor) -> Tensor:
        if self.output == "scalar":
            return logits.sigmoid()
        return logits.softmax(1).gather(1, probs.argmax(1, keepdim=True)).squeeze(1)

    def _loss(self, probs: Tensor, inputs: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
        return self._nll(self.decode(probs, hidden), target)

    def _nll(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.output == "scalar":
            return F.binary_cross_entropy_with_logits(logits, target)
        return F.cross_entropy(logits, target)


class VAEReconstruction(MLPReconstruction):
    """The MLP with a latent z, sampled from the encoder during training."""

    def __init__(
        self, classes: int, features: int, output: str = "scalar", latent_dim: int = 16, residual: bool = True
    ) -> None:
        super().__init__(classes, features, output, latent_dim, residual)
        self.encoder = layers(classes + features, 2 * latent_dim)

    def _loss(self, probs: Tensor, inputs: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
        """The negative ELBO, NLL + KL; with the minus sign as printed it would have no minimum."""
        mean, log_var = self.encoder(inputs).chunk(2, 1)
        log_var = log_var.clamp(-10, 10)  # σ² of 22,000 is far beyond any use and still safe from overflow
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self._nll(self.decode(probs, hidden, z), target) + kl_to_prior(mean, log_var).mean()
