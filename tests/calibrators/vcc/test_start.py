"""A staged start: who selects when, from when on the network learns, and what a saved or foreign loop makes of it."""

import copy

import pytest
import torch
from tests.calibrators.vcc.world import POOL, SIZE, World, make_task
from tests.helpers.tiny import buffers, same
from torch import nn

from vcc_infuse.calibrators import VCC, RobustVCC
from vcc_infuse.errors import OptionError, UserError


def judged(world, number):
    """What `number` of 100 steps selects by, and the three confidences it may come from."""
    vcc = world.vcc
    step = world.step(number)
    weak = step.batch.views["weak"]
    outputs = step.forward_weak(weak)
    probs = outputs.logits.softmax(1)
    r = vcc.reconstructed(probs, outputs.features)
    answer = step.confidence(weak, outputs)
    slots = (vcc.queue.cursor - SIZE + torch.arange(SIZE)) % vcc.queue.size
    target = vcc.target(type(vcc.queued())(*(column[slots] for column in vcc.queued())))
    return answer, {"softmax": probs.amax(1), "target": target, "r": r}


@pytest.fixture
def world():
    return World(VCC(start="staged", min_per_class=2)).perturb_network().warm_up(8)


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "softmax"), (17, "softmax"), (33, "softmax"), (34, "target"), (50, "target"), (51, "r"), (99, "r")],
)
def test_softmax_then_target_then_r_select(world, number, name):
    answer, candidates = judged(world, number)
    torch.testing.assert_close(answer.confidence, candidates.pop(name), atol=1e-6, rtol=0)
    for other in candidates.values():
        assert (answer.confidence - other).abs().max() > 0.01


@pytest.mark.parametrize("joint", [False, True])
def test_the_network_learns_from_17_percent_on(joint):
    world = World(VCC(start="staged", joint=joint, min_per_class=2))
    assert world.run(world.step(16)).loss is None
    assert world.vcc.queue.pushed == SIZE, "the memories are filled before"
    loss = world.run(world.step(17)).loss
    loss.backward()
    assert all(p.grad is not None for p in world.vcc.network.decoder.parameters())


def test_a_core_set_scan_and_predict_use_r_as_soon_as_it_selects(world):
    outputs = world.model.eval()(world.x)
    probs = outputs.logits.softmax(1).detach()
    for number, selects in ((50, False), (51, True)):
        world.vcc.train()
        world.run(world.step(number))
        world.vcc.eval()
        expected = world.vcc.reconstructed(probs, outputs.features) if selects else probs.amax(1)
        torch.testing.assert_close(world.vcc.predict(outputs), expected)
        step = world.step(number, torch.arange(POOL))
        step.ema = None  # a scan has no target, for which the average would be needed
        torch.testing.assert_close(world.run(step).confidence, expected)
        other = VCC(start="staged")
        other.setup(world.model, make_task())
        other.load_state_dict(world.vcc.state_dict())
        assert torch.equal(other.eval().predict(outputs), world.vcc.predict(outputs))


def test_without_a_network_the_target_selects_to_the_end():
    world = World(VCC(start="staged", reconstruct="none", min_per_class=2)).warm_up(8)
    for number, name in ((33, "softmax"), (34, "target"), (99, "target")):
        answer, candidates = judged(world, number)
        assert torch.equal(answer.confidence, candidates[name])
        assert answer.loss is None


def test_at_once_is_the_default_and_needs_no_schedule():
    assert VCC().start == "immediate"
    assert not VCC().follows_schedule
    assert VCC(start="staged").follows_schedule
    assert RobustVCC().follows_schedule
    with pytest.raises(OptionError, match="start must be one of immediate, staged, got 'late'"):
        VCC(start="late")
    with pytest.raises(TypeError, match="start"):
        RobustVCC(start="staged")  # it has warmup_fraction


def own_loop(model, **options):
    return VCC.for_model(model, classes=3, pool_size=40, batch_size=20, start="staged", **options)


def test_a_loop_of_ones_own_must_say_how_long_it_is():
    with pytest.raises(UserError, match="VCC follows a schedule; pass steps"):
        own_loop(nn.Linear(4, 3))


def test_a_loop_of_ones_own_has_the_same_stages_and_resumes_in_them():
    """Of ten steps, the network learns from the third on (2/10), and selects from the seventh on (6/10)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    calibrator = own_loop(model, steps=10)
    learned, plain = [], []
    for number in range(10):
        if number == 5:
            saved = copy.deepcopy(calibrator.state_dict())
            calibrator = own_loop(model, steps=10)
            calibrator.load_state_dict(saved)
        images = torch.randn(20, 4)
        with torch.no_grad():
            outputs = model(images)
        confidence, loss = calibrator.update(images, outputs, torch.arange(20))
        learned.append(loss is not None)
        plain.append(torch.equal(confidence, outputs.softmax(1).amax(1)))
    assert learned == [False] * 2 + [True] * 8
    assert plain[:4] == [True] * 4
    assert not any(plain[6:])


@pytest.mark.parametrize("kind", [VCC, RobustVCC])
def test_in_steps_between_r_selects_and_nothing_is_learned(kind):
    options = {"warmup_fraction": 0.0, "match": "none"} if kind is RobustVCC else {}
    world = World(kind(every=3, min_per_class=2, **options)).perturb_network().warm_up(12)
    before = buffers(world.vcc)
    step = world.step(13)
    out = world.run(step)
    assert out.loss is None
    assert same(before, buffers(world.vcc))
    outputs = step.forward_weak(step.batch.views["weak"])
    r = world.vcc.reconstructed(outputs.logits.softmax(1), outputs.features)
    free = r > 0.5  # below one half the runner-up may bound it
    torch.testing.assert_close(out.confidence[free], r[free])
    assert world.run(world.step(15)).loss is not None
    assert not same(before, buffers(world.vcc))


def test_the_target_is_computed_in_every_step_in_which_it_selects():
    world = World(VCC(every=50, start="staged", min_per_class=2))
    for number, learns in ((16, False), (17, True), (37, True), (51, False), (100, True)):
        assert (world.run(world.step(number)).loss is not None) == learns


def seen_by_the_average(world):
    """How many weak views go through the averaged network in each forward."""
    sizes = []
    world.ema.register_forward_hook(lambda module, inputs, outputs: sizes.append(len(inputs[0])))
    return sizes


@pytest.mark.parametrize("joint", [False, True])
def test_targets_of_a_part_are_those_of_a_batch_that_is_no_larger(monkeypatch, joint):
    """The part is scored and learned from as if the rest were not there; r selects, and remembers, all."""
    part = World(VCC(target_fraction=0.25, min_per_class=2, scores=("view", "temporal"), joint=joint))
    whole = World(VCC(min_per_class=2, scores=("view", "temporal"), joint=joint))
    whole.x = part.x
    whole.ema.load_state_dict(part.ema.state_dict())
    whole.vcc.load_state_dict(part.vcc.state_dict())
    sizes = seen_by_the_average(part)
    rows = torch.tensor([1, 4, 6, 11, 17, 23])
    monkeypatch.setattr("vcc_infuse.calibrators.vcc.vcc.sample_rows", lambda *_: rows)
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)  # z at its mean, whatever the size of the batch
    ids = torch.arange(SIZE)
    for number in range(3):
        of_part = part.run(part.step(number, ids))
        of_rows = whole.run(whole.step(number, ids[rows]))
        torch.testing.assert_close(of_part.loss, of_rows.loss)
        torch.testing.assert_close(of_part.confidence[rows], of_rows.confidence)
        assert len(of_part.confidence) == SIZE
    for name in ("scores", "confidence", "labels"):
        torch.testing.assert_close(part.vcc.queue[name], whole.vcc.queue[name], equal_nan=True)
    assert sizes == [6] * 3
    gradients = []
    for world, out in ((part, of_part), (whole, of_rows)):
        out.loss.backward()
        learned = [*world.vcc.network.parameters(), *([world.model.head.weight] if joint else [])]
        gradients.append([p.grad for p in learned if p.grad is not None])
    torch.testing.assert_close(*gradients)
    visited = [world.vcc.history.read(ids, 3).known for world in (part, whole)]
    assert visited[0].all()
    assert visited[1].sum() == 6


def test_the_target_is_that_of_all_rows_where_it_selects_itself():
    staged = World(VCC(target_fraction=0.25, start="staged", min_per_class=2))
    sizes = seen_by_the_average(staged)
    for number in (10, 20, 40, 51, 90):
        staged.run(staged.step(number))
    assert sizes == [SIZE] * 3 + [6] * 2
    without = World(VCC(target_fraction=0.25, reconstruct="none", min_per_class=2))
    sizes = seen_by_the_average(without)
    without.run(without.step(5))
    assert sizes == [SIZE]
