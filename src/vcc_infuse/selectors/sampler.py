"""CoresetSampler: a core set as the sampler of a `torch.utils.data.DataLoader`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from ..errors import UserError, check_integer
from .base import ScoredSelector, Scores

ORDER = 13  # key of a random stream


class CoresetSampler(Sampler[int]):
    """Draws the examples of the current core set, each once per epoch, in a random order.

    The core set is a random subset until the first `refresh` or `update`. The order depends on the seed and the number
    of the epoch alone; every pass counts as one epoch.

    Args:
        pool_size: number of unlabeled examples.
        selector: a selector with a method `score`, such as `INFUSE(keep=0.4)`, or any function that returns a score per
            example (larger is kept first). It may be left out if scores are given to `update`.
        keep: fraction of the pool to keep, with a function or without a selector; a selector has its own.
        seed: seed of the first core set, of random draws, and of the order.

    Example:
        >>> import torch
        >>> from vcc_infuse import CoresetSampler
        >>> sampler = CoresetSampler(6, selector=lambda x: -x.abs(), keep=0.5)
        >>> sampler.refresh(torch.tensor([3.0, 0.1, -2.0, 0.2, 0.0, 5.0]))
        >>> sorted(sampler), len(sampler)
        ([1, 3, 4], 3)
        >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=2, sampler=sampler)
        >>> sorted(torch.cat(list(loader)).tolist())
        [1, 3, 4]
    """

    def __init__(
        self,
        pool_size: int,
        *,
        selector: ScoredSelector | Callable[..., Scores] | None = None,
        keep: float | None = None,
        seed: int = 0,
    ) -> None:
        self.pool_size = check_integer("pool_size", pool_size, 1)
        if isinstance(selector, ScoredSelector):
            if keep is not None:
                raise UserError(f"keep {keep} is an option of the selector: {type(selector).__name__}(keep={keep})")
            self.rule = selector
            self.score: Callable[..., Scores] | None = getattr(selector, "score", None)
        else:
            self.rule = ScoredSelector() if keep is None else ScoredSelector(keep=keep)
            self.score = selector
        self.seed = seed
        self.epoch = 0
        first = self.rule.first_coreset(pool_size, self.rule.budget(pool_size), seed)
        self.ids = torch.arange(pool_size) if first is None else first.ids

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        """Choose a new core set by the scores that the selector returns for these arguments."""
        if self.score is None:
            raise UserError("refresh needs a selector that scores arrays, such as INFUSE; or give scores to update")
        self.update(self.score(*args, **kwargs))

    def update(self, scores: Scores, *, labels: Scores | None = None, confidence: Scores | None = None) -> None:
        """Choose a new core set by given scores; see `ScoredSelector.choose_from`."""
        values = torch.as_tensor(scores)
        if values.shape != (self.pool_size,):
            raise UserError(f"scores must have the shape ({self.pool_size},) of the pool, got {tuple(values.shape)}")
        seed = int(np.random.SeedSequence([self.seed, self.epoch]).generate_state(1)[0])
        self.ids = self.rule.choose_from(values, labels=labels, confidence=confidence, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass in the order of this epoch, as after resuming a run."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch, ORDER]).permutation(len(self.ids))
        self.epoch += 1
        return iter(self.ids[torch.from_numpy(order)].tolist())

    def __len__(self) -> int:
        return len(self.ids)
