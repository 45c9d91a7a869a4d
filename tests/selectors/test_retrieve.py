"""RETRIEVE against an autograd bilevel loop; each known defect of other implementations has its test."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse import SmallConv, Trainer
from vcc_infuse.algorithms import FixMatch
from vcc_infuse.selectors import RETRIEVE
from vcc_infuse.selectors.base import example_columns
from vcc_infuse.selectors.pool import ExampleGradients, GroupGradients
from vcc_infuse.selectors.retrieve import Lookahead, greedy
from vcc_infuse.types import Outputs

N, L, C, D = 40, 9, 4, 5


@pytest.fixture
def problem():
    torch.manual_seed(0)
    head, features, lab = nn.Linear(D, C), torch.randn(N, D), torch.randn(L, D)
    labels, y = torch.randint(C, (N,)), torch.randint(C, (L,))
    errors = (head(features).softmax(1) - F.one_hot(labels, C)).detach()
    return head, features, labels, lab, y, errors


def ahead(problem, lr, weight=1.0):
    head, _, _, lab, y, _ = problem
    return Lookahead(Outputs(head(lab).detach(), lab), y, lr, weight)


def slow_greedy(problem, lr, weight, budget, groups=tuple([i] for i in range(N))):
    """Pick one by one: gradients by autograd, at the head moved by the labeled and the unlabeled loss."""
    head, features, labels, lab, y, _ = problem
    parameters = list(head.parameters())
    each = [torch.autograd.grad(F.cross_entropy(head(features[g]), labels[g]), parameters) for g in groups]
    step = [-lr * g for g in torch.autograd.grad(F.cross_entropy(head(lab), y), parameters)]
    picked = []
    for _ in range(budget):
        moved = nn.Linear(D, C)
        moved.weight.data, moved.bias.data = (p.data + s for p, s in zip(parameters, step, strict=True))
        outer = torch.autograd.grad(F.cross_entropy(moved(lab), y), list(moved.parameters()))
        gains = torch.tensor([sum((a * b).sum() for a, b in zip(outer, g, strict=True)) for g in each])
        gains[picked] = -torch.inf
        best = int(gains.argmax())
        picked.append(best)
        step = [s - lr * weight * g for s, g in zip(step, each[best], strict=True)]
    return picked


@pytest.mark.parametrize(("lr", "weight"), [(0.03, 1.0), (0.5, 1.0), (0.5, 3.0)])
def test_equals_a_greedy_bilevel_loop(problem, lr, weight):
    # True labels throughout, the labeled step and the loss weight included.
    *_, errors = problem
    found = greedy(ExampleGradients(errors, problem[1]), ahead(problem, lr, weight), torch.ones(N), 12, 12)
    assert found == slow_greedy(problem, lr, weight, 12)


def test_batches_are_added_by_their_mean_gradients(problem):
    groups = list(torch.arange(N).split(4))
    atoms = GroupGradients(problem[-1], problem[1], torch.ones(N), groups)
    found = greedy(atoms, ahead(problem, 0.5, 3.0), torch.full((10,), 4.0), 24, 10)
    assert found == slow_greedy(problem, 0.5, 3.0, 6, groups)


def test_picks_depend_on_the_loss_weight_and_the_learning_rate(problem):
    *_, errors = problem
    runs = [greedy(ExampleGradients(errors, problem[1]), ahead(problem, *o), torch.ones(N), 15, 15)
            for o in ((0.0, 1.0), (0.5, 1.0), (0.5, 20.0))]  # fmt: skip
    assert len({tuple(sorted(run)) for run in runs}) == 3


def test_at_the_learning_rate_of_training_later_rounds_differ_from_the_first():
    """A step by the mean gradient moves too little: the core set would be the top of the first gains (overlap 99 %)."""
    torch.manual_seed(0)
    centers = 1.5 * torch.randn(10, 16)
    classes, y = torch.randint(10, (2000,)), torch.arange(10).repeat(4)
    features, lab = (centers[c] + torch.randn(len(c), 16) for c in (classes, y))
    head = nn.Linear(16, 10)
    for _ in range(30):  # a head that has learned something, as at a refresh
        gradient = torch.autograd.grad(F.cross_entropy(head(lab), y), list(head.parameters()))
        head.weight.data -= 0.3 * gradient[0]
        head.bias.data -= 0.3 * gradient[1]
    probs = head(features).softmax(1).detach()
    atoms = ExampleGradients(probs - F.one_hot(probs.argmax(1), 10), features)
    lr = Trainer(SmallConv(), FixMatch()).config.lr
    assert RETRIEVE().lr == lr == 0.03
    runs = [greedy(atoms, Lookahead(Outputs(head(lab).detach(), lab), y, step, 1.0), torch.ones(2000), 800, 15)
            for step in (0.0, lr)]  # fmt: skip
    assert len(set(runs[0]) & set(runs[1])) < 0.85 * 800


@pytest.mark.parametrize(("budget", "rounds"), [(3, 15), (1, 15), (16, 15), (31, 15), (40, 7), (40, 100)])
def test_any_budget_ends_and_is_met_exactly(problem, budget, rounds):
    *_, errors = problem
    found = greedy(ExampleGradients(errors, problem[1]), ahead(problem, 0.1), torch.ones(N), budget, rounds)
    assert len(found) == len(set(found)) == budget


def test_without_a_step_it_is_the_top_of_the_inner_products(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    core = RETRIEVE(keep=0.1, lr=0.0).select(pool, 30)
    outputs, y = pool.labeled_features()
    head = pool.model.head
    direction = torch.autograd.grad(F.cross_entropy(head(outputs.features), y), list(head.parameters()))
    chunks = []
    pool.scan(lambda chunk: chunks.append(chunk) or example_columns(chunk))
    score = torch.full((pool.size,), -torch.inf)
    for chunk in chunks:
        losses = F.cross_entropy(head(chunk.outputs.features), chunk.labels, reduction="none")
        for row in (chunk.weights > 0).nonzero()[:, 0].tolist():
            g = torch.autograd.grad(losses[row], list(head.parameters()), retain_graph=True)
            score[chunk.ids[row]] = sum((a * b).sum() for a, b in zip(direction, g, strict=True))
    assert set(core.ids.tolist()) == set(score.topk(30).indices.tolist())


@pytest.mark.parametrize("granularity", ["example", "batch"])
@pytest.mark.parametrize(("threshold", "budget"), [(0.6, 7), (0.6, 50), (0.6, 299), (0.97, 200), (1.0, 20)])
def test_budget_is_distinct_examples_selected_ones_first(granularity, threshold, budget, make_pool):
    selector = RETRIEVE(keep=0.5, granularity=granularity)
    core = selector.select(make_pool(FixMatch(threshold=threshold)), budget)
    assert len(core.ids) == len(core.ids.unique()) == budget
    assert (core.weights == 1).all()
    selected = selector.selection_.rows.selected
    assert selected[core.ids.numpy()].sum() == min(budget, selected.sum())
