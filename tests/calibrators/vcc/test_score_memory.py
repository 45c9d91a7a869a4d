import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.calibrators.vcc.world import SIZE, World
from tests.helpers.tiny import make_step, make_task, two_processes

from vcc_infuse import Balance, FixMatch, PseudoLabel, RobustVCC
from vcc_infuse.calibrators.vcc import VCC
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.types import WeakOutputs


@pytest.mark.parametrize("evaluated", [True, False], ids=["running statistics", "batch statistics"])
def test_view_score_crosses_the_heads_of_model_and_ema(evaluated):
    """Each network's features go through the other's head; the EMA differs from the model in both."""
    world = World(VCC(scores=("view",), queue_size=SIZE))
    step = world.step(0)
    images = step.batch.views["weak"]
    with torch.no_grad():
        step.confidence(images, step.forward_weak(images) if evaluated else WeakOutputs(*world.model(images)))
        world.model.load_state_dict({**world.model.state_dict(), **dict(world.ema.named_buffers())})
        outputs, ema_outputs = world.model.eval()(images), world.ema(images)
        crossed = world.ema.head(outputs.features).softmax(1), world.model.head(ema_outputs.features).softmax(1)
    straight = outputs.logits.softmax(1), ema_outputs.logits.softmax(1)
    expected, uncrossed = (
        F.kl_div(q.clamp_min(1e-7).log(), p, reduction="none").sum(1) for p, q in (crossed, straight)
    )
    scores = world.vcc.queue["scores"].squeeze(1)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-3)
    assert (expected - uncrossed).abs().max() > 0.1, "the case cannot tell them apart"


REGIMES = {
    "default": (FixMatch(), {}),
    "joint_bn": (FixMatch(), {"joint": True}),
    "lazy": (FixMatch(), {"lazy": True}),
    "own forward": (PseudoLabel(), {}),
    "wrapper": (Balance(FixMatch()), {}),
    "wrapper, joint_bn": (Balance(FixMatch()), {"joint": True}),
    "wrapper, lazy": (Balance(FixMatch()), {"lazy": True}),
    "wrapper, own forward": (Balance(PseudoLabel()), {}),
}


def image_step(algorithm, calibrator, **options):
    """A step with a BatchNorm network, whose running statistics are not those of the batch, and an identical EMA."""
    step = dataclasses.replace(make_step(algorithm, number=50, ratio=4), calibrate=calibrator.train(), **options)
    model = Classifier.build(SmallConv(4), (1, 8, 8), 3).train()
    model.head.weight.data.mul_(10)
    for part in (algorithm, calibrator):
        part.setup(model, make_task(ratio=4))
    views = {name: 2 + 3 * torch.randn(len(view), 1, 8, 8) for name, view in step.batch.views.items()}
    step.batch = step.batch._replace(x=torch.randn(len(step.batch.x), 1, 8, 8), views=views)
    step.model, step.ema = model, copy.deepcopy(model).eval().requires_grad_(False)
    return step


@pytest.mark.parametrize("calibrator", [VCC, RobustVCC])
@pytest.mark.parametrize("regime", REGIMES)
def test_identical_networks_have_a_view_score_of_zero(regime, calibrator):
    algorithm, options = copy.deepcopy(REGIMES[regime])
    step = image_step(algorithm, calibrator(scores=("view",)), **options)
    for _ in range(2):
        step.model(step.batch.views["weak"])
    step.ema.load_state_dict(step.model.state_dict())
    list(algorithm.losses(step))
    memory = step.calibrate.queue
    assert memory.filled > 0
    assert memory["scores"].abs().max() < 1e-6


@pytest.mark.parametrize("regime", [name for name in REGIMES if name not in ("joint_bn", "wrapper, joint_bn")])
def test_outputs_as_at_inference_are_not_computed_twice(regime):
    algorithm, options = copy.deepcopy(REGIMES[regime])
    step = image_step(algorithm, VCC(), **options)
    modes = []
    step.model.register_forward_hook(lambda model, inputs, output: modes.append(model.training))
    list(algorithm.losses(step))
    assert modes.count(False) == 1


@pytest.mark.parametrize("regime", REGIMES)
def test_joint_training_reaches_the_network_in_every_regime(regime):
    for joint in (True, False):
        algorithm, options = copy.deepcopy(REGIMES[regime])
        step = image_step(algorithm, VCC(joint=joint), **options)
        for p in step.calibrate.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
        (losses,) = algorithm.losses(step)
        losses["calibration"].backward()
        assert all((p.grad is not None) == joint for p in step.model.parameters())


def test_first_visit_has_no_temporal_score_but_the_second_has():
    world = World(VCC(scores=("temporal",), queue_size=SIZE))
    for number, missing in ((0, True), (1, False)):
        world.run(world.step(number, torch.arange(SIZE)))
        assert bool(world.vcc.queue["scores"].isnan().all()) == missing


@pytest.mark.parametrize("kind", [VCC, RobustVCC])
def test_gathered_memories_are_identical_on_two_processes(kind):
    worlds = [World(kind(min_per_class=2)) for _ in range(2)]
    pool = len(worlds[0].x)

    def work(rank, gather):
        for number in range(5):
            ids = torch.arange(number, number + 2 * SIZE)[rank::2] % pool
            worlds[rank].run(worlds[rank].step(number, ids, gather=gather))
        return dict(worlds[rank].vcc.named_buffers())

    one, other = two_processes(work)
    part = 2 * SIZE if kind is VCC else SIZE // 2
    assert one["queue.pushed"] == 5 * part
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)), name
    assert (one["history.stamp"] >= 0).sum() == min(pool, 2 * SIZE + 4)
