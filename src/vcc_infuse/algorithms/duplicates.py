"""One pool id may come several times in a batch: which of its rows is to be remembered."""

from __future__ import annotations

import torch
from torch import Tensor


def remembered(ids: Tensor, eligible: Tensor | None = None) -> Tensor:
    """For each row, the position of the last row with the same id: the last eligible one, where there is one.

    Writing `values[remembered(ids)]` at `ids` gives the same result on every device, whatever the order of writing.
    """
    keys = ids if eligible is None else 2 * ids + eligible.long()
    order = torch.argsort(keys, stable=True)
    ends = torch.searchsorted(ids[order], ids, right=True)
    return order[ends - 1]
