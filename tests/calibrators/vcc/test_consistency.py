import math

import pytest
import torch
from torch import nn

from vcc_infuse.calibrators.vcc.consistency import (
    dropout_samples,
    ensemble_score,
    entropy,
    kl,
    temporal_score,
    view_score,
)
from vcc_infuse.types import Outputs


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


def test_ensemble_calls_the_head_once_and_averages_probabilities():
    calls = []
    linear = nn.Linear(6, 3)

    def head(x):
        calls.append(x)
        return linear(x)

    features = torch.randn(5, 6)
    score = ensemble_score(head, features, mc_samples=4, dropout=0.5)
    (samples,) = calls
    by_loop = torch.stack([linear(part).softmax(1) for part in samples.split(5)]).mean(0)
    assert torch.allclose(score, -(by_loop * by_loop.log()).sum(1), atol=1e-6)
    kept = samples != 0
    assert torch.allclose(samples[kept], (2 * features.repeat(4, 1))[kept])


def test_ensemble_drops_at_the_given_rate_and_tends_to_the_mean_prediction():
    torch.manual_seed(0)
    seen = []
    ensemble_score(lambda x: seen.append(x) or x, torch.ones(50, 40), 20, 0.3)
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    head, features = nn.Linear(6, 3), torch.randn(5, 6)
    many = [ensemble_score(head, features, 4000, 0.3) for _ in range(2)]
    assert torch.allclose(*many, atol=0.02)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.97])
def test_dropped_features_are_independent_at_every_rate(rate):
    torch.manual_seed(0)
    features = torch.rand(101, 41) + 0.5  # not a multiple of four
    samples = dropout_samples(features, 50, rate)
    kept = (samples != 0).double()
    assert torch.allclose(samples, kept.float() * features.repeat(50, 1) / (1 - rate))
    spread = math.sqrt(rate * (1 - rate) / kept.numel())
    assert abs(kept.mean().item() - (1 - rate)) <= 5 * spread
    if rate:  # neighbors share a random number: they must not be dropped together
        pairs = torch.corrcoef(torch.stack([kept.flatten()[:-1], kept.flatten()[1:]]))[0, 1]
        assert abs(pairs.item()) < 5 / math.sqrt(kept.numel())


def test_without_dropout_the_ensemble_score_is_the_entropy():
    head, features = nn.Linear(6, 3), torch.randn(5, 6)
    assert torch.allclose(ensemble_score(head, features, 3, 0.0), entropy(head(features).softmax(1)), atol=1e-6)


def test_a_stable_feature_scores_lower_than_one_on_the_boundary():
    torch.manual_seed(0)
    head = nn.Linear(4, 2, bias=False)
    head.weight.data = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    sure, unsure = torch.tensor([5.0, 5, 0, 0]), torch.tensor([5.0, 5, 5, 5])
    score = ensemble_score(head, torch.stack([sure, unsure]), 64, 0.3)
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
    score = view_score(Outputs(head(online), online), Outputs(ema_head(ema), ema), head, ema_head)
    y, y_ema = ema_head(online).softmax(1), head(ema).softmax(1)
    oracle = nn.functional.kl_div(y_ema.log(), y, reduction="none").sum(1)
    assert torch.allclose(score, oracle, atol=1e-5)
    assert not score.requires_grad
