"""What every Algorithm and Calibrator must do, whoever wrote it."""

import copy
import inspect
import math

import pytest
import torch
from tests.helpers.tiny import buffers, make_step, make_task, same

import vcc_infuse
from vcc_infuse.algorithms import Algorithm, PseudoLabeling
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.models import Classifier, SmallConv


def public(base):
    kinds = [getattr(vcc_infuse, name) for name in vcc_infuse.__all__]
    classes = [k for k in kinds if isinstance(k, type) and issubclass(k, base) and k not in (base, PseudoLabeling)]
    return pytest.mark.parametrize("kind", classes, ids=[k.__name__ for k in classes])


def step_for(algorithm, number=50):
    """A step on tiny images, which every method can use, with the method's own number of unlabeled ones."""
    step = make_step(algorithm, number=number, ratio=algorithm.ratio, pool=40, labeled=12)
    task = make_task(ratio=algorithm.ratio, pool=40, labeled=12)
    torch.manual_seed(0)
    model = Classifier.build(SmallConv(2), (1, 8, 8), 3).train()
    algorithm.setup(model, task)
    step.calibrate.setup(model, task)
    step.model, step.ema = model, copy.deepcopy(model).eval().requires_grad_(False)
    views = {name: torch.randn(len(view), 1, 8, 8) for name, view in step.batch.views.items()}
    step.batch = step.batch._replace(x=torch.randn(len(step.batch.x), 1, 8, 8), views=views)
    return step


def walk(algorithm, step):
    """Take the optimizer steps a method asks for, as the trainer does."""
    modules = [step.model, algorithm, step.calibrate]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for losses in algorithm.losses(step):
        optimizer.zero_grad(set_to_none=True)
        losses.total().backward()
        yield losses
        optimizer.step()


@public(Algorithm)
def test_finite_gradients_reach_every_trainable_parameter(kind):
    algorithm, reached, trainable = kind(), set(), {}
    for number in (0, 15, 60, 99):
        step = step_for(algorithm, number=number)
        modules = (step.model, algorithm)
        trainable = {f"{i}.{n}" for i, m in enumerate(modules) for n, p in m.named_parameters() if p.requires_grad}
        for losses in walk(algorithm, step):
            assert all(math.isfinite(term.detach()) for term in losses.values())
            for i, module in enumerate((step.model, algorithm)):
                for name, p in module.named_parameters():
                    if p.grad is not None:
                        assert p.grad.isfinite().all(), name
                        reached.add(f"{i}.{name}")
    assert trainable <= reached, trainable - reached


@public(Algorithm)
def test_state_round_trip_gives_the_same_next_step(kind):
    first, second = kind(), kind()
    step = step_for(first, number=50)
    for _ in walk(first, step):
        pass
    other = step_for(second, number=50)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other.model.load_state_dict(copy.deepcopy(step.model.state_dict()))
    results = []
    for algorithm, at in ((first, step), (second, other)):
        torch.manual_seed(3)
        at.weak = None
        results.append([{k: v.item() for k, v in losses.items()} for losses in walk(algorithm, at)])
    assert results[0] == results[1]


@public(PseudoLabeling)
def test_eval_mode_changes_no_memory(kind):
    algorithm = kind()
    step = step_for(algorithm, number=50)
    for _ in walk(algorithm, step):
        pass
    before = buffers(algorithm)
    algorithm.eval()
    algorithm.pseudo_label(step.confidence(step.batch.views["weak"], step.weak), step)
    assert same(before, buffers(algorithm))


@public(PseudoLabeling)
def test_weights_lie_in_zero_to_one_and_targets_are_distributions(kind):
    algorithm = kind()
    step = step_for(algorithm, number=50)
    for losses in walk(algorithm, step):
        pseudo = losses.pseudo
        assert ((pseudo.weights >= 0) & (pseudo.weights <= 1)).all()
        if pseudo.targets.ndim == 2:
            torch.testing.assert_close(pseudo.targets.sum(1), torch.ones(len(pseudo.targets)))


# Terms in which labeled images have a part; ABC's own test looks inside its term.
WITH_LABELS = {"labeled", "balanced"}


def pool_terms(kind, weight, sureness):
    """The sizes of a method's terms about the pool; the surer the network, the more pseudo labels count."""
    algorithm = kind()
    step = step_for(algorithm, number=50)
    step.model.head.weight.data.mul_(sureness)
    step.batch = step.batch._replace(weights=torch.full_like(step.batch.weights, weight))
    torch.manual_seed(1)
    terms = next(iter(algorithm.losses(step)))
    return [abs(term.item()) for name, term in terms.items() if name not in WITH_LABELS]


@public(Algorithm)
def test_core_set_weights_of_zero_silence_the_pool(kind):
    """What the pool moves at weight one is zero at weight zero, whatever the method calls it."""
    if not kind().views:
        return
    levels = (1, 5, 20, 100)
    assert any(sum(pool_terms(kind, 1.0, sureness)) > 0 for sureness in levels), "the case shows nothing"
    assert all(term == 0 for sureness in levels for term in pool_terms(kind, 0.0, sureness))


@public(Algorithm)
def test_one_step_on_constant_input_does_not_explode(kind):
    algorithm = kind()
    step = step_for(algorithm, number=50)
    views = {name: torch.ones_like(view) for name, view in step.batch.views.items()}
    step.batch = step.batch._replace(x=torch.ones_like(step.batch.x), views=views)
    for losses in walk(algorithm, step):
        assert all(math.isfinite(term.detach()) and abs(term) < 1e4 for term in losses.values()), losses
    assert all(p.isfinite().all() for p in step.model.parameters())


@public(Algorithm)
def test_bf16_works(kind):
    algorithm = kind()
    step = step_for(algorithm, number=50)
    with torch.autocast("cpu", torch.bfloat16):
        generator = algorithm.losses(step)
        for losses in generator:
            assert all(math.isfinite(term.detach()) for term in losses.values())
            losses.total().backward()


@public(Calibrator)
def test_a_calibrator_keeps_the_classifiers_label(kind):
    step = make_step(vcc_infuse.FixMatch(), calibrator=kind(), number=50, ratio=4, pool=40)
    outputs = step.model(step.batch.views["weak"])
    calibrated = step.confidence(step.batch.views["weak"], outputs)
    assert torch.equal(calibrated.labels, outputs.logits.argmax(1))
    assert ((calibrated.confidence >= 0) & (calibrated.confidence <= 1 + 1e-6)).all()
    assert not calibrated.confidence.requires_grad


@public(Calibrator)
def test_a_calibrator_in_eval_mode_is_silent_and_deterministic(kind):
    step = make_step(vcc_infuse.FixMatch(), calibrator=kind(), number=50, ratio=4, pool=40)
    outputs = step.model(step.batch.views["weak"]).detach()
    step.confidence(step.batch.views["weak"], outputs)
    calibrator = step.calibrate.eval()
    before = buffers(calibrator)
    seen = []
    for _ in range(2):
        seen.append((step.confidence(step.batch.views["weak"], outputs).confidence, calibrator.predict(outputs)))
    assert same(before, buffers(calibrator))
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("base", [Algorithm, Calibrator])
def test_every_class_is_rebuilt_from_its_description(base):
    kinds = [getattr(vcc_infuse, n) for n in vcc_infuse.__all__ if isinstance(getattr(vcc_infuse, n), type)]
    for kind in kinds:
        if issubclass(kind, base) and kind not in (base, PseudoLabeling):
            names = [n for n in inspect.signature(kind.__init__).parameters if n not in ("self", "args", "kwargs")]
            described = describe(kind())
            assert set(described["init_args"]) == set(names), kind
            assert describe(rebuild(described, base)) == described
