"""Evidence as a whole: on a pool of clusters whose neighbors know better than the classifier."""

import copy

import pytest
import torch
from tests.helpers.tiny import buffers, same
from torch import nn

from vcc_infuse.calibrators import Calibrator, Evidence
from vcc_infuse.calibrators.evidence.logistic import (
    LogisticModel,
    class_thresholds,
    cross_fitted,
    softened_softmax,
    trusted_threshold,
)
from vcc_infuse.errors import OptionError
from vcc_infuse.metrics import auroc, ece
from vcc_infuse.models import Classifier
from vcc_infuse.types import Batch, Outputs, Step, Task
from vcc_infuse.utils.serialization import from_config, to_config

POOL, LABELED, WIDTH, CLASSES, STEPS, SIZE = 400, 40, 16, 4, 60, 80


class Clusters:
    """Features in four clusters, and a classifier whose predictions for single images are noisy and overconfident."""

    def __init__(self, calibrator: Evidence, seed: int = 0) -> None:
        torch.manual_seed(seed)
        centers = 2.2 * torch.eye(CLASSES, WIDTH)
        self.truth = torch.arange(POOL) % CLASSES
        self.x = centers[self.truth] + 0.9 * torch.randn(POOL, WIDTH)
        self.model = Classifier(nn.Identity(), nn.Linear(WIDTH, CLASSES))
        self.model.head.weight.data = 2 * centers[:, :WIDTH] + 2.0 * torch.randn(CLASSES, WIDTH)
        self.model.head.bias.data.zero_()
        self.calibrator = calibrator
        counts = torch.full((CLASSES,), LABELED // CLASSES)
        calibrator.setup(self.model, Task(CLASSES, LABELED, POOL, counts, STEPS, 16, SIZE))
        calibrator.train()
        self.optimizer = torch.optim.Adam(calibrator.parameters(), lr=0.05)

    def truth_head(self) -> torch.Tensor:
        """The weights of least error, up to scale."""
        return torch.eye(CLASSES, WIDTH)

    def step(self, number: int) -> Step:
        torch.manual_seed(1000 + number)
        ids, rows = torch.randint(LABELED, (16,)), torch.randperm(POOL)[:SIZE]
        views = {"weak": self.x[rows], "strong": self.x[rows] + 0.3 * torch.randn(SIZE, WIDTH)}
        batch = Batch(self.x[ids], self.truth[ids], ids, views, rows, torch.ones(SIZE))
        return Step(batch, self.model, self.model, self.calibrator, number, STEPS)

    def run(self, number: int):
        step = self.step(number)
        weak = step.batch.views["weak"]
        out = step.confidence(weak, step.forward_weak(weak))
        if out.loss is not None:
            self.optimizer.zero_grad()
            out.loss.backward()
            self.optimizer.step()
        return step, out

    def train(self, steps: int = STEPS - 1):
        for number in range(steps):
            self.run(number)
        return self

    def judged(self):
        """The probability and the softmax confidence of pool rows without labels, and whether the label is right."""
        step = self.step(STEPS - 1)
        step.batch = step.batch._replace(pool_ids=torch.arange(LABELED, POOL))
        self.calibrator.eval()
        probs = self.model(self.x[LABELED:]).logits.detach().softmax(1)
        support = self.calibrator.support(step, probs, self.x[LABELED:])
        score = self.calibrator.probability(support, probs.argmax(1))
        return score, probs.amax(1), probs.argmax(1) == self.truth[LABELED:]


def test_neighbors_rank_better_and_honest_labels_calibrate():
    score, softmax, right = Clusters(Evidence(every=1)).train().judged()
    assert 0.5 < right.float().mean() < 0.95
    assert auroc(score, right) > auroc(softmax, right) + 0.03
    assert ece(score, right) < ece(softmax, right) / 2 + 0.03


@pytest.mark.parametrize("scores", [["visits", "neighbors"], ["neighbors", "witness"]], ids=str)
def test_further_scores_calibrate_too(scores):
    score, softmax, right = Clusters(Evidence(scores=scores, every=1)).train().judged()
    assert auroc(score, right) > auroc(softmax, right) + 0.03
    assert ece(score, right) < ece(softmax, right) / 2 + 0.03


@pytest.mark.parametrize("option", ["max_pool_error", "max_trusted_error"])
def test_nothing_is_trusted_before_a_promise_can_be_kept(option):
    world = Clusters(Evidence(**{option: 0.1}, warmup_fraction=0.5))
    _, out = world.run(0)
    assert (out.confidence < 0.95).all()
    assert world.calibrator.thresholds.isinf().all()


def test_probability_at_inference_uses_the_neighbors_too():
    world = Clusters(Evidence(every=1)).train()
    new = world.x[LABELED:] + 0.05
    outputs = Outputs(*(part.detach() for part in world.model(new)))
    right = outputs.logits.argmax(1) == world.truth[LABELED:]
    assert (
        auroc(world.calibrator.eval().predict(outputs), right) > auroc(outputs.logits.softmax(1).amax(1), right) + 0.03
    )


PROMISES = ({"max_pool_error": 0.1}, {"max_trusted_error": 0.4})


@pytest.mark.parametrize(
    "options", [*({"match": match} for match in ("balanced", "none", "confidence")), *PROMISES], ids=str
)
def test_label_stays_and_only_memories_of_the_calibrator_change(options):
    world = Clusters(Evidence(every=2, min_per_class=1, **options)).train(20)
    before = buffers(world.model)
    _, out = world.run(30)
    assert torch.equal(out.labels, out.outputs.logits.argmax(1))
    assert torch.equal(out.confidence, out.probs.amax(1))
    assert same(before, buffers(world.model))
    assert all(p.grad is None for p in world.model.parameters())
    if options in PROMISES:
        assert world.calibrator.thresholds.isfinite().any()
        assert (out.confidence == 1).any()
        assert (out.confidence < 0.95).any()


def test_without_matching_the_confidence_is_the_probability():
    world = Clusters(Evidence(every=2, min_per_class=1, match="none")).train()
    world.calibrator.eval()
    step, out = world.run(STEPS - 1)
    probs = out.outputs.logits.softmax(1)
    support = world.calibrator.support(step, probs, step.batch.views["weak"])
    score = world.calibrator.probability(support, probs.argmax(1))
    free = score > 0.5  # below one half the runner-up may bound it
    assert free.sum() > 10
    torch.testing.assert_close(out.confidence[free], score[free], atol=1e-5, rtol=0)


def test_softmax_selects_in_the_warm_up_and_neighbors_are_unknown_before_a_pass():
    world = Clusters(Evidence(warmup_fraction=0.2, min_per_class=1, every=2))
    step, out = world.run(0)
    assert torch.equal(out.probs, out.outputs.logits.softmax(1))
    assert world.calibrator.support(step, out.probs, out.outputs.features)[:, 1].isnan().all()
    world.train(30)
    step, out = world.run(30)
    assert not torch.allclose(out.probs, out.outputs.logits.softmax(1))
    assert world.calibrator.support(step, out.probs, out.outputs.features)[:, 1].isfinite().float().mean() > 0.5


def test_a_class_with_one_label_leaves_the_weights_alone():
    world = Clusters(Evidence(every=1))
    counts = torch.tensor([1, 13, 13, 13])
    world.calibrator.setup(world.model, Task(CLASSES, LABELED, POOL, counts, STEPS, 16, SIZE))
    _, out = world.run(0)
    assert out.loss is None
    assert world.calibrator.out_of_fold is None
    assert not list(world.calibrator.parameters())


def test_state_round_trip_gives_the_same_next_step():
    world = Clusters(Evidence(every=2, min_per_class=1)).train(25)
    other = Clusters(from_config(to_config(world.calibrator), Calibrator))
    other.calibrator.load_state_dict(copy.deepcopy(world.calibrator.state_dict()))
    (_, one), (_, two) = world.run(26), other.run(26)
    assert torch.equal(one.probs, two.probs)
    assert torch.equal(one.loss, two.loss)


def test_the_judgments_that_set_a_threshold_had_no_part_in_their_own_score():
    calibrator = Clusters(Evidence(every=1, max_pool_error=0.1)).train().calibrator
    calibrator._refit(calibrator.out_of_fold)
    evidence, labels, right, folds = calibrator.out_of_fold.rows()
    scores = torch.empty(len(labels))
    for row in range(len(labels)):
        others = LogisticModel(evidence.shape[1], CLASSES)
        others.fit(*(part[folds != folds[row]] for part in (evidence, labels, right)))
        scores[row] = others(evidence[row : row + 1], labels[row : row + 1])
    expected = class_thresholds(scores, labels, right, classes=CLASSES, max_error=0.1)
    assert expected.isfinite().any()
    torch.testing.assert_close(calibrator.thresholds, expected)


def test_labels_count_by_their_probability_relative_to_their_class():
    world = Clusters(Evidence(every=2, min_per_class=3, warmup_fraction=0.2, weigh=True))
    assert world.run(0)[1].weights is None, "the softmax still selects"
    world.train().calibrator.eval()
    step, out = world.run(STEPS - 1)
    probs = out.outputs.logits.softmax(1)
    score = world.calibrator.probability(world.calibrator.support(step, probs, out.outputs.features), out.labels)
    memory = world.calibrator.scale.memory
    past, labels = memory["score"][memory.valid], memory["labels"][memory.valid]
    for row, label in enumerate(out.labels.tolist()):
        own = past[labels == label].tolist() + 3 * [past.mean().item()]
        assert out.weights[row].item() == pytest.approx(score[row].item() * len(own) / sum(own), rel=1e-4)
    assert 0.9 < out.weights.mean() < 1.1
    assert out.weights.std() > 0.1
    assert Clusters(Evidence(every=2)).train(30).run(30)[1].weights is None, "only where it is asked for"


def test_a_promise_that_so_few_labels_cannot_keep_is_named_with_the_labels_needed():
    with pytest.warns(UserWarning, match="max_trusted_error=0.02 needs at least 49 labels, not 40"):
        Clusters(Evidence(max_trusted_error=0.02))
    world = Clusters(Evidence(max_pool_error=0.1))
    with pytest.warns(UserWarning, match="max_pool_error=0.1 needs two labels of every class"):
        world.calibrator.setup(
            world.model, Task(CLASSES, LABELED, POOL, torch.tensor([1, 13, 13, 13]), STEPS, 16, SIZE)
        )


def test_the_threshold_on_trusted_labels_counts_scores_of_the_pool():
    calibrator = Clusters(Evidence(every=1, max_trusted_error=0.2)).train().calibrator
    calibrator._refit(calibrator.out_of_fold)
    evidence, labels, right, folds = calibrator.out_of_fold.rows()
    scores = cross_fitted(evidence, labels, right, folds, classes=CLASSES)
    memory = calibrator.scale.memory
    expected = trusted_threshold(scores, right, memory["score"][memory.valid], 0.2)
    assert expected.isfinite()
    torch.testing.assert_close(calibrator.thresholds, expected.expand(CLASSES))


def test_confidence_is_a_softened_softmax_until_labels_were_judged():
    world = Clusters(Evidence())
    outputs = Outputs(*(part.detach() for part in world.model(world.x)))
    for number in range(2):
        world.run(number)
    softmax = outputs.logits.softmax(1).amax(1).clamp(1e-4, 1 - 1e-4)
    expected = (0.8 * softmax.logit()).sigmoid()
    torch.testing.assert_close(world.calibrator.eval().predict(outputs), expected, atol=1e-5, rtol=0)


def test_confidence_at_inference_is_honest_though_heads_lack_labels():
    """The classifier has learned from many labels what heads of 40 cannot know; its sharpness says so."""
    world = Clusters(Evidence(every=1))
    world.model.head.weight.data = 3.0 * world.truth_head()
    world.train()
    new = world.x[LABELED:] + 0.05
    outputs = Outputs(*(part.detach() for part in world.model(new)))
    right = outputs.logits.argmax(1) == world.truth[LABELED:]
    confidence = world.calibrator.eval().predict(outputs)
    judged = world.calibrator.out_of_fold.rows()[2].float().mean()
    assert right.float().mean() > judged + 0.03
    assert abs(confidence.mean() - right.float().mean()) < 0.5 * (right.float().mean() - judged)


def test_a_network_that_learns_is_believed_as_far_as_strong_views_keep_its_labels():
    world = Clusters(Evidence(every=1))
    world.model.backbone = nn.Linear(WIDTH, WIDTH)
    world.model.backbone.weight.data = torch.eye(WIDTH)
    world.model.backbone.bias.data.zero_()
    counts = torch.full((CLASSES,), LABELED // CLASSES)
    world.calibrator.setup(world.model, Task(CLASSES, LABELED, POOL, counts, STEPS, 16, SIZE))
    agree = []
    for number in range(20):
        step, out = world.run(number)
        strong = world.model(step.batch.views["strong"][:16]).logits.argmax(1)
        agree.append(strong == out.labels[:16])
    kept = world.calibrator.strong_rows
    assert torch.equal(kept["right"][kept.valid].sum(), torch.cat(agree).sum())
    assert kept.filled == 20 * 16
    model = LogisticModel(3, CLASSES, softened_softmax(3))
    world.calibrator._refit(world.calibrator.out_of_fold)
    model.fit(*(kept[name][kept.valid] for name in ("evidence", "labels", "right")), rounds=50)
    torch.testing.assert_close(world.calibrator.inference.weights, model.weights, atol=0.02, rtol=0)
    assert not Clusters(Evidence()).calibrator.learns


def test_codes_of_a_frozen_network_are_kept_in_the_pass_before_neighbors_are_found():
    world = Clusters(Evidence(every=2, refreshes=2))
    one_pass = POOL // SIZE
    assert world.calibrator.refresh_steps == {one_pass, one_pass + (STEPS - one_pass) // 2}
    changed = []
    for number in range(STEPS - 1):
        before = world.calibrator.memory.codes[:POOL].clone()
        world.run(number)
        if not torch.equal(before, world.calibrator.memory.codes[:POOL]):
            changed.append(number)
    assert changed == [*range(one_pass + 1), *range(one_pass + 22, one_pass + 28)]
    world.calibrator.learns = True
    world.run(STEPS - 1)
    assert not torch.equal(before, world.calibrator.memory.codes[:POOL])


WRONG = [
    {"max_trusted_error": 1.0},
    {"max_pool_error": 0.0},
    {"match": "x"},
    {"folds": 1},
    {"refreshes": 0},
    {"scores": ["x"]},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_errors_name_the_option(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Evidence(**options)


def test_only_one_promise_can_be_given():
    with pytest.raises(OptionError, match="max_trusted_error cannot be given beside max_pool_error, got 0.1"):
        Evidence(max_pool_error=0.1, max_trusted_error=0.1)
