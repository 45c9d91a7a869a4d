import copy

import numpy as np
import pytest
import scipy.stats
import torch

from tests.algorithms.test_mixmatch import blended, fixed_mix  # noqa: F401
from tests.helpers import slow
from tests.helpers.tiny import buffers, make_step, make_task, run
from vcc_infuse.algorithms.remixmatch import ReMixMatch, check_square, rotate
from vcc_infuse.errors import UserError
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.types import Batch, Step


def image_step(algorithm, number=10, ratio=1, seed=0):
    """A tiny step on 1×4×4 images, labels 0 1 2 0, random core-set weights."""
    torch.manual_seed(seed)
    count = 4 * ratio
    model = Classifier.build(SmallConv(width=2), (1, 4, 4), 3).train()
    algorithm.setup(model, make_task(ratio=ratio, labeled=4))
    algorithm.train()
    views = {name: torch.randn(count, 1, 4, 4) for name in algorithm.views}
    batch = Batch(
        torch.randn(4, 1, 4, 4),
        torch.tensor([0, 1, 2, 0]),
        torch.arange(4),
        views,
        torch.arange(count),
        torch.rand(count),
    )
    return Step(batch, model, copy.deepcopy(model).eval(), None, number, 100)


def guesses(step, target):
    """The running mean starts at the first batch, so that alignment divides by the mean of that batch."""
    probs = slow.predictions(step.model, step.batch.views["weak"])
    means = [slow.mean(column) for column in zip(*probs, strict=True)]
    scale = [(t + 1e-6) / (m + 1e-6) for t, m in zip(target, means, strict=True)]
    aligned = [[p * s for p, s in zip(row, scale, strict=True)] for row in probs]
    return [slow.sharpened([v / sum(row) for v in row], 0.5) for row in aligned]


def weighted_mean(weights, targets, probs):
    return slow.mean([w * slow.cross_entropy(*pair) for w, *pair in zip(weights, targets, probs, strict=True)])


@pytest.mark.parametrize(("target", "frequencies"), [("labeled", [0.5, 0.25, 0.25]), ("uniform", [1 / 3] * 3)])
@pytest.mark.parametrize("ratio", [1, 2])
def test_losses_equal_the_slow_loop(fixed_mix, target, frequencies, ratio):  # noqa: F811
    algorithm = ReMixMatch(rampup_fraction=0.5, target=target)
    step = image_step(algorithm, ratio=ratio)
    step.model.eval()  # rows are independent
    views, weights = step.batch.views, step.batch.weights.tolist()
    guess = guesses(step, frequencies)
    inputs = blended([*step.batch.x, *views["strong"], *views["strong_2"], *views["weak"]])
    targets = [row.tolist() for row in blended([*map(slow.one_hot, [0, 1, 2, 0]), *guess, *guess, *guess])]
    probs = slow.predictions(step.model, torch.stack(inputs).float())
    strong = slow.predictions(step.model, views["strong"])
    losses = run(algorithm, step)
    rise = 0.1 / 0.5
    assert losses["labeled"].item() == pytest.approx(weighted_mean([1] * 4, targets[:4], probs[:4]), rel=1e-4)
    mixed = weighted_mean(weights * 3, targets[4:], probs[4:])
    assert losses["unlabeled"].item() == pytest.approx(1.5 * rise * mixed, rel=1e-4)
    assert losses["strong"].item() == pytest.approx(0.5 * rise * weighted_mean(weights, guess, strong), rel=1e-4)


def test_the_rotation_loss_equals_the_slow_loop(monkeypatch):
    algorithm = ReMixMatch(rotation_weight=0.5)
    step = image_step(algorithm, number=0)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor([3, 0, 1, 2]))
    images = step.batch.views["strong"].numpy()
    turned = np.stack([np.rot90(image, k, (1, 2)) for image, k in zip(images, [3, 0, 1, 2], strict=True)])
    features = copy.deepcopy(step.model)(torch.from_numpy(turned)).features
    probs = [slow.softmax(row) for row in algorithm.rotation(features).tolist()]
    truth = [slow.one_hot(k, 4) for k in (3, 0, 1, 2)]
    expected = 0.5 * weighted_mean(step.batch.weights.tolist(), truth, probs)
    assert run(algorithm, step)["rotation"].item() == pytest.approx(expected, rel=1e-4)


def test_rotation_is_numpys():
    images, turns = torch.randn(8, 3, 5, 5), torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    expected = [np.rot90(image, k, (1, 2)) for image, k in zip(images.numpy(), turns.tolist(), strict=True)]
    assert np.array_equal(rotate(images, turns).numpy(), np.stack(expected))


def test_all_rotations_are_equally_frequent(monkeypatch):
    algorithm, seen = ReMixMatch(), []
    step = image_step(algorithm, ratio=5)
    original = torch.randint
    monkeypatch.setattr(torch, "randint", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1])
    for _ in range(20):
        run(algorithm, step)
    counts = torch.cat(seen).bincount(minlength=4)
    assert counts.sum() == 400
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 0.001


def test_the_rotation_loss_does_not_reach_the_classifier():
    algorithm = ReMixMatch()
    step = image_step(algorithm)
    reached = slow.gradients(run(algorithm, step)["rotation"], step.model)
    assert reached.keys() == {name for name, _ in step.model.named_parameters() if not name.startswith("head")}


def test_guesses_carry_no_gradient():
    algorithm = ReMixMatch()
    assert not algorithm.guess(image_step(algorithm)).requires_grad


def test_one_chunk_updates_the_statistics(fixed_mix):  # noqa: F811
    algorithm = ReMixMatch()
    step = image_step(algorithm)
    twin, views = copy.deepcopy(step.model), step.batch.views
    inputs = blended([*step.batch.x, *views["strong"], *views["strong_2"], *views["weak"]])
    twin(torch.stack(inputs).float()[::4])
    run(algorithm, step)
    for name, value in buffers(twin).items():
        torch.testing.assert_close(step.model.state_dict()[name], value)


def test_refuses_inputs_that_cannot_be_rotated():
    algorithm = ReMixMatch()
    step = make_step(algorithm, ratio=1)
    with pytest.raises(UserError, match="cannot rotate vectors; choose MixMatch"):
        run(algorithm, step)
    with pytest.raises(UserError, match="square images, got 4×6"):
        check_square(torch.zeros(2, 3, 4, 6))
