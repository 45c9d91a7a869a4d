import pytest
import torch

from tests.helpers.tiny import buffers, random_probs, same, two_processes
from vcc_infuse.algorithms.ops import EMAAlignment, QueueAlignment


def aligned_by_hand(probs, mean, target):
    rows = []
    for row in probs.tolist():
        scaled = [p * (t + 1e-6) / (m + 1e-6) for p, t, m in zip(row, target, mean, strict=True)]
        rows.append([s / sum(scaled) for s in scaled])
    return torch.tensor(rows)


def test_ema_is_updated_with_the_batch_before_use():
    torch.manual_seed(0)
    target = torch.tensor([0.5, 0.3, 0.2])
    module = EMAAlignment(3, momentum=0.9, target=2 * target)
    mean = None
    for _ in range(4):
        probs = random_probs(5)
        batch = probs.mean(0)
        mean = batch if mean is None else 0.9 * mean + 0.1 * batch
        torch.testing.assert_close(module(probs), aligned_by_hand(probs, mean.tolist(), target.tolist()))


def test_queue_averages_the_last_batches():
    torch.manual_seed(0)
    module, seen = QueueAlignment(3, size=3), []
    for _ in range(5):
        probs = random_probs(5)
        seen.append(probs.mean(0))
        mean = torch.stack(seen[-3:]).mean(0)
        torch.testing.assert_close(module(probs), aligned_by_hand(probs, mean.tolist(), [1 / 3] * 3))


@pytest.mark.parametrize("module", [EMAAlignment(3), QueueAlignment(3)])
def test_alignment_makes_a_constant_batch_uniform_and_rows_sum_to_one(module):
    out = module(torch.tensor([[0.7, 0.2, 0.1]] * 4))
    torch.testing.assert_close(out, torch.full((4, 3), 1 / 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(module(random_probs(6)).sum(1), torch.ones(6))


@pytest.mark.parametrize("make", [EMAAlignment, QueueAlignment])
def test_eval_mode_changes_nothing_and_starts_as_identity(make):
    module, probs = make(3).eval(), random_probs(6)
    before = buffers(module)
    torch.testing.assert_close(module(probs), probs)
    assert same(before, buffers(module))


@pytest.mark.parametrize("make", [EMAAlignment, QueueAlignment])
def test_two_processes_keep_the_single_process_state(make):
    probs = [random_probs(6), random_probs(6)]
    alone = make(3)
    whole = [alone(p) for p in probs]

    def work(rank, gather):
        module = make(3)
        return module, [module(p[rank::2], gather) for p in probs]

    for rank, (module, parts) in enumerate(two_processes(work)):
        for name, value in buffers(module).items():
            torch.testing.assert_close(value, alone.state_dict()[name])
        for part, full in zip(parts, whole, strict=True):
            torch.testing.assert_close(part, full[rank::2])


@pytest.mark.parametrize("make", [EMAAlignment, QueueAlignment])
def test_state_survives_a_round_trip(make):
    one, other, probs = make(3), make(3), random_probs(6)
    one(random_probs(6))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(probs), other(probs))
