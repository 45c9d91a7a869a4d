import pytest
import torch

from vcc_infuse.calibrators.vcc.scores import Rows, fuse, normalize_scores, target_confidence
from vcc_infuse.utils.device import class_counts


def make(n: int, classes: int, seed: int = 0, scores: int = 3) -> Rows:
    g = torch.Generator().manual_seed(seed)
    low = 1 / classes
    confidence = low + (1 - low) * torch.rand(n, generator=g)
    return Rows(torch.rand(n, scores, generator=g) * 4, confidence, torch.randint(classes, (n,), generator=g))


def r_tilde(rows, queue, classes, fusion="corrected", min_per_class=1):
    return target_confidence(rows, queue, classes, fusion=fusion, min_per_class=min_per_class)


def slow(rows: Rows, queue: Rows, classes: int, fusion: str, least: int) -> list[float]:
    """The paper's section 3.4, one example and one queue entry at a time."""

    def stability(scores, confidence):
        total, terms = 0.0, 0
        for j, value in enumerate(scores):
            column = [float(s[j]) for s in queue.scores if s[j] == s[j]]
            if value == value:
                lo, hi = min(column), max(column)
                total += (min(max((float(value) - lo) / (hi - lo), 0), 1) if hi > lo else 0.0) ** 2
                terms += 1
        if fusion == "minus_square":
            scores_mean = total / terms if terms else 0.0
            return (len(scores) * scores_mean - float(confidence) ** 2) / (len(scores) + 1)
        doubt = 1 - float(confidence) if fusion == "corrected" else float(confidence)
        return (total + doubt**2) / (terms + 1)

    result = []
    for s, c, label in zip(*rows, strict=True):
        peers = [i for i in range(len(queue.labels)) if queue.labels[i] == label]
        if len(peers) < least:
            result.append(float(c))
            continue
        all_s = [stability(queue.scores[i], queue.confidence[i]) for i in peers]
        all_c = [float(queue.confidence[i]) for i in peers]
        if max(all_s) == min(all_s):
            result.append(float(c))
            continue
        share = min(max((max(all_s) - stability(s, c)) / (max(all_s) - min(all_s)), 0), 1)
        result.append(share * (max(all_c) - min(all_c)) + min(all_c))
    return result


@pytest.mark.parametrize("fusion", ["corrected", "minus_square", "printed"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scores", [0, 1, 3])
def test_target_equals_a_slow_loop(fusion, classes, scores):
    queue, rows = make(60, classes, 0, scores), make(20, classes, 1, scores)
    if scores == 3:
        queue.scores[::4, 1] = torch.nan
        rows.scores[::3, 1] = torch.nan
    got = r_tilde(rows, queue, classes, fusion, 3)
    assert torch.allclose(got, torch.tensor(slow(rows, queue, classes, fusion, 3)), atol=1e-5)


def test_target_lies_between_the_extremes_of_its_class():
    queue, rows = make(200, 4), make(100, 4, 1)
    target = r_tilde(rows, queue, 4)
    for label in range(4):
        own = queue.confidence[queue.labels == label]
        picked = target[rows.labels == label]
        assert picked.min() >= own.min() - 1e-6
        assert picked.max() <= own.max() + 1e-6


@pytest.mark.parametrize(("fusion", "sign"), [("corrected", 1), ("minus_square", 1), ("printed", -1)])
def test_more_confidence_gives_a_higher_target_but_a_lower_one_as_printed(fusion, sign):
    queue = make(200, 3)
    confidence = torch.linspace(0.4, 0.99, 20)
    rows = Rows(torch.full((20, 3), 1.0), confidence, torch.ones(20, dtype=torch.long))
    steps = r_tilde(rows, queue, 3, fusion).diff() * sign
    assert (steps >= -1e-6).all()
    assert steps.sum() > 0.1


@pytest.mark.parametrize("column", [0, 1, 2])
def test_less_stability_gives_a_lower_target(column):
    queue = make(200, 3)
    scores = torch.full((20, 3), 1.0)
    scores[:, column] = torch.linspace(0, 4, 20)
    rows = Rows(scores, torch.full((20,), 0.8), torch.zeros(20, dtype=torch.long))
    target = r_tilde(rows, queue, 3)
    assert (target.diff() <= 1e-6).all()
    assert target[0] > target[-1] + 0.05


def test_order_of_queue_and_batch_has_no_effect():
    queue, rows = make(100, 4), make(30, 4, 1)
    a, b = torch.randperm(100), torch.randperm(30)
    shuffled = r_tilde(Rows(*(x[b] for x in rows)), Rows(*(x[a] for x in queue)), 4)
    assert torch.allclose(shuffled, r_tilde(rows, queue, 4)[b])


def test_a_class_with_few_rows_or_no_spread_keeps_the_softmax_confidence():
    queue, rows = make(100, 4), make(40, 5, 1)
    queue.labels[queue.labels == 3] = 2
    queue.labels[:5] = 3
    target = r_tilde(rows, queue, 5, min_per_class=6)
    untouched = rows.labels >= 3
    assert torch.equal(target[untouched], rows.confidence[untouched])
    assert not torch.allclose(target[~untouched], rows.confidence[~untouched])
    flat = Rows(torch.ones(10, 3), torch.full((10,), 0.7), torch.zeros(10, dtype=torch.long))
    assert torch.equal(r_tilde(flat, flat, 2), flat.confidence)


def test_batch_of_a_single_class():
    queue = make(50, 3)._replace(labels=torch.full((50,), 2))
    target = r_tilde(queue, queue, 3)
    assert target.max() == queue.confidence.max()
    assert target.min() == queue.confidence.min()


def test_missing_scores_do_not_count():
    rows = Rows(torch.tensor([[0.2, torch.nan], [0.2, torch.nan]]), torch.tensor([0.9, 0.5]), torch.zeros(2).long())
    assert torch.allclose(fuse(rows.scores, rows.confidence), torch.tensor([(0.04 + 0.01) / 2, (0.04 + 0.25) / 2]))
    everywhere = torch.full((4, 1), torch.nan)
    assert normalize_scores(everywhere, everywhere).isnan().all()


def test_counts_equal_bincount():
    labels = torch.randint(6, (50,))
    assert torch.equal(class_counts(labels, 8), labels.bincount(minlength=8))


@pytest.mark.parametrize("low", [0.1, 0.2, 0.5])
def test_what_the_fusion_alone_does_to_confidences(low):
    """Without scores, in a class whose confidences lie in low…1: one form never lowers a confidence, one never raises.

    "corrected" gives c + (1 − l)·u(1 − u) with u = (c − l)/(1 − l), "minus_square" (l + c²)/(1 + l), and "printed"
    turns the order around.
    """
    c = torch.linspace(low, 1, 50, dtype=torch.float64).float()
    rows = Rows(torch.empty(50, 0), c, torch.zeros(50, dtype=torch.long))
    u = (c - low) / (1 - low)
    corrected = r_tilde(rows, rows, 1)
    torch.testing.assert_close(corrected, c + (1 - low) * u * (1 - u), atol=1e-5, rtol=0)
    assert (corrected >= c - 1e-6).all()
    minus = r_tilde(rows, rows, 1, "minus_square")
    torch.testing.assert_close(minus, (low + c.square()) / (1 + low), atol=1e-5, rtol=0)
    assert (minus <= c + 1e-6).all()
    torch.testing.assert_close(r_tilde(rows, rows, 1, "printed"), low + 1 - minus, atol=1e-5, rtol=0)


def test_quiet_scores_turn_a_confidence_of_80_into_95():
    rows = Rows(torch.empty(3, 0), torch.tensor([0.2, 0.8, 1.0]), torch.zeros(3, dtype=torch.long))
    assert r_tilde(rows, rows, 1)[1].item() == pytest.approx(0.95, abs=1e-5)
    assert r_tilde(rows, rows, 1, "minus_square")[1].item() == pytest.approx(0.7, abs=1e-5)


def test_a_missing_score_counts_as_the_mean_of_the_others_with_minus_square():
    scores = torch.tensor([[0.2, torch.nan, 0.4], [torch.nan, torch.nan, torch.nan]])
    found = fuse(scores, torch.tensor([0.9, 0.9]), fusion="minus_square")
    assert found.tolist() == pytest.approx([(3 * (0.04 + 0.16) / 2 - 0.81) / 4, -0.81 / 4])


def test_the_confidence_is_scaled_by_its_extremes_in_the_queue():
    """One row, computed by hand: c of the queue reaches from .25 to .75, so that .5 counts as .5 and 1 as 1."""
    queue = Rows(torch.empty(3, 0), torch.tensor([0.25, 0.75, torch.nan]), torch.tensor([0, 0, 1]))
    rows = Rows(torch.empty(3, 0), torch.tensor([0.25, 0.5, 0.75]), torch.tensor([0, 0, 0]))
    options = {"fusion": "corrected", "min_per_class": 1, "normalize_confidence": True}
    # s = (1 − c)² of the scaled c is 1, 1/4 and 0; r̃ = (1 − s)·(.75 − .25) + .25
    expected = torch.tensor([0.25, 0.75 * 0.5 + 0.25, 0.75])
    torch.testing.assert_close(target_confidence(rows, queue, 2, **options), expected)
    options["normalize_confidence"] = False
    # without: s = .5625, .25, .0625 and (.5625 − .25) / .5 of the way
    expected[1] = 0.625 * 0.5 + 0.25
    torch.testing.assert_close(target_confidence(rows, queue, 2, **options), expected)
