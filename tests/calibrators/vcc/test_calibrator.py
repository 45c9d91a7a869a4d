import copy
import threading

import pytest
import torch
from torch import nn

from vcc_infuse.calibrators.base import Calibrator
from vcc_infuse.calibrators.vcc.calibrator import VCC
from vcc_infuse.errors import UserError
from vcc_infuse.models import Classifier
from vcc_infuse.types import Batch, Step, Task

POOL, SIZE = 60, 24


def classifier(classes: int = 4) -> Classifier:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
    model = Classifier(backbone, nn.Linear(16, classes))
    model.head.weight.data.mul_(5)
    return model


class World:
    """A model, its average, a pool, and steps through them."""

    def __init__(self, vcc: VCC, classes: int = 4) -> None:
        self.classes, self.model, self.vcc = classes, classifier(classes), vcc
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.x = 3 * torch.randn(POOL, 6)
        counts = torch.full((classes,), 2)
        vcc.setup(self.model, Task(classes, 8, POOL, counts, 100, 10, 8, SIZE))

    def step(self, number: int, ids: torch.Tensor | None = None, **more) -> Step:
        ids = torch.randperm(POOL)[:SIZE] if ids is None else ids
        x, y = self.x[:8] + torch.randn(8, 6), torch.arange(8) % self.classes
        views = {"weak": self.x[ids], "labeled_strong": x}
        batch = Batch(x, y, torch.arange(8), views, ids, torch.ones(len(ids)))
        return Step(batch, self.model, self.ema, self.vcc, number, 100, 10, **more)

    def run(self, step: Step):
        weak = step.batch.views["weak"]
        with torch.no_grad():
            outputs = self.model(weak)
        return step.confidence(weak, outputs)

    def warm(self, steps: int = 12) -> "World":
        for number in range(steps):
            out = self.run(self.step(number))
            if out.loss is not None:
                out.loss.backward()
        return self


SWITCHES = [
    {},
    {"scores": ()},
    {"scores": ("view",)},
    {"scores": ("temporal", "ensemble"), "window": 3, "match": "confidence"},
    {"reconstruct": "mlp", "match": "target"},
    {"reconstruct": "none"},
    {"reconstruct": "none", "match": "none", "fusion": "paper"},
    {"output": "distribution", "match": "none", "residual": False},
    {"direct": True, "residual": False},
    {"match": "tempered", "inference": "both", "queue": 40, "latent": 3},
    {"inference": "reconstruction", "copies": 2, "dropout": 0.0, "target_fraction": 1.0},
]


@pytest.mark.parametrize("options", SWITCHES, ids=str)
@pytest.mark.parametrize("classes", [2, 4])
def test_every_switch_gives_probabilities_with_the_classifiers_label(options, classes):
    world = World(VCC(warmup=0.0, min_per_class=2, **options), classes).warm()
    step = world.step(50)
    outputs = world.model(step.batch.views["weak"])
    out = step.confidence(step.batch.views["weak"], outputs)
    assert torch.equal(out.labels, outputs.logits.argmax(1))
    assert torch.allclose(out.probs.sum(1), torch.ones(SIZE), atol=1e-5)
    assert torch.equal(out.confidence, out.probs.amax(1))
    assert not out.confidence.requires_grad
    assert (out.loss is None) == (options.get("reconstruct") == "none")
    predicted = world.vcc.eval().predict(outputs)
    assert ((predicted >= 0) & (predicted <= 1)).all()
    assert not predicted.requires_grad


def trained(options: dict) -> torch.Tensor:
    """The selection confidence of one fixed batch after some learning."""
    world = World(VCC(warmup=0.0, min_per_class=2, **options))
    optimizer = torch.optim.SGD(world.vcc.parameters(), lr=0.1) if world.vcc.network else None
    for number in range(10):
        torch.manual_seed(number)
        loss = world.run(world.step(number)).loss
        if optimizer and loss is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.manual_seed(99)
    return world.run(world.step(99)).confidence


def test_switches_change_what_is_selected():
    default = trained({})
    assert torch.equal(default, trained({}))
    names = ("none", "target", "confidence", "tempered")
    changes: list[dict] = [{"match": name} for name in names]
    changes += [{"scores": ("view",)}, {"fusion": "paper"}, {"reconstruct": "none"}, {"reconstruct": "mlp"}]
    changes += [{"output": "distribution"}, {"residual": False}, {"direct": True}, {"queue": 30}]
    for options in changes:
        assert not torch.allclose(default, trained(options), atol=1e-3), options


def test_loss_trains_the_network_and_nothing_else():
    world = World(VCC(min_per_class=2)).warm()
    step = world.step(50)
    weak = step.batch.views["weak"]
    step.confidence(weak, world.model(weak)).loss.backward()
    assert all(p.grad is None for p in world.model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in world.vcc.parameters())


def test_weight_scales_the_loss():
    losses = []
    for weight in (1.0, 2.0):
        world = World(VCC(weight=weight))
        torch.manual_seed(1)
        losses.append(world.run(world.step(0)).loss)
    assert torch.allclose(2 * losses[0], losses[1])


def test_softmax_selects_during_the_warm_up():
    world = World(VCC(warmup=0.5, min_per_class=2, reconstruct="none")).warm()
    for number, same in ((49, True), (50, False)):
        step = world.step(number)
        with torch.no_grad():
            probs = world.model(step.batch.views["weak"]).logits.softmax(1)
        out = world.run(step)
        assert torch.equal(out.probs, probs) == same


@pytest.mark.parametrize("reconstruct", ["vae", "mlp", "none"])
def test_eval_mode_changes_nothing_draws_nothing_and_needs_no_average(reconstruct):
    world = World(VCC(warmup=0.0, min_per_class=2, reconstruct=reconstruct)).warm()
    world.vcc.eval()
    world.model.eval()
    step = world.step(60, torch.arange(SIZE))
    step.ema = None
    before, random = copy.deepcopy(world.vcc.state_dict()), torch.get_rng_state()
    first, second = world.run(step), world.run(step)
    assert torch.equal(first.probs, second.probs)
    assert first.loss is None
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in pairs(before, world.vcc.state_dict()))


def pairs(one, other):
    assert one.keys() == other.keys()
    return [(one[name], other[name]) for name in one]


def test_averaged_network_is_asked_about_a_part_and_left_as_it_was():
    world = World(VCC(target_fraction=0.25, scores=("view",)))
    asked, before = [], copy.deepcopy(world.ema.state_dict())
    world.ema.register_forward_hook(lambda module, inputs, out: asked.append(len(inputs[0])))
    world.run(world.step(0))
    assert asked == [3 * 2, 6], "a quarter of the labeled batch in two views with as many others, and of the pool's"
    assert all(torch.equal(a, b) for a, b in pairs(before, world.ema.state_dict()))


def test_without_the_view_score_nobody_asks_the_averaged_network():
    world = World(VCC(scores=("ensemble", "temporal")))
    step = world.step(0)
    step.ema = None
    del step.batch.views["labeled_strong"]
    world.run(step)
    assert world.vcc.scale.inverse == 1


def test_first_visit_has_no_temporal_score_the_second_has():
    world = World(VCC(scores=("temporal",), target_fraction=1.0, queue=SIZE))
    for number, missing in ((0, True), (1, False)):
        world.run(world.step(number, torch.arange(SIZE)))
        assert bool(world.vcc.evidence.memory["scores"].isnan().all()) == missing


def test_matching_keeps_the_coverage_of_every_class_and_thin_classes_untouched():
    world = World(VCC(warmup=0.0, queue=SIZE * 20, target_fraction=1.0)).warm(20)
    for p in world.vcc.network.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    evidence = world.vcc.evidence
    for number in range(20, 40):
        world.run(world.step(number))
    labels, confidence = evidence.memory["labels"], evidence.memory["confidence"]
    rest = ((1 - confidence) / 3)[:, None].repeat(1, 4)
    probs = rest.scatter(1, labels[:, None], confidence[:, None])
    matched = evidence.matched(evidence.memory["raw"], probs, "confidence")
    assert not torch.allclose(matched, confidence, atol=0.01)
    for label in range(4):
        for threshold in (0.4, 0.6, 0.9):
            own = labels == label
            assert (matched[own] >= threshold).sum() == (confidence[own] >= threshold).sum()
    evidence.min_per_class = int(labels.bincount(minlength=4).min()) + 1
    thin = labels == labels.bincount(minlength=4).argmin()
    matched = evidence.matched(evidence.memory["raw"], probs, "confidence")
    assert torch.equal(matched[thin], probs.amax(1)[thin])
    assert not torch.equal(matched[~thin], probs.amax(1)[~thin])


def test_batch_of_a_single_pseudo_class():
    world = World(VCC(warmup=0.0, min_per_class=2))
    world.model.head.bias.data[1] = 100.0
    out = world.warm(5).run(world.step(20))
    assert (out.labels == 1).all()
    assert out.confidence.isfinite().all()


def test_saved_and_rebuilt_it_says_the_same():
    world = World(VCC(scores=("ensemble", "view"), warmup=0.0, min_per_class=2, inference="both")).warm()
    other = rebuild(describe(world.vcc), Calibrator)
    other.setup(world.model, Task(4, 8, POOL, torch.full((4,), 2), 100, 10, 8, SIZE))
    other.load_state_dict(world.vcc.state_dict())
    outputs = world.model.eval()(world.x)
    assert torch.equal(other.eval().predict(outputs), world.vcc.eval().predict(outputs))


def test_half_precision_forward_leaves_the_learning_in_float32():
    world = World(VCC(warmup=0.0, min_per_class=2))
    with torch.autocast("cpu", torch.bfloat16):
        world.warm()
        step = world.step(50)
        out = step.confidence(step.batch.views["weak"], world.model(step.batch.views["weak"]))
    assert out.loss.dtype == out.confidence.dtype == torch.float32
    assert out.loss.isfinite()
    out.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in world.vcc.parameters())


def test_gathered_memories_are_identical_on_two_processes():
    """Two threads play the processes; each holds every second row, and gather brings the rows together."""
    worlds = [World(VCC(warmup=0.0, min_per_class=2, target_fraction=0.5)) for _ in range(2)]
    barrier, shelf = threading.Barrier(2), [None, None]

    def gather_for(rank):
        def gather(tensor):
            shelf[rank] = tensor
            barrier.wait()
            rows = torch.stack(list(shelf), 1).flatten(0, 1)
            barrier.wait()
            return rows

        return gather

    def process(rank):
        for number in range(5):
            ids = torch.arange(number, number + 2 * SIZE)[rank::2] % POOL
            worlds[rank].run(worlds[rank].step(number, ids, gather=gather_for(rank)))

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    one, other = (dict(world.vcc.named_buffers()) for world in worlds)
    assert one["evidence.memory.pushed"] == 5 * SIZE
    for a, b in pairs(one, other):
        assert torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
    assert (one["evidence.history.stamp"] >= 0).sum() == min(POOL, 2 * SIZE + 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scores": ("entropy",)}, "entropy"),
        ({"match": "mean"}, "match"),
        ({"dropout": 1.0}, "dropout"),
        ({"target_fraction": 0.0}, "target_fraction"),
        ({"queue": 0}, "queue"),
    ],
)
def test_a_mistake_is_named(options, words):
    with pytest.raises(UserError, match=words):
        VCC(**options)
