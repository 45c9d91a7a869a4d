"""INFUSE's scores against captum, an independent implementation of influence.

With the identity for the Hessian, the influence of u on the support set is −mean over v of ⟨∇L(v), ∇L(u)⟩. That is
captum's TracInCP with a single checkpoint and learning rate 1, up to the sign. captum has no forward pass of a mixed
pair, so the network is wrapped: an input is a pair of images and λ, and an unlabeled image is paired with itself.
Neither the Gauss-Newton matrix nor the groups of `granularity="batch"` have a counterpart in captum; they are compared
with autograd in test_infuse.py.
"""

import pytest
import torch
import torch.nn.functional as F
from captum.influence import TracInCP
from torch import nn
from torch.utils.data import TensorDataset

from vcc_infuse.selectors import INFUSE
from vcc_infuse.selectors.base import example_columns
from vcc_infuse.selectors.infuse.infuse import MIXUP

CLASSES, ROWS, DRAWS = 10, 25, 2


class MixedPair(nn.Module):
    """The head on λ times the features of one image plus (1 − λ) times those of another."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, first, second, lam):
        return self.head(lam * self.backbone(first) + (1 - lam) * self.backbone(second))


def support_set(pool):
    """Pairs of labeled images, λ and mixed labels, drawn as INFUSE draws them."""
    (_, x, y), rng, pairs = next(iter(pool.labeled_chunks(1))), pool.rng(MIXUP), []
    truth = F.one_hot(y, CLASSES).float()
    assert len(y) == pool.task.labeled
    for _ in range(DRAWS):
        partner = torch.from_numpy(rng.permutation(len(y)))
        lam = torch.from_numpy(rng.random(len(y))).float()[:, None]
        pairs.append((x, x[partner], lam, lam * truth + (1 - lam) * truth[partner]))
    return [torch.cat(part) for part in zip(*pairs, strict=True)]


def selected_rows(pool):
    """Ids, strong views and pseudo labels of some examples whose pseudo label has weight."""
    chunks = []
    pool.scan(lambda chunk: chunks.append(chunk) or example_columns(chunk))
    chunk = next(chunk for chunk in chunks if (chunk.weights > 0).sum() >= ROWS)
    rows = (chunk.weights > 0).nonzero()[:ROWS, 0]
    assert (chunk.weights[rows] == 1).all()
    return chunk.ids[rows], chunk.images[rows], F.one_hot(chunk.labels[rows], CLASSES).float()


@pytest.mark.parametrize("rank", ["corrected", "printed"])
@pytest.mark.parametrize("params", ["head", "all"])
def test_scores_equal_those_of_captum(params, rank, make_pool, eval_mode):
    pool = eval_mode(make_pool())
    columns = INFUSE(keep=0.3, params=params, rank=rank, mixup_draws=DRAWS).score_pool(pool)
    ids, images, labels = selected_rows(pool)
    influence = TracInCP(
        MixedPair(pool.model).eval(), TensorDataset(images, images, torch.ones(ROWS, 1), labels), ["now"],
        lambda model, checkpoint: 1.0, layers=["head"] if params == "head" else None,
        loss_fn=nn.CrossEntropyLoss(reduction="none"), batch_size=ROWS,
    )  # fmt: skip
    found = influence.influence(tuple(support_set(pool))).mean(0)
    assert found.min() < 0 < found.max()
    sign = 1 if rank == "corrected" else -1
    torch.testing.assert_close(columns["score"][ids], sign * found, rtol=1e-3, atol=1e-6)
