"""The functional core against slow loops that share nothing with it."""

import math

import pytest
import torch
from torch import nn

from vcc_infuse import functional

TINY = 1e-7


def distributions(rows, classes, seed):
    return (2 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


def slow_kl(p, q):
    return sum(a * (math.log(max(a, TINY)) - math.log(max(b, TINY))) for a, b in zip(p, q, strict=True))


def softmax(logits):
    exps = [math.exp(x - max(logits)) for x in logits]
    return [x / sum(exps) for x in exps]


def affine(weight, bias, x):
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


@pytest.mark.parametrize("classes", [2, 5])
def test_entropy_and_divergence(classes):
    p, q = distributions(6, classes, 0), distributions(6, classes, 1)
    expected = [slow_kl(a, b) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    torch.testing.assert_close(functional.kl(p, q), torch.tensor(expected))
    entropies = [-sum(a * math.log(a) for a in row) for row in p.tolist()]
    torch.testing.assert_close(functional.entropy(p), torch.tensor(entropies))


def test_ensemble_score():
    """Each of the heads drops the same inputs for all rows, and scales those that it keeps."""
    torch.manual_seed(0)
    head, features = nn.Linear(4, 3), torch.randn(5, 4)
    torch.manual_seed(1)
    score = functional.ensemble_score(features, head, mc_samples=6, dropout=0.4)
    torch.manual_seed(1)
    kept = nn.functional.dropout(torch.ones(6, 1, 4), 0.4)[:, 0].tolist()
    weight, bias = head.weight.tolist(), head.bias.tolist()
    for row, value in zip(features.tolist(), score.tolist(), strict=True):
        each = [softmax(affine(weight, bias, [k * x for k, x in zip(mask, row, strict=True)])) for mask in kept]
        mean = [sum(column) / 6 for column in zip(*each, strict=True)]
        assert value == pytest.approx(-sum(p * math.log(p) for p in mean), abs=1e-5)


def test_temporal_score():
    p, q = distributions(4, 3, 0), distributions(4, 3, 1)
    score = functional.temporal_score(p, q, torch.tensor([True, False, True, False])).tolist()
    assert score[0] == pytest.approx(slow_kl(p[0].tolist(), q[0].tolist()), abs=1e-5)
    assert score[2] == pytest.approx(slow_kl(p[2].tolist(), q[2].tolist()), abs=1e-5)
    assert math.isnan(score[1])
    assert math.isnan(score[3])


def test_view_score():
    torch.manual_seed(0)
    head, ema_head = nn.Linear(4, 3), nn.Linear(4, 3)
    features, ema_features = torch.randn(5, 4), torch.randn(5, 4)
    score = functional.view_score(features, ema_features, head, ema_head)
    for row, ema_row, value in zip(features.tolist(), ema_features.tolist(), score.tolist(), strict=True):
        crossed = softmax(affine(ema_head.weight.tolist(), ema_head.bias.tolist(), row))
        other = softmax(affine(head.weight.tolist(), head.bias.tolist(), ema_row))
        assert value == pytest.approx(slow_kl(crossed, other), abs=1e-5)


def test_normalized_scores():
    queue = torch.tensor([[0.0, 5.0, 2.0], [4.0, torch.nan, 2.0], [1.0, 9.0, 2.0]])
    scores = torch.tensor([[1.0, 6.0, 3.0], [8.0, torch.nan, 2.0], [-1.0, 4.0, 1.0]])
    expected = torch.tensor([[0.25, 0.25, 0.0], [1.0, torch.nan, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(functional.normalize_scores(scores, queue), expected, equal_nan=True)


@pytest.mark.parametrize("fusion", ["corrected", "printed"])
def test_fused_scores(fusion):
    scores = torch.tensor([[0.5, 0.1], [torch.nan, 0.3], [torch.nan, torch.nan]])
    confidence = torch.tensor([0.9, 0.4, 0.7])
    fused = functional.fuse(scores, confidence, fusion=fusion)
    for row, c, value in zip(scores.tolist(), confidence.tolist(), fused, strict=True):
        terms = [s * s for s in row if s == s] + [(1 - c if fusion == "corrected" else c) ** 2]
        assert value.item() == pytest.approx(sum(terms) / len(terms), abs=1e-6)


def test_interpolated_confidence():
    g = torch.Generator().manual_seed(0)
    s, c, labels = torch.rand(30, generator=g), torch.rand(30, generator=g), torch.randint(4, (30,), generator=g)
    past_s, past_c = torch.rand(40, generator=g), torch.rand(40, generator=g)
    past_labels = torch.randint(3, (40,), generator=g)  # class 3 is not in the queue
    target = functional.interpolate(
        s, c, labels, queue_instability=past_s, queue_confidence=past_c, queue_labels=past_labels, classes=4
    )
    for row in range(30):
        peers = [i for i in range(40) if past_labels[i] == labels[row]]
        if not peers:
            assert target[row] == c[row]
            continue
        best, worst = min(past_s[i].item() for i in peers), max(past_s[i].item() for i in peers)
        low, high = min(past_c[i].item() for i in peers), max(past_c[i].item() for i in peers)
        share = min(max((worst - s[row].item()) / (worst - best), 0), 1)
        assert target[row].item() == pytest.approx(share * (high - low) + low, abs=1e-5)
    assert (labels == 3).any()


def test_calibrators_use_the_same_functions():
    from vcc_infuse.calibrators.vcc import vcc

    assert vcc.ensemble_score is functional.ensemble_score
    assert vcc.view_score is functional.view_score
