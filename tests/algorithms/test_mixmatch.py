import copy

import pytest
import torch

from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, run, same
from vcc_infuse.algorithms import ops as mixup
from vcc_infuse.algorithms.mixmatch import MixMatch


@pytest.fixture
def fixed_mix(monkeypatch):
    """λ = 0.7, and each row is mixed with the fifth row after it."""
    monkeypatch.setattr(mixup, "sample_lambda", lambda alpha: 0.7)
    monkeypatch.setattr(torch, "randperm", lambda n: (torch.arange(n) + 5) % n)


def blended(rows):
    rows = [torch.as_tensor(row, dtype=torch.float64) for row in rows]
    return [0.7 * row + 0.3 * rows[(i + 5) % len(rows)] for i, row in enumerate(rows)]


def weighted_step(algorithm, ratio=1, **options):
    step = make_step(algorithm, ratio=ratio, **options)
    step.batch = step.batch._replace(weights=torch.linspace(0, 2, len(step.batch.weights)))
    return step


def guesses(step):
    pairs = zip(*(slow.predictions(step.model, step.batch.views[name]) for name in ("weak", "weak_2")), strict=True)
    return [slow.sharpened([(a + b) / 2 for a, b in zip(*pair, strict=True)], 0.5) for pair in pairs]


@pytest.mark.parametrize("ratio", [1, 2])
def test_losses_equal_the_slow_loop(fixed_mix, ratio):
    algorithm = MixMatch(weight=75, rampup_fraction=0.5)
    step = weighted_step(algorithm, ratio, number=10)
    step.model.eval()  # rows are independent
    batch, guess = step.batch, guesses(step)
    inputs = blended([*batch.x, *batch.views["weak"], *batch.views["weak_2"]])
    targets = [row.tolist() for row in blended([*map(slow.one_hot, batch.y.tolist()), *guess, *guess])]
    probs = slow.predictions(step.model, torch.stack(inputs).float())
    weights = [*batch.weights.tolist()] * 2
    rest = [w * slow.mean_squares(t, p) for w, t, p in zip(weights, targets[4:], probs[4:], strict=True)]
    losses = run(algorithm, step)
    expected = slow.mean([slow.cross_entropy(t, p) for t, p in zip(targets[:4], probs[:4], strict=True)])
    assert losses["labeled"].item() == pytest.approx(expected, rel=1e-4)
    assert losses["unlabeled"].item() == pytest.approx(75 * (0.1 / 0.5) * slow.mean(rest), rel=1e-4)


def test_the_guess_uses_batch_statistics_and_updates_none(fixed_mix):
    algorithm = MixMatch()
    step = weighted_step(algorithm)
    before = buffers(step.model)
    torch.testing.assert_close(algorithm.guess(step), torch.tensor(guesses(step)), rtol=1e-4, atol=1e-6)
    assert same(buffers(step.model), before)
    assert not algorithm.guess(step).requires_grad


def test_one_chunk_updates_the_statistics(fixed_mix):
    algorithm = MixMatch()
    step = weighted_step(algorithm)
    twin = copy.deepcopy(step.model)
    batch = step.batch
    inputs = blended([*batch.x, *batch.views["weak"], *batch.views["weak_2"]])
    twin(torch.stack(inputs).float()[::3])
    run(algorithm, step)
    for name, value in buffers(twin).items():
        torch.testing.assert_close(step.model.state_dict()[name], value)


def test_the_guess_is_logged_as_pseudo_label():
    algorithm = MixMatch()
    step = weighted_step(algorithm)
    pseudo = run(algorithm, step).pseudo
    assert pseudo.labels.tolist() == torch.tensor(guesses(step)).argmax(1).tolist()
    assert pseudo.weights.tolist() == [1] * 4
