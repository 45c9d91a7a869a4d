import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.models import MLP, Classifier
from vcc_infuse.types import Batch, Losses, Outputs, PseudoLabels, Step


def test_masked_loss_averages_over_the_whole_batch():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, -1.0]])
    pseudo = PseudoLabels(torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.0, 0.5]))
    each = [F.cross_entropy(logits[i : i + 1], pseudo.targets[i : i + 1]) for i in range(3)]
    assert pseudo.loss(logits) == pytest.approx(float((each[0] + 0.5 * each[2]) / 3))
    weighted = pseudo.loss(logits, torch.tensor([2.0, 5.0, 0.0]))
    assert weighted == pytest.approx(float(2 * each[0] / 3))


def test_soft_targets_are_cross_entropies_too():
    logits, targets = torch.randn(5, 3), torch.rand(5, 3).softmax(1)
    pseudo = PseudoLabels(targets, torch.ones(5))
    slow = sum(-(targets[i] * logits[i].log_softmax(0)).sum() for i in range(5)) / 5
    torch.testing.assert_close(pseudo.loss(logits), slow)
    assert torch.equal(pseudo.labels, targets.argmax(1))


def test_losses_leave_out_none():
    losses = Losses(a=torch.tensor(1.0), b=None, c=torch.tensor(2.5, dtype=torch.bfloat16))
    assert set(losses) == {"a", "c"}
    assert losses.total() == 3.5


def step(joint):
    torch.manual_seed(0)
    model = Classifier.build(MLP((8,)), (4,), 3).train()
    x = torch.randn(6, 4)
    batch = Batch(x, torch.zeros(6).long(), torch.arange(6), {}, torch.arange(0), torch.ones(0))
    return Step(batch, model, model, lambda *_: None, joint=joint)


@pytest.mark.parametrize("joint", [False, True])
def test_forward_weak_strong_gives_the_weak_view_no_gradient(joint):
    s = step(joint)
    weak, (a, b) = s.forward_weak_strong(torch.randn(5, 4), torch.randn(2, 4), torch.randn(3, 4))
    assert not weak.logits.requires_grad
    assert a.logits.requires_grad
    assert [len(o.logits) for o in (weak, a, b)] == [5, 2, 3]
    assert weak.at_inference is not joint
    assert (weak.with_gradient is not None) is joint


def test_joint_shares_batch_statistics_and_the_default_uses_running_ones():
    weak, x, u = torch.randn(5, 4) + 3, torch.randn(2, 4), torch.randn(3, 4)
    joint, apart = step(True), step(False)
    whole = joint.model(torch.cat([x, u, weak])).logits
    joint_weak, (joint_x, _) = joint.forward_weak_strong(weak, x, u)
    torch.testing.assert_close(joint_weak.logits, whole[5:])
    torch.testing.assert_close(joint_x.logits, whole[:2])
    with_statistics = copy.deepcopy(apart.model).eval()(weak).logits
    alone, (with_u, _) = apart.forward_weak_strong(weak, x, u)
    torch.testing.assert_close(alone.logits, with_statistics)
    torch.testing.assert_close(with_u.logits, apart.model(torch.cat([x, u])).logits[:2])
    assert apart.model.training


def test_the_weak_view_leaves_no_trace_in_the_statistics():
    s = step(False)
    before = copy.deepcopy(s.model.state_dict())
    s.forward_eval(torch.randn(5, 4) + 3)
    assert all(torch.equal(before[k], v) for k, v in s.model.state_dict().items())


def test_outputs_split_and_detach():
    out = nn.Linear(3, 2)(torch.randn(4, 3))
    parts = Outputs(out, out).split([1, 3])
    assert [len(p.logits) for p in parts] == [1, 3]
    assert not parts[0].detach().features.requires_grad
