import pytest
import torch

from vcc_infuse.calibrators.history import History
from vcc_infuse.calibrators.vcc.scores import kl


def rows(n: int, classes: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return (scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


def test_first_visit_is_unknown_then_the_last_prediction_is_known():
    history, p, ids = History(10, 3), rows(4, 3), torch.tensor([7, 1, 3, 0])
    assert not history.read(ids, 5).known.any()
    history.write(ids, p, 5)
    later = history.read(ids, 6)
    assert later.known.all()
    assert torch.allclose(later.probs, p, atol=1e-3)
    assert not history.read(torch.tensor([2, 9]), 6).known.any()


def test_half_precision_barely_changes_a_score():
    history, p, q = History(2000, 10), rows(2000, 10), rows(2000, 10, 1)
    history.write(torch.arange(2000), q, 0)
    stored = history.read(torch.arange(2000), 1).probs
    # Rounding to 11 bits, and steps of 6e-8 below 6e-5, which matter where q is tiny.
    assert ((stored - q).abs() <= q * 2**-11 + 2**-25).all()
    usual = q.amin(1) > 1e-4
    assert usual.sum() > 100
    assert (kl(p, stored) - kl(p, q))[usual].abs().max() < 1e-3


def test_an_old_visit_does_not_count():
    history, ids = History(3, 2, max_age=10), torch.arange(3)
    history.write(ids, rows(3, 2), 0)
    assert history.read(ids, 10).known.all()
    assert not history.read(ids, 11).known.any()


@pytest.mark.parametrize("window", [1, 3])
def test_window_is_a_running_mean(window):
    history, ids, mean = History(2, 4, window=window), torch.arange(2), None
    for step in range(6):
        p = rows(2, 4, step)
        mean = p if mean is None else mean + (p - mean) / min(step + 1, window)
        history.write(ids, p, step)
    assert torch.allclose(history.read(ids, 6).probs, mean, atol=2e-3)
    if window == 1:
        assert torch.allclose(mean, p, atol=1e-6)


def test_an_old_past_is_not_averaged_in():
    history, ids, fresh = History(2, 4, window=3, max_age=5), torch.arange(2), rows(2, 4, 1)
    history.write(ids, rows(2, 4), 0)
    history.write(ids, fresh, 20)
    assert torch.allclose(history.read(ids, 21).probs, fresh, atol=1e-3)


def test_compact_form_keeps_the_top_k_and_spreads_the_rest():
    history, p, ids = History(50, 200, top_k=8), rows(50, 200), torch.arange(50)
    history.write(ids, p, 0)
    stored = history.read(ids, 1).probs
    for own, kept in zip(p, stored, strict=True):
        best = own.topk(8).indices
        assert torch.allclose(kept[best], own[best], atol=1e-3)
        rest = torch.ones(200, dtype=torch.bool).index_fill(0, best, False)
        assert torch.allclose(kept[rest], (1 - own[best].sum()).expand(192) / 192, atol=1e-4)
    assert torch.allclose(stored.sum(1), torch.ones(50), atol=2e-3)
    dense, compact = (
        sum(b.numel() * b.element_size() for b in History(1000, 1000, top_k=top_k).buffers()) for top_k in (0, 8)
    )
    assert compact < dense / 40


def test_state_survives_saving():
    history, ids = History(5, 200, top_k=4), torch.arange(5)
    history.write(ids, rows(5, 200), 3)
    other = History(5, 200, top_k=4)
    other.load_state_dict(history.state_dict())
    assert torch.equal(other.read(ids, 4).probs, history.read(ids, 4).probs)


@pytest.mark.parametrize("top_k", [0, 4])
def test_some_classes_are_those_of_all(top_k):
    history, ids = History(30, 12, top_k=top_k, max_age=5), torch.randint(30, (6, 3))
    history.write(torch.arange(0, 30, 2), rows(15, 12), 3)
    history.write(torch.arange(1, 20, 4), rows(5, 12, 1), 9)
    classes = torch.randint(12, (6, 4))
    probs, known = history.read_classes(ids, classes, 10)
    for row in range(6):
        whole = history.read(ids[row], 10)
        assert torch.equal(known[row], whole.known)
        torch.testing.assert_close(probs[row], whole.probs[:, classes[row]].T)
    assert known.any()
    assert not known.all()
