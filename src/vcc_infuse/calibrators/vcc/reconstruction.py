"""The network that learns the target r̃ from class probabilities and features, which cost nothing extra.

The VAE of VCC (encoder q(z | c, x), decoder p(r | c, x, z), standard normal prior), or an MLP: the decoder without z.
"""

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...utils.device import product

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


class Reconstruction(nn.Module):
    """Maps class probabilities (batch, classes) and features (batch, width) to the confidence (batch,).

    Its `output` is a "scalar", or a "distribution": one logit per class, of which that of the label is read. With
    `latent_dim` 0 it is an MLP. With `residual` it starts at the softmax confidence, else at a constant.
    """

    def __init__(
        self, classes: int, features: int, *, output: str = "scalar", latent_dim: int = 16, residual: bool = True
    ) -> None:
        super().__init__()
        self.output = output
        self.residual = residual
        self.normalize = nn.LayerNorm(features, elementwise_affine=False)  # features come at any scale
        self.decoder = layers(classes + features + latent_dim, 1 if output == "scalar" else classes)
        self.encoder = layers(classes + features, 2 * latent_dim) if latent_dim else None

    def confidence(self, probs: Tensor, features: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
        """Reconstructed confidence in the classifier's label, with z at the prior's mean."""
        return self._confidence(probs, self._first_layer(probs, features, kind)[1])

    def loss(self, probs: Tensor, features: Tensor, target: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
        """Loss of the target, which is one confidence (batch,) or one distribution (batch, classes) per row."""
        return self._loss(probs, *self._first_layer(probs, features, kind), target)

    def learn(
        self, probs: Tensor, features: Tensor, target: Tensor, kind: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """`confidence`, without gradient, and `loss`; they share the first layer, of products in the type `kind`."""
        inputs, hidden, of_z = self._first_layer(probs, features, kind)
        with torch.no_grad():
            confidence = self._confidence(probs, hidden)
        return confidence, self._loss(probs, inputs, hidden, of_z, target)

    def _first_layer(
        self, probs: Tensor, features: Tensor, kind: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs, the decoder's first layer at z = 0, and the weights of z, whose share is added later.

        Only z has a gradient; in one product with the other inputs, theirs would be computed for nothing. The weights
        are split once: the gradient of two slices is two matrices of zeros and a sum.
        """
        inputs = torch.cat([probs.to(kind), self.normalize(features.float()).to(kind)], 1)  # half as much to copy
        first = cast(nn.Linear, self.decoder[0])
        width = inputs.shape[1]
        of_inputs, of_z = torch.split(first.weight, [width, first.in_features - width], 1)
        return inputs, product(inputs, of_inputs, first.bias), of_z

    def _logits(self, probs: Tensor, hidden: Tensor) -> Tensor:
        change: Tensor = self.decoder[1:](hidden)
        if self.output == "distribution":
            return probs.clamp_min(1e-6).log() + change if self.residual else change
        return probs.amax(1).logit(1e-6) + change.squeeze(1) if self.residual else change.squeeze(1)

    def _confidence(self, probs: Tensor, hidden: Tensor) -> Tensor:
        logits = self._logits(probs, hidden)
        if self.output == "scalar":
            return logits.sigmoid()
        return logits.softmax(1).gather(1, probs.argmax(1, keepdim=True)).squeeze(1)

    def _loss(self, probs: Tensor, inputs: Tensor, hidden: Tensor, of_z: Tensor, target: Tensor) -> Tensor:
        """The negative ELBO, NLL + KL; with the minus sign as printed it would have no minimum."""
        if self.encoder is None:
            return self._nll(self._logits(probs, hidden), target)
        first = cast(nn.Linear, self.encoder[0])
        mean, log_var = self.encoder[1:](product(inputs, first.weight, first.bias)).chunk(2, 1)
        log_var = log_var.clamp(-10, 10)  # σ² of 22,000 is far beyond any use and still safe from overflow
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        hidden = hidden + F.linear(z, of_z)
        return self._nll(self._logits(probs, hidden), target) + kl_to_prior(mean, log_var).mean()

    def _nll(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.output == "scalar":
            return F.binary_cross_entropy_with_logits(logits, target)
        return F.cross_entropy(logits, target)
