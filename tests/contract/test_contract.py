"""What every algorithm and calibrator must do, including those of users."""

import copy
import dataclasses
import inspect
import math

import pytest
import torch
from tests.helpers.every import lively
from tests.helpers.tiny import buffers, make_step, make_task, part_of, same, two_processes

import vcc_infuse
from vcc_infuse.algorithms import Algorithm, PseudoLabeling
from vcc_infuse.algorithms.baselines import ClosedForm
from vcc_infuse.calibrators import Calibrator, Softmax
from vcc_infuse.errors import OptionError
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.models.classifier import batchnorms
from vcc_infuse.types import Calibrated, WeakOutputs
from vcc_infuse.utils.serialization import from_config, to_config


def public(base, trained=False):
    """Every exported class of a kind; with `trained` only those that have training steps."""
    kinds = [getattr(vcc_infuse, name) for name in vcc_infuse.__all__]
    classes = [k for k in kinds if isinstance(k, type) and issubclass(k, base) and k not in (base, PseudoLabeling)]
    classes = [k for k in classes if not (trained and issubclass(k, ClosedForm))]
    return pytest.mark.parametrize("kind", classes, ids=[k.__name__ for k in classes])


def step_for(algorithm, number=50):
    """A step on tiny images, which every method accepts, at the method's own ratio of unlabeled images."""
    ratio = algorithm.unlabeled_ratio
    step = make_step(algorithm, number=number, ratio=ratio, pool=40, labeled=12)
    task = make_task(ratio=ratio, pool=40, labeled=12)
    torch.manual_seed(0)
    model = Classifier.build(SmallConv(2), (1, 8, 8), 3).train()
    for part in (algorithm, step.calibrate):
        part.setup(model, task)
        part.train()
    step.model, step.ema = model, copy.deepcopy(model).eval().requires_grad_(False)
    return with_images(step)


def with_images(step):
    """The step with new random images."""
    views = {name: torch.randn(len(view), 1, 8, 8) for name, view in step.batch.views.items()}
    step.batch = step.batch._replace(x=torch.randn(len(step.batch.x), 1, 8, 8), views=views)
    return step


def walk(algorithm, step):
    """Take the optimizer steps of a method, as the trainer does."""
    modules = [step.model, algorithm, step.calibrate]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for losses in algorithm.losses(step):
        optimizer.zero_grad(set_to_none=True)
        losses.total().backward()
        yield losses
        optimizer.step()


@public(Algorithm, trained=True)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_finite_gradients_reach_every_trainable_parameter(kind, autocast):
    algorithm, reached = lively(kind), set()
    step = step_for(algorithm)
    modules = (step.model, algorithm)
    for step.number in (0, 15, 60, 99):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for losses in walk(algorithm, step):
                assert all(math.isfinite(term.detach()) for term in losses.values())
                for i, module in enumerate(modules):
                    for name, p in module.named_parameters():
                        if p.grad is not None:
                            assert p.grad.isfinite().all(), name
                            reached |= {f"{i}.{name}"} if p.grad.any() else set()
        assert all(value.dtype != torch.bfloat16 for value in algorithm.state_dict().values())
    trainable = {f"{i}.{n}" for i, m in enumerate(modules) for n, p in m.named_parameters() if p.requires_grad}
    assert trainable <= reached, trainable - reached


@public(Algorithm, trained=True)
def test_state_is_buffers(kind):
    """Other tensors would be neither saved nor moved to the device."""
    algorithm = lively(kind)
    step = step_for(algorithm)
    for _ in walk(algorithm, step):
        pass
    for name, module in algorithm.named_modules():
        assert not [key for key, value in vars(module).items() if isinstance(value, torch.Tensor)], name


@public(Algorithm, trained=True)
def test_state_round_trip_gives_the_same_next_step(kind):
    """State from a warm-up (step 1) and from later steps."""
    first, second = lively(kind), lively(kind)
    step, other = step_for(first), step_for(second)
    for step.number in (1, 50):
        for _ in walk(first, step):
            pass
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other.model.load_state_dict(copy.deepcopy(step.model.state_dict()))
    results = []
    for algorithm, at in ((first, step), (second, other)):
        torch.manual_seed(3)
        at.number, at.weak = 51, None
        results.append([{k: v.item() for k, v in losses.items()} for losses in walk(algorithm, at)])
    assert results[0] == results[1]
    assert same(buffers(first), buffers(second))


# Their buffers never change: ABC's class rates, MPL's teacher (trained by the optimizer).
CONSTANT = {"ABC", "MPL"}


@public(Algorithm, trained=True)
def test_memories_change_in_training_and_not_in_eval_mode(kind):
    algorithm = lively(kind)
    step = step_for(algorithm)
    before = buffers(algorithm)
    for step.number in (1, 50):
        list(algorithm.losses(step))
    after = buffers(algorithm)
    assert same(before, after) == (not before or kind.__name__ in CONSTANT)
    algorithm.eval()
    for step.number in (1, 50, 55):
        list(algorithm.losses(with_images(step)))
        if isinstance(algorithm, PseudoLabeling):
            algorithm.pseudo_label(step.confidence(step.batch.views["weak"], step.weak), step)
    assert same(after, buffers(algorithm))


@public(Algorithm, trained=True)
def test_two_processes_keep_the_state_and_the_labels_of_one(kind):
    """Some ids repeat across processes. BatchNorm is in eval mode because its statistics are per process."""
    alone = lively(kind)
    step = step_for(alone)
    size, ids = len(step.batch.pool_ids), torch.tensor([4, 4, 1, 0])
    step.batch = step.batch._replace(ids=ids, y=ids % 3, pool_ids=2 * torch.arange(size) // 3)
    step.model.eval().head.weight.data.mul_(20)  # predictions of several classes
    for layer in batchnorms(alone):
        layer.eval()
    twins = [copy.deepcopy((alone, step)) for _ in range(2)]

    def labels(algorithm, step):
        found = []
        for step.number in (1, 50, 51):
            found += [losses.pseudo for losses in algorithm.losses(step) if losses.pseudo]
        return found

    whole = labels(alone, step)

    def work(rank, gather):
        algorithm, mine = twins[rank]
        return labels(algorithm, part_of(mine, rank, gather)), buffers(algorithm)

    for rank, (parts, state) in enumerate(two_processes(work)):
        for part, full in zip(parts, whole, strict=True):
            torch.testing.assert_close(tuple(part), tuple(rows[rank::2] for rows in full))
        torch.testing.assert_close(state, buffers(alone))


@public(PseudoLabeling)
def test_permuting_the_batch_permutes_the_pseudo_labels(kind):
    algorithm = lively(kind)
    step = step_for(algorithm)
    for step.number in (1, 50):
        list(algorithm.losses(step))
    other, order = copy.deepcopy(algorithm), torch.randperm(len(step.batch.pool_ids))
    batch = step.batch._replace(pool_ids=step.batch.pool_ids[order])
    moved = dataclasses.replace(step, batch=batch, weak=WeakOutputs(*(rows[order] for rows in step.weak.outputs)))
    one, two = (
        method.pseudo_label(at.confidence(at.batch.views["weak"], at.weak), at)
        for method, at in ((algorithm, step), (other, moved))
    )
    torch.testing.assert_close(tuple(rows[order] for rows in one), tuple(two))


@public(PseudoLabeling)
def test_weights_lie_in_zero_to_one_and_targets_are_distributions(kind):
    algorithm = lively(kind)
    step = step_for(algorithm, number=50)
    for losses in walk(algorithm, step):
        pseudo = losses.pseudo
        assert ((pseudo.weights >= 0) & (pseudo.weights <= 1)).all()
        if pseudo.targets.ndim == 2:
            torch.testing.assert_close(pseudo.targets.sum(1), torch.ones(len(pseudo.targets)))


@public(PseudoLabeling)
def test_no_gradient_through_the_target(kind):
    """With the strong view cut from the graph the loss has no gradient, even if the calibrator forgot to detach."""
    algorithm = lively(kind)
    step = step_for(algorithm)
    weak = WeakOutputs(*step.model(step.batch.views["weak"]))
    probs = weak.logits.softmax(1)
    pseudo = algorithm.pseudo_label(Calibrated(probs, probs.amax(1), outputs=weak), step)
    assert probs.requires_grad
    assert not pseudo.targets.requires_grad
    assert not pseudo.weights.requires_grad
    assert not pseudo.loss(weak.logits.detach(), step.batch.weights).requires_grad


# Terms that involve labeled images; the test of ABC looks inside its term.
WITH_LABELS = {"labeled", "balanced"}


def pool_terms(kind, weight, scale):
    """The magnitude of a method's unlabeled terms; more pseudo labels count at a larger scale of the logits."""
    algorithm = kind()
    step = step_for(algorithm, number=50)
    step.model.head.weight.data.mul_(scale)
    step.batch = step.batch._replace(weights=torch.full_like(step.batch.weights, weight))
    torch.manual_seed(1)
    terms = next(iter(algorithm.losses(step)))
    return [abs(term.item()) for name, term in terms.items() if name not in WITH_LABELS]


@public(Algorithm, trained=True)
def test_core_set_weights_of_zero_remove_the_pool(kind):
    """Every unlabeled term is zero at weight zero, whatever its name."""
    if not kind().views:
        return
    scales = (1, 5, 20, 100)
    assert any(sum(pool_terms(kind, 1.0, scale)) > 0 for scale in scales), "no unlabeled term at weight one"
    assert all(term == 0 for scale in scales for term in pool_terms(kind, 0.0, scale))


@public(Algorithm, trained=True)
def test_one_step_on_constant_input_does_not_explode(kind):
    algorithm = kind()
    step = step_for(algorithm, number=50)
    views = {name: torch.ones_like(view) for name, view in step.batch.views.items()}
    step.batch = step.batch._replace(x=torch.ones_like(step.batch.x), views=views)
    for losses in walk(algorithm, step):
        assert all(math.isfinite(term.detach()) and abs(term) < 1e4 for term in losses.values()), losses
    assert all(p.isfinite().all() for p in step.model.parameters())


UP_TO_ONE = ("momentum", "threshold", "max_threshold", "contrast_threshold", "smoothing")
POSITIVE = (
    "temperature",
    "sigmas",
    "xi",
    "warmup_steps",
    "n_power_iterations",
    "embedding_dim",
    "memory",
    "queue_size",
)


@public(Algorithm)
def test_wrong_options_are_named(kind):
    """Numbers are not negative, fractions at most one, temperatures and sizes positive, words known."""
    for name, option in inspect.signature(kind).parameters.items():
        values = []
        if isinstance(option.default, float | int) and not isinstance(option.default, bool):
            values += [-1, math.nan, "many"]
            values += [1.5] * (name in UP_TO_ONE or name.endswith(("_fraction", "_momentum")))
            values += [0] * (name in POSITIVE or name.endswith("_temperature"))
        if str(option.annotation) == "int | None":
            values += [-1, 0.5]
        if "Literal" in str(option.annotation):
            values += ["unknown"]
        for value in values:
            with pytest.raises(OptionError, match=f"^{name} must be .*, got {value!r}$"):
                kind(**{name: value})


@public(Calibrator)
def test_a_calibrator_keeps_the_classifiers_label(kind):
    step = make_step(vcc_infuse.FixMatch(), calibrator=kind(), number=50, ratio=4, pool=40)
    outputs = WeakOutputs(*step.model(step.batch.views["weak"]))
    calibrated = step.confidence(step.batch.views["weak"], outputs)
    assert torch.equal(calibrated.labels, outputs.logits.argmax(1))
    assert ((calibrated.confidence >= 0) & (calibrated.confidence <= 1 + 1e-6)).all()
    assert not calibrated.probs.requires_grad
    assert not calibrated.confidence.requires_grad


@public(Calibrator)
def test_a_calibrator_in_eval_mode_keeps_its_state_and_is_deterministic(kind):
    step = make_step(vcc_infuse.FixMatch(), calibrator=kind(), number=50, ratio=4, pool=40)
    outputs = WeakOutputs(*step.model(step.batch.views["weak"]).detach())
    step.confidence(step.batch.views["weak"], outputs)
    calibrator = step.calibrate.eval()
    before = buffers(calibrator)
    seen = []
    for _ in range(2):
        seen.append(
            (step.confidence(step.batch.views["weak"], outputs).confidence, calibrator.predict(outputs.outputs))
        )
    assert same(before, buffers(calibrator))
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("base", [Algorithm, Calibrator])
def test_every_class_is_rebuilt_from_its_config(base):
    kinds = [getattr(vcc_infuse, n) for n in vcc_infuse.__all__ if isinstance(getattr(vcc_infuse, n), type)]
    for kind in kinds:
        if issubclass(kind, base) and kind not in (base, PseudoLabeling):
            names = [n for n in inspect.signature(kind.__init__).parameters if n not in ("self", "args", "kwargs")]
            config = to_config(kind())
            assert set(config["init_args"]) == set(names), kind
            assert to_config(from_config(config, base)) == config


class Weighing(Softmax):
    """The softmax, in which labels count by given weights."""

    def __init__(self, weights=None):
        super().__init__()
        self.given = weights

    def forward(self, step, images, outputs):
        return super().forward(step, images, outputs)._replace(weights=self.given)


def unlabeled_term(algorithm, scale, weights=None):
    """The unlabeled loss of one step, and the weights of its pseudo labels."""
    algorithm = copy.deepcopy(algorithm)
    step = step_for(algorithm)
    step.model.head.weight.data.mul_(scale)
    step.calibrate = Weighing(weights)
    torch.manual_seed(1)
    losses = next(algorithm.losses(step))
    return losses["unlabeled"].detach(), losses.pseudo.weights


@public(PseudoLabeling)
def test_labels_count_in_the_loss_by_the_weights_of_the_calibrator(kind):
    cases = ((algorithm, scale) for algorithm in (lively(kind), kind()) for scale in (1, 5, 20, 100))
    case = next(case for case in cases if unlabeled_term(*case)[0] > 1e-4)
    plain, trusted = unlabeled_term(*case)
    halves = torch.arange(len(trusted)) % 2.0
    one, other = (unlabeled_term(*case, weights) for weights in (halves, 1 - halves))
    torch.testing.assert_close(one[0] + other[0], plain)
    assert torch.equal(one[1], trusted), "weights do not change which labels are trusted"
    assert not torch.allclose(one[0], plain)
    assert unlabeled_term(*case, (trusted == 0).float())[0] == 0
