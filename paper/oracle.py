"""OracleINFUSE: INFUSE that ranks by the gradient on the test set, an upper bound on what a support set can give.

It is a row of a table, not a method: what it selects has seen the test labels. The package root does not export it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcc_infuse.data.dataset import Dataset
from vcc_infuse.errors import UserError
from vcc_infuse.inference.evaluate import chunks
from vcc_infuse.inference.predictor import make_views
from vcc_infuse.selectors import INFUSE
from vcc_infuse.selectors.infuse.influence import SupportGradient
from vcc_infuse.selectors.pool import Pool, mean_gradient
from vcc_infuse.types import Outputs

Inputs = Callable[[torch.device | str], Iterator[Tensor]]


class OracleINFUSE(INFUSE):
    """INFUSE with the true gradient in place of the support set's; `attach` the dataset before training.

    The options are those of INFUSE. There is no Mixup, so `mixup_draws` and `support_views` have no effect.
    """

    inputs: Inputs | None = None
    y: Tensor

    def attach(self, dataset: Dataset) -> None:
        """Show it the test examples: images, vectors or the plain views of a bank."""
        test = dataset.test
        views = make_views(dataset)
        if test is None:
            raise UserError(f"OracleINFUSE needs a test set, and {dataset.name} has none; choose another selector")
        # A function, because the trainer copies the selector, and a function is not copied with its data.
        self.inputs = lambda device: chunks(test.x, views, torch.device(device))
        self.y = torch.from_numpy(np.array(test.y)).long()

    @torch.no_grad()
    def support(self, pool: Pool) -> SupportGradient:
        """The gradient of the mean loss on the test examples."""
        if self.inputs is None:
            raise UserError("OracleINFUSE has no test examples; call its attach before fit")
        outputs = [Outputs(*pool.model(x)) for x in self.inputs(pool.device)]
        logits, features = (torch.cat(part).float() for part in zip(*outputs, strict=True))
        errors = logits.softmax(1) - F.one_hot(self.y.to(logits.device), logits.shape[1])
        weight = cast(nn.Linear, pool.model.get_submodule("head")).weight
        return SupportGradient(mean_gradient(errors, features), errors, weight, self._rows(pool))

    def _rows(self, pool: Pool) -> Iterator[tuple[np.ndarray, Tensor]]:
        start = 0
        assert self.inputs is not None
        for x in self.inputs(pool.device):
            yield np.arange(start, start + len(x)), x
            start += len(x)
