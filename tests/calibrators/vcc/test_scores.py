import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from torch import nn

from vcc_infuse.calibrators.vcc.scores import (
    ensemble_score,
    entropy,
    kl,
    temporal_score,
    view_score,
)


def rows(n: int, classes: int, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


@pytest.mark.parametrize("classes", [2, 7])
def test_entropy_and_kl_agree_with_torch_distributions(classes):
    p, q = rows(20, classes), rows(20, classes, 1)
    a, b = (torch.distributions.Categorical(probs=x.double()) for x in (p, q))
    assert torch.allclose(entropy(p).double(), a.entropy(), atol=1e-5)
    assert torch.allclose(kl(p, q).double(), torch.distributions.kl_divergence(a, b), atol=1e-5)


def test_kl_is_zero_for_equals_and_finite_for_a_certain_prediction():
    certain, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert kl(certain, certain).item() == 0
    assert math.isfinite(kl(certain, other).item())
    assert kl(certain, other).item() > 10


@pytest.mark.parametrize(("count", "rate"), [(1, 0.5), (8, 0.3), (3, 0.97)])
def test_ensemble_averages_the_predictions_of_heads_with_dropped_inputs(count, rate):
    head, features = nn.Linear(6, 3), torch.randn(5, 6)
    torch.manual_seed(1)
    score = ensemble_score(features, head, mc_samples=count, dropout=rate)
    torch.manual_seed(1)
    kept = F.dropout(torch.ones(count, 6), rate)
    by_loop = torch.stack([head(features * row).softmax(1) for row in kept]).mean(0)
    assert torch.allclose(score, torch.distributions.Categorical(probs=by_loop).entropy(), atol=1e-5)
    assert not score.requires_grad


def test_each_score_is_distributed_as_with_dropout_of_its_own():
    torch.manual_seed(0)
    head, features = nn.Linear(12, 3), torch.randn(1, 12)
    ours = torch.stack(
        [ensemble_score(features.repeat(7, 1), head, mc_samples=4, dropout=0.3)[-1] for _ in range(1500)]
    )
    own = F.dropout(features.repeat(4 * 1500, 1), 0.3)
    theirs = entropy(head(own).softmax(1).view(1500, 4, 3).mean(1)).detach()
    assert ks_2samp(ours, theirs).pvalue > 0.001
    assert ks_2samp(ours, theirs + 0.2 * theirs.std()).pvalue < 0.001  # the test would see a small difference


def test_without_dropout_the_ensemble_score_is_the_entropy():
    head, features = nn.Linear(6, 3), torch.randn(5, 6)
    assert torch.allclose(
        ensemble_score(features, head, mc_samples=3, dropout=0.0), entropy(head(features).softmax(1)), atol=1e-6
    )


def test_a_stable_feature_scores_lower_than_one_on_the_boundary():
    torch.manual_seed(0)
    head = nn.Linear(4, 2, bias=False)
    head.weight.data = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    sure, unsure = torch.tensor([5.0, 5, 0, 0]), torch.tensor([5.0, 5, 5, 5])
    score = ensemble_score(torch.stack([sure, unsure]), head, mc_samples=64, dropout=0.3)
    assert score[0] < score[1]


def test_temporal_score_exists_only_where_the_past_is_known():
    p, q = rows(4, 3), rows(4, 3, 1)
    known = torch.tensor([True, False, True, False])
    score = temporal_score(p, q, known)
    assert torch.equal(score.isnan(), ~known)
    assert torch.allclose(score[known], kl(p, q)[known])


def test_view_score_swaps_the_heads():
    torch.manual_seed(0)
    head, ema_head = nn.Linear(6, 3), nn.Linear(6, 3)
    online, ema = torch.randn(5, 6), torch.randn(5, 6)
    score = view_score(online, ema, head, ema_head)
    y, y_ema = ema_head(online).softmax(1), head(ema).softmax(1)
    oracle = nn.functional.kl_div(y_ema.log(), y, reduction="none").sum(1)
    assert torch.allclose(score, oracle, atol=1e-5)
    assert not score.requires_grad
