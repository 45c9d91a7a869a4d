"""RETRIEVE against an autograd bilevel loop; each known defect of other implementations has its test."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.selectors import RETRIEVE
from vcc_infuse.selectors.head_gradients import ExampleGradients
from vcc_infuse.selectors.retrieve import Lookahead, greedy
from vcc_infuse.selectors.scoring import example_columns
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


def slow_greedy(problem, lr, weight, budget):
    """Pick one by one: gradients by autograd, at the head moved by the labeled and the unlabeled loss."""
    head, features, labels, lab, y, _ = problem
    parameters = list(head.parameters())
    each = [torch.autograd.grad(F.cross_entropy(head(features[i : i + 1]), labels[i : i + 1]), parameters)
            for i in range(N)]  # fmt: skip
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
        step = [s - lr * weight / budget * g for s, g in zip(step, each[best], strict=True)]
    return picked


@pytest.mark.parametrize(("lr", "weight"), [(0.5, 1.0), (5.0, 3.0)])
def test_equals_a_greedy_bilevel_loop(problem, lr, weight):
    # True labels throughout, the labeled step and the loss weight included.
    *_, errors = problem
    found = greedy(ExampleGradients(errors, problem[1]), ahead(problem, lr, weight), torch.ones(N), 12, 12)
    assert found == slow_greedy(problem, lr, weight, 12)


def test_picks_depend_on_the_loss_weight_and_the_learning_rate(problem):
    *_, errors = problem
    runs = [greedy(ExampleGradients(errors, problem[1]), ahead(problem, *o), torch.ones(N), 15, 15)
            for o in ((0.0, 1.0), (5.0, 1.0), (5.0, 20.0))]  # fmt: skip
    assert len({tuple(sorted(run)) for run in runs}) == 3


@pytest.mark.parametrize(("budget", "rounds"), [(3, 15), (1, 15), (16, 15), (31, 15), (40, 7), (40, 100)])
def test_any_budget_ends_and_is_met_exactly(problem, budget, rounds):
    *_, errors = problem
    found = greedy(ExampleGradients(errors, problem[1]), ahead(problem, 0.1), torch.ones(N), budget, rounds)
    assert len(found) == len(set(found)) == budget


def test_without_a_step_it_is_the_top_of_the_inner_products(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    core = RETRIEVE(0.1, lr=0.0).select(pool, 30)
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
    selector = RETRIEVE(0.5, granularity=granularity)
    core = selector.select(make_pool(FixMatch(threshold)), budget)
    assert len(core.ids) == len(core.ids.unique()) == budget
    assert (core.weights == 1).all()
    selected = selector.selection_.rows.selected
    assert selected[core.ids.numpy()].sum() == min(budget, selected.sum())
