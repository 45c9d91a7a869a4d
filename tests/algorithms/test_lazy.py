"""Lazy strong views: the losses and gradients of the eager step, from fewer rows."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.every import lively
from tests.helpers.tiny import INPUTS, RecordingStep, make_task, part_of, two_processes
from vcc_infuse.algorithms import (
    ABC,
    DARP,
    DASO,
    UDA,
    Adsh,
    Algorithm,
    CoMatch,
    Dash,
    DebiasPL,
    FixMatch,
    FlexMatch,
    FreeMatch,
    SoftMatch,
)
from vcc_infuse.calibrators import MMCE, VCC, Calibrator, Softmax, TemperatureScaling
from vcc_infuse.models import MLP, Classifier, Identity
from vcc_infuse.models.classifier import batchnorms
from vcc_infuse.types import Batch, LazyViews, Losses, PseudoLabels, Step

CLASSES, LABELED, ROWS = 3, 4, 16
METHODS: dict[str, Any] = {
    "FixMatch": lambda: FixMatch(threshold=0.4),
    "FlexMatch": lambda: FlexMatch(threshold=0.4),
    "FreeMatch": lambda: FreeMatch(fairness=0.5),
    "SoftMatch": lambda: SoftMatch(),
    "UDA": lambda: UDA(threshold=0.4, annealing="linear"),
    "Dash": lambda: Dash(warmup_steps=1),
    "Adsh": lambda: Adsh(threshold=0.4, every=1),
    "DARP": lambda: lively(DARP, base=FreeMatch(fairness=0.5)),
    "DebiasPL": lambda: DebiasPL(FlexMatch(threshold=0.4), strength=2.0, momentum=0.5),
    "nested": lambda: lively(DARP, base=DebiasPL(DebiasPL(UDA(threshold=0.4)), momentum=0.5)),
}
CALIBRATORS = {
    "TemperatureScaling": lambda: TemperatureScaling(labels="weak_strong", every=1),
    "MMCE": lambda: MMCE(labels="weak_strong"),
    "VCC": lambda: lively(VCC),
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


class LayerNormed(nn.Module):
    """A network that knows nothing of other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(INPUTS, 8), nn.LayerNorm(8), nn.GELU())

    def forward(self, x):
        return self.layers(x)


BACKBONES = {"head": Identity, "layer norm": LayerNormed, "frozen BatchNorm": lambda: MLP((8, 5))}


def double_model(backbone: str) -> Classifier:
    model = Classifier.build(BACKBONES[backbone](), (INPUTS,), CLASSES).double()
    model(torch.randn(50, INPUTS).double())  # running statistics of its own
    model.frozen_norms = batchnorms(model)
    return model.train()


def double_step(
    method: Algorithm, backbone: str = "head", calibrator: Calibrator | None = None, coreset: bool = False, **more: Any
) -> Step:
    """A step in double precision, halfway through a run."""
    torch.manual_seed(0)
    task = make_task(CLASSES, LABELED, ROWS // LABELED)
    model, calibrator = double_model(backbone), calibrator or Softmax()
    for part in (method, calibrator):
        part.setup(model, task)
        part.train()
    x, raw = torch.randn(LABELED, INPUTS).double(), torch.randn(ROWS, INPUTS).double()
    views = {"weak": raw, "strong": raw + 0.1 * torch.randn_like(raw), "labeled_strong": x + 0.1}
    weights = 2 * torch.rand(ROWS) * (torch.arange(ROWS) % 3 > 0) if coreset else torch.ones(ROWS)
    ids = torch.arange(LABELED)
    batch = Batch(x, ids % CLASSES, ids, views, torch.randperm(task.pool)[:ROWS], weights)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    return RecordingStep(batch, model, ema, calibrator, 50, 100, **more)


def cover(method: Algorithm, rows: int) -> None:
    """Make `rows` of the pseudo labels count, whatever the method's own rule."""
    while hasattr(method, "base"):
        method = method.base
    rule, keep = method.pseudo_label, torch.randperm(ROWS) < rows

    def pseudo_label(calibrated, step):
        found = rule(calibrated, step)
        return PseudoLabels(found.targets, keep * torch.linspace(0.5, 1.5, ROWS))

    method.pseudo_label = pseudo_label


def both(method: Algorithm, step: Step, rows: int | None = None) -> list[tuple[Losses, dict[str, Any]]]:
    """The losses of an eager and of a lazy step from the same state, and all that they left behind."""
    found = []
    for lazy in (False, True):
        twin, own = copy.deepcopy((method, step))
        own.lazy = lazy
        torch.manual_seed(1)
        if rows is not None:
            cover(twin, rows)
        (losses,) = twin.losses(own)
        losses.total().backward()
        parts = {"model": own.model, "method": twin, "calibrator": own.calibrate}
        left = {f"gradient of {name}.{key}": p.grad for name, m in parts.items() for key, p in m.named_parameters()}
        left |= {f"{name}.{key}": value for name, m in parts.items() for key, value in m.state_dict().items()}
        found.append((losses, {**left, "targets": losses.pseudo.targets, "weights": losses.pseudo.weights}))
    return found


def assert_same(method: Algorithm, step: Step, rows: int | None = None) -> None:
    (eager, eager_left), (lazy, lazy_left) = both(method, step, rows)
    torch.testing.assert_close(dict(lazy), dict(eager), rtol=1e-6, atol=1e-9)
    assert eager_left.keys() == lazy_left.keys()
    for name, expected in eager_left.items():
        if expected is None:
            assert lazy_left[name] is None
            continue
        close = (1e-9, 1e-12) if expected.dtype == torch.float64 else (1e-5, 1e-7)
        assert torch.allclose(lazy_left[name], expected, *close, equal_nan=True), name


@methods
@pytest.mark.parametrize(("backbone", "coreset"), [*((name, True) for name in BACKBONES), ("head", False)])
@pytest.mark.parametrize("rows", [0, 5, ROWS])
def test_losses_and_gradients_are_those_of_the_eager_step(method, backbone, coreset, rows):
    built = method()
    step = double_step(built, backbone, coreset=coreset)
    assert_same(built, step, rows)


@methods
def test_the_rule_of_the_method_itself(method):
    built = method()
    assert_same(built, double_step(built, "layer norm", coreset=True))


@pytest.mark.parametrize("calibrator", CALIBRATORS.values(), ids=CALIBRATORS)
@pytest.mark.parametrize("method", ["FlexMatch", "DebiasPL"])
def test_with_calibrators(method, calibrator):
    built = METHODS[method]()
    step = double_step(built, "layer norm", calibrator())
    assert_same(built, step, 6)


@methods
@pytest.mark.parametrize("size", [3, 7])
def test_in_micro_batches(method, size):
    built = method()
    step = double_step(built, "layer norm", coreset=True, micro_batch=size)
    assert_same(built, step, 6)


@methods
@pytest.mark.parametrize("rows", [0, 5, ROWS])
def test_only_rows_that_count_are_made_and_computed(method, rows):
    built = method()
    step = double_step(built, "layer norm")
    cover(built, rows)
    made, strong = [], step.batch.views.pop("strong")
    views = LazyViews(step.batch.views, {"strong": lambda chosen: made.append(chosen) or strong[chosen]})
    step.batch, step.lazy = step.batch._replace(views=views), True
    sizes: list[int] = []
    step.model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    (losses,) = built.losses(step)
    assert sizes == [ROWS, LABELED + rows]
    (chosen,) = made
    assert chosen.tolist() == losses.pseudo.weights.nonzero()[:, 0].tolist()
    assert len(losses.pseudo.weights) == ROWS, "statistics still see the whole batch"


def test_weights_of_the_core_set_decide_too():
    method = FixMatch(threshold=0.0)
    step = double_step(method)
    step.batch, step.lazy = step.batch._replace(weights=(torch.arange(ROWS) < 2).float()), True
    sizes: list[int] = []
    step.model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    list(method.losses(step))
    assert sizes == [ROWS, LABELED + 2]


def test_the_strong_views_matter():
    """The comparisons would be empty if the labeled images alone decided the gradient."""
    method = FixMatch()
    step = double_step(method, "layer norm")
    none, few, all_of_them = (both(method, step, rows)[1][1]["gradient of model.head.weight"] for rows in (0, 5, ROWS))
    assert (few - none).norm() > 0.01 * none.norm()
    assert (all_of_them - few).norm() > 0.01 * none.norm()


def test_two_processes_average_to_the_gradient_of_one():
    """Each has its own rows that count, and divides by its whole part of the batch."""
    method = FlexMatch(threshold=0.4)
    step = double_step(method, "layer norm", coreset=True)
    whole = both(method, step)[1][1]["gradient of model.head.weight"]

    def work(rank, gather):
        twin, own = copy.deepcopy((method, step))
        (losses,) = twin.losses(replace(part_of(own, rank, gather), lazy=True))
        losses.total().backward()
        return own.model.head.weight.grad

    torch.testing.assert_close(sum(two_processes(work)) / 2, whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "lazy"),
    [
        *((built(), True) for built in METHODS.values()),
        *((kind(), False) for kind in (CoMatch, ABC, DASO)),
        (DARP(CoMatch()), False),
        (DebiasPL(DASO()), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_say_whether_they_need_every_row(method, lazy):
    assert method.lazy_strong is lazy
