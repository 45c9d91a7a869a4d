import pytest
import torch
from tests.helpers.tiny import buffers, make_step, pseudo_labels, random_probs, run, same

from vcc_infuse import VCC, Balance, FixMatch, FlexMatch, RobustVCC, SoftMatch
from vcc_infuse.types import Calibrated, WeakOutputs

ROWS = 600


def biased(rows=ROWS):
    """Predictions of three classes, of which class 2 never gets much confidence."""
    probs = random_probs(rows, 3, 3.0)
    flat = probs.argmax(1) == 2
    return torch.where(flat[:, None], (0.3 * probs.log()).softmax(1), probs)


def balanced(method, step, probs, confidence=None):
    """What the wrapper makes of these softmax probabilities, or of another `confidence` in the same labels."""
    weak = WeakOutputs(probs.log(), torch.randn(len(probs), 5))
    given = Calibrated(probs, probs.amax(1) if confidence is None else confidence, outputs=weak)
    return method.correct(given, step)


def ready(**options):
    method = Balance(queue_size=ROWS, **options)
    return method, make_step(method, number=50)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("calibrated", [False, True], ids=["softmax", "calibrator"])
def test_as_many_are_selected_as_by_the_softmax_and_the_same_fraction_of_every_class(threshold, calibrated):
    torch.manual_seed(0)
    probs = biased()
    method, step = ready()
    order = torch.rand(ROWS) if calibrated else probs.amax(1)
    out = balanced(method, step, probs, order)
    total = (probs.amax(1) >= threshold).float().mean()
    for label in range(3):
        own = probs.argmax(1) == label
        assert (out.confidence[own] >= threshold).float().mean().item() == pytest.approx(total.item(), abs=0.01)
        # Above one half no runner-up can bound the confidence.
        free = own & (out.confidence > 0.5)
        assert torch.equal(out.confidence[free].argsort(), order[free].argsort())
    assert torch.equal(out.labels, probs.argmax(1))
    assert not (probs.amax(1)[probs.argmax(1) == 2] >= 0.95).any(), "the case needs no balance"


def test_it_is_the_selection_of_robust_vcc():
    """With the reconstruction of the same calibrator as its score, and the same examples in the queue."""
    options = {"scores": (), "min_per_class": 2, "residual": True}
    torch.manual_seed(0)
    robust = RobustVCC(target_fraction=1.0, warmup_fraction=0.0, **options)
    step = make_step(FixMatch(), calibrator=robust, number=50, ratio=8, pool=40)
    method = Balance(min_per_class=2)
    paper_step = make_step(method, calibrator=VCC(**options), number=50, ratio=8, pool=40)
    for p in robust.network.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    paper_step.calibrate.network.load_state_dict(robust.network.state_dict())
    weak = step.batch.views["weak"]
    expected = step.confidence(weak, step.forward_weak(weak))
    outputs = step.weak
    got = method.correct(paper_step.confidence(weak, outputs), paper_step)
    torch.testing.assert_close(got.probs, expected.probs)
    assert not torch.allclose(got.confidence, outputs.logits.softmax(1).amax(1), atol=1e-3)


def test_nothing_changes_during_warmup_but_the_queue_fills():
    method = Balance(min_per_class=1, warmup_fraction=0.5)
    step = make_step(method, number=49)
    probs = biased(50)
    assert torch.equal(balanced(method, step, probs).confidence, probs.amax(1))
    assert method.scale.memory.filled == 50
    step.number = 50
    assert not torch.allclose(balanced(method, step, probs).confidence, probs.amax(1), atol=1e-2)


def test_a_class_with_few_examples_has_its_softmax_confidence():
    torch.manual_seed(0)
    method, step = ready(min_per_class=50)
    probs = torch.cat([biased(300)[:, [0, 1, 2]]])
    rare = probs.argmax(1) == 2
    probs = torch.cat([probs[~rare], probs[rare][:49]])
    rare = probs.argmax(1) == 2
    confidence = torch.rand(len(probs))
    out = balanced(method, step, probs, confidence)
    torch.testing.assert_close(out.confidence[rare], probs.amax(1)[rare])
    assert not torch.allclose(out.confidence[~rare], probs.amax(1)[~rare], atol=1e-2)


def test_the_loss_of_the_calibrator_is_kept_and_nothing_has_a_gradient():
    method, step = ready()
    probs = biased().requires_grad_()
    weak = WeakOutputs(probs.detach().log(), torch.randn(ROWS, 5))
    loss = torch.ones(())
    out = method.correct(Calibrated(probs, probs.amax(1), loss, outputs=weak), step)
    assert out.loss is loss
    assert not out.probs.requires_grad


def test_eval_mode_keeps_the_queue():
    method, step = ready()
    balanced(method, step, biased())
    method.eval()
    before = buffers(method)
    balanced(method, step, biased())
    assert same(before, buffers(method))


@pytest.mark.parametrize("base", [FixMatch, FlexMatch, SoftMatch])
@pytest.mark.parametrize("calibrator", [None, VCC(min_per_class=1)], ids=["softmax", "VCC"])
def test_it_works_with_any_method_and_calibrator(base, calibrator):
    method = Balance(base(), min_per_class=1)
    step = make_step(method, number=50, calibrator=calibrator)
    losses = run(method, step)
    assert ("calibration" in losses) == (calibrator is not None)
    assert losses.total().isfinite()


def test_pseudo_labels_use_the_balanced_confidence():
    torch.manual_seed(0)
    method, step = ready(base=FixMatch(threshold=0.97))
    probs = biased()
    step.weak = WeakOutputs(probs.log(), torch.randn(ROWS, 5))
    weights = pseudo_labels(method, step, probs, torch.arange(ROWS) % 20).weights
    label = probs.argmax(1)
    assert weights[label == 2].mean() > 0.9 * weights.mean()
    assert not (probs.amax(1)[label == 2] >= 0.97).any()
