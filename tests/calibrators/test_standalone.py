"""A calibrator in a loop of one's own does exactly what it does under the Trainer."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tiny import buffers, same
from torch import nn

from vcc_infuse import MMCE, VCC, Evidence, HardViewTemperature, RobustVCC, Softmax, TemperatureScaling, UserError
from vcc_infuse.models import Classifier
from vcc_infuse.models.classifier import EMA
from vcc_infuse.types import Batch, Outputs, Step, Task

POOL, LABELED, CLASSES, BATCH, STEPS, INPUTS = 60, 12, 3, 20, 8, 6
Y = torch.arange(LABELED) % CLASSES
ARGUMENTS = dict(classes=CLASSES, pool_size=POOL, batch_size=BATCH, steps=STEPS)
torch.manual_seed(0)
X = 2 * torch.randn(POOL, INPUTS)


class ReturnsLogits(nn.Module):
    """A model as most people have it, with batch normalization and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.fc(self.body(x))


class ReturnsBoth(ReturnsLogits):
    def forward(self, x):
        features = self.body(x)
        return self.fc(features), features


def twin(model):
    """The same weights as a Classifier of the library."""
    return Classifier(copy.deepcopy(model.body), copy.deepcopy(model.fc))


def batches(start=0, stop=STEPS):
    """Weak views with their pool ids, labeled images, and strong views of both; seeds what is random in each step."""
    for number in range(start, stop):
        torch.manual_seed(100 + number)
        pool_ids, ids = torch.randperm(POOL)[:BATCH], torch.randint(LABELED, (8,))
        weak, x = X[pool_ids] + 0.1 * torch.randn(BATCH, INPUTS), X[ids] + 0.1 * torch.randn(8, INPUTS)
        views = {"strong": weak + torch.randn_like(weak), "labeled_strong": x + torch.randn_like(x)}
        yield weak, pool_ids, (x, Y[ids], ids), views


def total(logits, y, loss):
    return F.cross_entropy(logits, y) + (0 if loss is None else loss)


def internal(calibrator, model, decay=0.999):
    """Confidence and loss of each step, as the Trainer computes them."""
    torch.manual_seed(1)
    calibrator.setup(model, Task(CLASSES, LABELED, POOL, Y.bincount(), STEPS, BATCH, BATCH))
    calibrator.train()
    ema = EMA(model, decay)
    optimizer = torch.optim.SGD([*model.parameters(), *calibrator.parameters()], lr=0.1)
    seen = []
    for number, (weak, pool_ids, labeled, views) in enumerate(batches()):
        batch = Batch(*labeled, {"weak": weak, **views}, pool_ids, torch.ones(BATCH), Y[:6])
        batch.views["held_out"] = X[:6]
        step = Step(batch, model, ema.module, calibrator, number, STEPS)
        calibrated = step.confidence(weak, step.forward_weak(weak))
        optimizer.zero_grad()
        total(model(labeled[0]).logits, labeled[1], calibrated.loss).backward()
        optimizer.step()
        ema.update(model, number)
        seen.append((calibrated.confidence, calibrated.loss))
    return seen, ema


def own_loop(standalone, model, outputs_of, start=0, stop=STEPS, optimizer=None):
    """The same in a plain loop."""
    optimizer = optimizer or torch.optim.SGD([*model.parameters(), *standalone.parameters()], lr=0.1)
    seen = []
    for weak, pool_ids, labeled, views in batches(start, stop):
        confidence, loss = standalone.update(
            weak, outputs_of(model, weak), pool_ids, labeled=labeled, held_out=(X[:6], Y[:6]), views=views
        )
        optimizer.zero_grad()
        result = model(labeled[0])
        total(result[0] if isinstance(result, tuple) else result, labeled[1], loss).backward()
        optimizer.step()
        seen.append((confidence, loss))
    return seen


def computed_here(model, images):
    return None


def in_eval_mode(model, images):
    model.eval()
    with torch.no_grad():
        outputs = model(images)
    model.train()
    return outputs


def assert_equal(one, other):
    assert len(one) == len(other) == STEPS
    for (confidence, loss), (expected, expected_loss) in zip(one, other, strict=True):
        assert torch.equal(confidence, expected)
        assert (loss is None) == (expected_loss is None)
        assert loss is None or torch.equal(loss, expected_loss)
        assert not confidence.requires_grad


CASES = {
    "VCC": (VCC, dict(min_per_class=2)),
    "VCC-mlp": (VCC, dict(min_per_class=2, reconstruct="mlp", output="distribution")),
    "VCC-joint": (VCC, dict(min_per_class=2, joint=True)),
    "RobustVCC": (RobustVCC, dict(min_per_class=2)),
    "Evidence": (Evidence, dict(every=1, min_per_class=2, neighbors=3)),
    "TemperatureScaling": (TemperatureScaling, dict(every=2)),
    "HardViewTemperature": (HardViewTemperature, {}),
    "MMCE": (MMCE, {}),
    "Softmax": (Softmax, {}),
}


@pytest.mark.parametrize("model", [ReturnsLogits, ReturnsBoth])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_of_ones_own_gives_what_the_trainer_gives(case, model):
    kind, options = CASES[case]
    mine = model()
    expected, ema = internal(kind(**options), twin(mine))
    torch.manual_seed(1)
    standalone = kind.for_model(mine, **ARGUMENTS, y=Y, **options)
    assert_equal(own_loop(standalone, mine, computed_here), expected)
    standalone.update_ema()
    torch.testing.assert_close(standalone.ema(X).logits, ema.module(X).logits, rtol=0, atol=0)


@pytest.mark.parametrize("case", ["VCC", "Evidence"])
def test_the_outputs_may_come_from_the_loop(case):
    """Computed in eval mode, they are those of the Trainer; the view score evaluates the model once more."""
    kind, options = CASES[case]
    mine = ReturnsLogits()
    expected, _ = internal(kind(**options), twin(mine))
    torch.manual_seed(1)
    standalone = kind.for_model(mine, **ARGUMENTS, y=Y, **options)
    assert_equal(own_loop(standalone, mine, in_eval_mode), expected)


def test_a_classifier_of_the_library_is_used_as_it_is():
    mine = twin(ReturnsLogits())
    expected, _ = internal(VCC(min_per_class=2), copy.deepcopy(mine))
    torch.manual_seed(1)
    standalone = VCC.for_model(mine, **ARGUMENTS, min_per_class=2)
    assert_equal(own_loop(standalone, mine, computed_here), expected)


@pytest.mark.parametrize("case", ["VCC", "Evidence"])
def test_a_loop_resumes_where_it_stopped(case):
    kind, options = CASES[case]
    mine = ReturnsLogits()
    again = copy.deepcopy(mine)
    torch.manual_seed(1)
    standalone = kind.for_model(mine, **ARGUMENTS, y=Y, **options)
    expected = own_loop(standalone, mine, computed_here)
    torch.manual_seed(1)
    first = kind.for_model(again, **ARGUMENTS, y=Y, **options)
    seen = own_loop(first, again, computed_here, stop=4)
    other = copy.deepcopy(again)
    second = kind.for_model(other, **ARGUMENTS, y=Y, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    seen += own_loop(second, other, computed_here, start=4)
    assert_equal(seen, expected)
    assert same(buffers(second.calibrator), buffers(standalone.calibrator))


def test_parameters_are_those_of_the_calibrator():
    standalone = VCC.for_model(ReturnsLogits(), **ARGUMENTS)
    assert len(list(standalone.parameters())) == len(list(standalone.calibrator.parameters())) > 0
    assert any(name.startswith("_own_ema") for name in standalone.state_dict())


def test_an_averaged_model_of_ones_own_is_used_and_left_alone():
    mine, average = ReturnsLogits(), ReturnsLogits()
    before = buffers(average)
    standalone = VCC.for_model(mine, **ARGUMENTS, ema=average, scores=("view",), min_per_class=1)
    own_loop(standalone, mine, computed_here)
    assert same(before, buffers(average))
    assert standalone.calibrator.queue["scores"].max() > 0.01
    assert not any("ema" in name for name in standalone.state_dict())


def test_modes_of_the_model_are_kept():
    mine = ReturnsLogits().train()
    mine.body[1].eval()
    standalone = VCC.for_model(mine, **ARGUMENTS)
    standalone.update(X[:4], None, torch.arange(4))
    assert mine.training
    assert not mine.body[1].training
    assert mine.body[3].training


def test_eval_mode_changes_nothing():
    standalone = VCC.for_model(ReturnsLogits(), **ARGUMENTS)
    standalone.update(X[:4], None, torch.arange(4))
    standalone.update_ema()
    before = {name: copy.deepcopy(value) for name, value in standalone.state_dict().items()}
    confidence, loss = standalone.eval().update(X[4:8], None, torch.arange(4))
    assert loss is None
    assert confidence.shape == (4,)
    extra = before.pop("_extra_state")
    state = standalone.state_dict()
    assert state.pop("_extra_state") == extra
    assert same(before, state)


@pytest.mark.parametrize("averaged", [False, True])
def test_prediction_takes_what_the_model_returns(averaged):
    mine = ReturnsLogits().eval()
    standalone = VCC.for_model(mine, **ARGUMENTS)
    logits = standalone.ema(X).logits if averaged else mine(X)
    by_pair = standalone.predict((logits, mine.body(X)))
    assert torch.equal(standalone.predict(logits), by_pair)
    assert by_pair.shape == (POOL,)
    assert not by_pair.requires_grad


def test_the_model_can_still_be_copied_and_saved(tmp_path):
    mine = ReturnsLogits()
    VCC.for_model(mine, **ARGUMENTS)
    mine(X).sum().backward()
    copied = copy.deepcopy(mine).eval()
    torch.save(mine, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False).eval()
    assert torch.equal(copied(X), loaded(X))


GOOD = Outputs(torch.zeros(4, CLASSES), torch.zeros(4, 16))
WRONG = {
    "pool_ids must lie in 0…59, got 3…60": (VCC, {}, (GOOD, torch.tensor([3, 4, 5, 60]))),
    "pool_ids must lie in 0…59, got -1…2": (VCC, {}, (GOOD, torch.tensor([-1, 0, 1, 2]))),
    "pool_ids must be a long tensor (4,), got float32 (4,)": (VCC, {}, (GOOD, torch.zeros(4))),
    "pool_ids must be a long tensor (4,), got int64 (3,)": (VCC, {}, (GOOD, torch.arange(3))),
    "logits must be (batch, 3), got (4, 5)": (VCC, {}, ((torch.zeros(4, 5), GOOD.features), torch.arange(4))),
    "features must be (batch, 16), got (4, 2)": (VCC, {}, ((GOOD.logits, torch.zeros(4, 2)), torch.arange(4))),
    "outputs has 5 rows for 4 images": (VCC, {}, (Outputs(torch.zeros(5, 3), torch.zeros(5, 16)), torch.arange(4))),
    "logits has NaN or infinite values": (VCC, {}, ((GOOD.logits / 0, GOOD.features), torch.arange(4))),
    "outputs are logits without features": (VCC, {}, (torch.rand(4, CLASSES), torch.arange(4))),
    "outputs must be logits or (logits, features), got dict": (VCC, {}, ({}, torch.arange(4))),
    "Evidence learns from labeled images; pass labeled=": (Evidence, {}, (GOOD, torch.arange(4))),
    "RobustVCC learns from labeled images; pass labeled=": (RobustVCC, {}, (GOOD, torch.arange(4))),
    "TemperatureScaling learns from images kept out of training; pass held_out=": (
        TemperatureScaling, {}, (GOOD, torch.arange(4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_refused_in_one_line(message):
    kind, options, (outputs, pool_ids) = WRONG[message]
    standalone = kind.for_model(ReturnsLogits(), **ARGUMENTS, y=Y, **options)
    with pytest.raises(UserError) as error:
        standalone.update(X[:4], outputs, pool_ids)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_labeled_images_are_checked():
    standalone = RobustVCC.for_model(ReturnsLogits(), **ARGUMENTS, y=Y)
    x, ids = X[:2], torch.arange(2)
    for labeled, message in {
        (x, torch.tensor([0, 3]), ids): "labels must lie in 0…2, got 0…3",
        (x, ids, torch.tensor([0, 12])): "ids of labeled images must lie in 0…11, got 0…12",
        (x, ids, ids): 'RobustVCC learns from labeled_strong views; pass views={"labeled_strong": images}',
    }.items():
        with pytest.raises(UserError, match="^" + message.replace("{", r"\{")):
            standalone.update(X[:4], None, torch.arange(4), labeled=labeled)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (RobustVCC, {"steps": None}, "RobustVCC follows a schedule; pass steps"),
        (Evidence, {}, "Evidence learns from labeled images; pass y"),
        (VCC, {"classes": 7}, "ReturnsLogits has no nn.Linear with 7 outputs"),
        (VCC, {"classes": 1}, "classes must be an integer of at least 2"),
        (VCC, {"pool_size": 0}, "pool_size must be an integer of at least 1"),
        (VCC, {"y": torch.tensor([0, 5])}, "y must lie in 0…2, got 0…5"),
    ],
)
def test_wrong_sizes_are_refused(kind, changes, message):
    with pytest.raises(UserError, match=f"^{message}"):
        kind.for_model(ReturnsLogits(), **{**ARGUMENTS, **changes})


def test_outputs_under_batch_statistics_are_not_compared_with_the_average():
    """The average uses running statistics; an identical network must have a view score of zero all the same."""
    mine = ReturnsLogits().train()
    standalone = VCC.for_model(mine, **ARGUMENTS, scores=("view",))
    outputs = mine(3 + X[:8])
    standalone.update(3 + X[:8], outputs, torch.arange(8))
    memory = standalone.calibrator.queue
    assert memory.filled == 8
    assert memory["scores"].max() < 1e-6


def test_logits_of_an_earlier_forward_pass_are_refused():
    mine = ReturnsLogits()
    standalone = VCC.for_model(mine, **ARGUMENTS)
    logits = mine(X[:4])
    mine(X[4:8])
    with pytest.raises(UserError, match="^outputs are logits without features"):
        standalone.update(X[:4], logits, torch.arange(4))
