import pytest
import torch

from vcc_infuse.calibrators.base import Softmax, set_top_confidence
from vcc_infuse.types import Outputs


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_label_sum_and_proportions_are_kept(classes):
    probs = (3 * torch.randn(200, classes, dtype=torch.float64)).softmax(1)
    wanted = torch.rand(200, dtype=torch.float64)
    moved = set_top_confidence(probs, wanted)
    assert torch.allclose(moved.sum(1), torch.ones(200).double())
    assert torch.equal(moved.argmax(1), probs.argmax(1))
    free = wanted > 0.5
    assert torch.allclose(moved.amax(1)[free], wanted[free])
    assert (moved.amax(1) >= wanted - 1e-6).all()
    scale = (1 - wanted) / (1 - probs.amax(1))
    others = torch.ones_like(probs).scatter(1, probs.argmax(1, keepdim=True), 0).bool()
    oracle = probs * scale[:, None]
    assert torch.allclose(moved[free][others[free]], oracle[free][others[free]])


def test_a_certain_prediction_spreads_the_rest_evenly():
    moved = set_top_confidence(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([0.8]))
    assert torch.allclose(moved, torch.tensor([[0.1, 0.8, 0.1]]))


def test_softmax_predicts_the_largest_probability():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]])
    expected = (logits.double().exp() / logits.double().exp().sum(1, keepdim=True)).amax(1)
    torch.testing.assert_close(Softmax().predict(Outputs(logits, logits)), expected)
