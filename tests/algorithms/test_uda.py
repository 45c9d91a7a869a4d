import math

import pytest
import torch

from tests.helpers.tiny import make_step, pseudo_labels, random_probs, run
from vcc_infuse.algorithms.uda import SCHEDULES, UDA, annealed_loss
from vcc_infuse.types import Calibrated


def test_targets_are_sharpened():
    method = UDA()
    step = make_step(method)
    probs = torch.tensor([[0.85, 0.1, 0.05], [0.5, 0.3, 0.2]])
    pseudo = pseudo_labels(method, step, probs)
    for row, target in zip(probs.tolist(), pseudo.targets, strict=True):
        powers = [p**2.5 for p in row]
        torch.testing.assert_close(target, torch.tensor([p / sum(powers) for p in powers]))
    assert pseudo.weights.tolist() == [1, 0]
    assert pseudo.targets[0, 0] > 0.99 > probs[0, 0]


def test_the_confidence_of_the_calibrator_is_used():
    method = UDA()
    step = make_step(method)
    pseudo = method.pseudo_label(Calibrated(random_probs(3), torch.tensor([0.79, 0.8, 0.9])), step)
    assert pseudo.weights.tolist() == [0, 1, 1]


def test_unlabeled_loss_is_soft_cross_entropy_over_the_whole_batch():
    method = UDA(threshold=0.4, weight=3.0)
    step = make_step(method)
    step.model.eval()
    terms = run(method, step)
    weak = step.model(step.batch.views["weak"]).logits
    targets = (weak / 0.4).softmax(1).tolist()
    kept = [max(row) >= 0.4 for row in weak.softmax(1).tolist()]
    logs = step.model(step.batch.views["strong"]).logits.log_softmax(1).tolist()
    each = [-sum(t * v for t, v in zip(*rows, strict=True)) for rows in zip(targets, logs, strict=True)]
    total = sum(k * loss for k, loss in zip(kept, each, strict=True))
    assert 0 < sum(kept) < len(kept)
    assert terms["unlabeled"].item() == pytest.approx(3 * total / len(kept), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "values"),
    [("none", [1, 1, 1]), ("linear", [0, 0.5, 1]), ("exp", [math.exp(-5), math.exp(-2.5), 1]),
     ("log", [0, 1 - math.exp(-2.5), 1 - math.exp(-5)])],
)  # fmt: skip
def test_schedules(name, values):
    assert [SCHEDULES[name](p) for p in (0, 0.5, 1)] == pytest.approx(values)


def test_annealing_uses_the_probability_of_the_true_class():
    """Released up to 0.5·(1 − 1/3) + 1/3 = 2/3: the first is already learned; the second is confident but wrong."""
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.5, 0.3, 0.2]])
    loss = annealed_loss(probs.log(), torch.tensor([0, 1, 0]), 0.5)
    assert loss.item() == pytest.approx(-(math.log(0.1) + math.log(0.5)) / 2, rel=1e-5)
    assert annealed_loss(probs.log(), torch.tensor([0, 0, 0]), 0.0).item() == 0


def test_without_annealing_the_labeled_loss_is_plain():
    method = UDA()
    step = make_step(method)
    step.model.eval()
    plain = torch.nn.functional.cross_entropy(step.model(step.batch.x).logits, step.batch.y)
    torch.testing.assert_close(run(method, step)["labeled"], plain)
