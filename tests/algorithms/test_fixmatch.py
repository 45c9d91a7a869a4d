import copy

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.tiny import make_step
from vcc_infuse import FixMatch, FullySupervised, PseudoLabel, Supervised, UserError
from vcc_infuse.types import Calibrated


def calibrated():
    probs = torch.tensor([[0.96, 0.03, 0.01], [0.2, 0.7, 0.1], [0.02, 0.03, 0.95], [0.4, 0.3, 0.3]])
    return Calibrated(probs, probs.amax(1))


def test_hard_labels_at_and_above_the_threshold():
    pseudo = FixMatch(threshold=0.95).pseudo_label(calibrated(), None)
    assert pseudo.targets.tolist() == [0, 1, 2, 0]
    assert pseudo.weights.tolist() == [1, 0, 1, 0]


def test_the_threshold_applies_to_the_calibrated_confidence():
    given = calibrated()._replace(confidence=torch.tensor([0.1, 0.99, 0.94, 0.95]))
    pseudo = FixMatch().pseudo_label(given, None)
    assert pseudo.weights.tolist() == [0, 1, 0, 1]
    assert pseudo.targets.tolist() == [0, 1, 2, 0]


def slow_unlabeled(step, threshold):
    """The loss of FixMatch from its definition, one example at a time."""
    with torch.no_grad():
        q = copy.deepcopy(step.model).eval()(step.batch.views["weak"]).logits.softmax(1)
    x, strong = step.batch.x, step.batch.views["strong"]
    logits = step.model(torch.cat([x, strong])).logits[len(x) :]
    total = 0.0
    for i in range(len(q)):
        if q[i].max() >= threshold:
            total = total + F.cross_entropy(logits[i : i + 1], q[i].argmax()[None])
    return total / len(q)


def test_losses_match_the_definition():
    method = FixMatch(threshold=0.4, weight=2.0)
    step = make_step(method)
    expected = 2 * slow_unlabeled(step, 0.4)
    (losses,) = method.losses(step)
    torch.testing.assert_close(losses["unlabeled"], expected)
    assert 0 < losses.pseudo.weights.mean() < 1, "some examples must be kept and some dropped"


def test_pseudo_label_uses_a_single_view_and_ramps_up():
    terms = {}
    for number in (0, 20, 40, 90):
        method = PseudoLabel(threshold=0.0)
        step = make_step(method, number=number, steps=100)
        (losses,) = method.losses(step)
        terms[number] = losses["unlabeled"].item()
    assert terms[0] == 0
    assert terms[20] == pytest.approx(terms[40] / 2, rel=1e-5)
    assert terms[40] == pytest.approx(terms[90], rel=1e-5)
    logits = step.model(step.batch.views["weak"]).logits
    expected = F.cross_entropy(logits, logits.argmax(1))
    assert terms[90] == pytest.approx(expected.item(), rel=1e-4)


def test_only_labeled_images_update_the_statistics_of_pseudo_label():
    method = PseudoLabel()
    step = make_step(method)
    expected = make_step(Supervised())
    expected.batch = expected.batch._replace(x=step.batch.x, y=step.batch.y)
    next(method.losses(step))
    next(Supervised().losses(expected))
    for (name, a), (_, b) in zip(step.model.named_buffers(), expected.model.named_buffers(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("kind", [Supervised, FullySupervised])
def test_supervised_is_plain_cross_entropy(kind):
    step = make_step(kind())
    (losses,) = kind().losses(step)
    torch.testing.assert_close(losses["labeled"], F.cross_entropy(step.model(step.batch.x).logits, step.batch.y))
    assert set(losses) == {"labeled"}


def test_a_threshold_outside_its_range_is_refused():
    with pytest.raises(UserError, match=r"threshold must be a number in \[0, 1\], got 1.5"):
        FixMatch(threshold=1.5)
