"""INFUSE's scores against autograd and against the loss after a small step."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.models import Classifier
from vcc_infuse.selectors import INFUSE, AlignedINFUSE, RobustINFUSE
from vcc_infuse.selectors.base import example_columns, random_groups
from vcc_infuse.selectors.infuse.influence import GaussNewton, influence, support_direction
from vcc_infuse.selectors.infuse.infuse import MIXUP


def support_loss(pool, draws, model=None, views=1):
    """The Mixup loss with its graph through the whole network, one draw at a time."""
    model = pool.model if model is None else model
    x, y = (torch.cat(part) for part in list(zip(*pool.labeled_chunks(views), strict=True))[1:])
    features, truth, rng = model.backbone(x), F.one_hot(y, 10).float(), pool.rng(MIXUP)
    total = torch.zeros(())
    for _ in range(draws):
        partner = torch.from_numpy(rng.permutation(len(y)))
        share = torch.from_numpy(rng.random(len(y))).float()[:, None]
        mixed, target = (share * rows + (1 - share) * rows[partner] for rows in (features, truth))
        total = total + F.cross_entropy(model.head(mixed), target) / draws
    return total


def example_losses(pool, model=None):
    """Every example's loss with its graph, by pool id, on the views of the scan."""
    model = pool.model if model is None else model
    chunks = []
    pool.scan(lambda chunk: chunks.append(chunk) or example_columns(chunk))
    losses = torch.zeros(pool.size)
    for chunk in chunks:
        each = F.cross_entropy(model(chunk.images).logits, chunk.labels, reduction="none") * chunk.weights
        losses = losses.index_put((chunk.ids,), each)
    return losses


def autograd_scores(pool, parameters, draws, rows, views=1):
    direction = torch.autograd.grad(support_loss(pool, draws, views=views), parameters)
    losses = example_losses(pool)
    scores = []
    for row in rows:
        gradient = torch.autograd.grad(losses[row], parameters, retain_graph=True)
        scores.append(-sum((a * b).sum() for a, b in zip(direction, gradient, strict=True)))
    return torch.stack(scores)


@pytest.mark.parametrize("params", ["head", "all"])
def test_scores_equal_per_example_autograd(params, make_pool, eval_mode):
    pool = eval_mode(make_pool())
    columns = INFUSE(keep=0.3, params=params, mixup_draws=3, support_views=4).score_pool(pool)
    parameters = list((pool.model if params == "all" else pool.model.head).parameters())
    rows = torch.randperm(pool.size)[:40]
    expected = autograd_scores(pool, parameters, 3, rows.tolist(), views=4)
    torch.testing.assert_close(-columns["score"][rows], expected, rtol=1e-3, atol=1e-6)
    unused = columns["weight"] == 0
    assert unused.any()
    assert (columns["score"][unused] == 0).all()


def test_many_views_of_few_labels_reduce_the_variance_of_the_direction(make_pool, eval_mode):
    """support_views=0 gives a support set of about 1,024, whatever the number of labels."""

    def spread(selector):
        found = [selector.direction(eval_mode(make_pool(number=n))).flatten() for n in range(6)]
        return torch.stack(found).std(0).norm() / torch.stack(found).mean(0).norm()

    batch_sizes, pool = [], eval_mode(make_pool())
    pool.model.register_forward_hook(lambda module, inputs, out: batch_sizes.append(len(inputs[0])))
    INFUSE(keep=0.3).direction(pool)
    assert sum(batch_sizes) == pool.task.labeled
    batch_sizes.clear()
    INFUSE(keep=0.3, support_views=0).direction(pool)
    assert 1024 <= sum(batch_sizes) < 1024 + pool.task.labeled
    assert spread(INFUSE(keep=0.3, support_views=0)) < 0.6 * spread(INFUSE(keep=0.3))


@pytest.mark.parametrize("params", ["head", "all"])
def test_a_support_set_above_its_limit_is_a_random_part_of_it(params, make_pool, eval_mode):
    pool = eval_mode(make_pool())
    limited = INFUSE(keep=0.3, params=params, mixup_draws=2, support_views=3, support_size=40)
    whole = INFUSE(keep=0.3, params=params, mixup_draws=2, support_views=3, support_size=90)
    unlimited = INFUSE(keep=0.3, params=params, mixup_draws=2, support_views=3)
    scores = [selector.score_pool(pool)["score"] for selector in (limited, whole, unlimited)]
    assert torch.equal(scores[1], scores[2])
    assert not torch.equal(scores[0], scores[1])
    assert np.corrcoef(scores[0], scores[1])[0, 1] > 0.5
    support = limited.support(pool)
    rows = np.concatenate([numbers for numbers, _ in support.chunks])
    assert rows.tolist() == list(range(40))
    _, y = pool.labeled_features(3, 40)
    other = eval_mode(make_pool(number=8)).labeled_features(3, 40)[1]
    assert len(y) == 40
    assert not torch.equal(y, other)  # every selection draws anew


def test_the_limit_holds_for_arrays(arrays):
    pool, logits, support = arrays
    found = INFUSE(support_size=8).score(pool, logits, **support)
    assert torch.equal(found, INFUSE().score(pool, logits, **support))
    assert not torch.equal(found, INFUSE(support_size=5).score(pool, logits, **support))


def test_frozen_parameters_do_not_count(make_pool, eval_mode, trained):
    model = copy.deepcopy(trained)
    model.backbone.stages[0].requires_grad_(False)
    pool = eval_mode(make_pool(model=model))
    columns = INFUSE(keep=0.3, params="all", mixup_draws=2, support_views=1).score_pool(pool)
    free = [p for p in model.parameters() if p.requires_grad]
    expected = autograd_scores(pool, free, 2, range(20))
    torch.testing.assert_close(-columns["score"][:20], expected, rtol=1e-3, atol=1e-6)


def test_averaged_weights_are_frozen_where_the_trained_ones_are(make_pool, trained):
    model = copy.deepcopy(trained)
    model.backbone.stages[0].requires_grad_(False)
    pool = make_pool(model=model)
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    pool.ema.requires_grad_(False)
    assert pool.frozen() == pool.using("ema").frozen() == fixed != set()
    assert replace(pool, model=pool.ema).frozen() == set()


@pytest.mark.parametrize("params", ["head", "all"])
def test_score_predicts_the_change_of_the_support_loss(params, make_pool, eval_mode):
    pool = eval_mode(make_pool())
    columns = INFUSE(keep=0.3, params=params, mixup_draws=2, support_views=1).score_pool(pool)
    used = (columns["weight"] > 0).nonzero()[:, 0]
    rows = used[columns["score"][used].abs().argsort(descending=True)][:12]
    losses = example_losses(pool)
    part = pool.model if params == "all" else pool.model.head
    before = support_loss(pool, 2).item()
    for row in rows.tolist():
        gradient = torch.autograd.grad(losses[row], list(part.parameters()), retain_graph=True)
        eta = 1e-3 / float(columns["score"][row].abs())  # large enough for rounding, small enough for first order
        moved = copy.deepcopy(pool.model)
        with torch.no_grad():
            for p, g in zip((moved if params == "all" else moved.head).parameters(), gradient, strict=True):
                p -= eta * g
        change = support_loss(pool, 2, moved).item() - before
        assert change == pytest.approx(-eta * float(columns["score"][row]), rel=0.05)


def test_helpful_core_set_lowers_the_support_loss_more_than_random_and_paper_ranking_raises_it(make_pool, eval_mode):
    pool = eval_mode(make_pool())

    def change(ids):
        losses = example_losses(pool)
        gradient = torch.autograd.grad(losses[ids].mean(), list(pool.model.head.parameters()))
        moved = copy.deepcopy(pool.model)
        with torch.no_grad():
            for p, g in zip(moved.head.parameters(), gradient, strict=True):
                p -= 0.05 * g
        return support_loss(pool, 8, moved).item() - support_loss(pool, 8).item()

    helpful, paper = (INFUSE(keep=0.2, rank=rank).select(pool, 60).ids for rank in ("corrected", "printed"))
    assert change(helpful) < change(torch.arange(300)) < change(paper)


def test_batch_score_is_the_mean_of_its_examples_scores(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    single, grouped = (INFUSE(keep=0.3, granularity=g, support_views=1).score_pool(pool) for g in ("example", "batch"))
    used = single["weight"] > 0
    for group in random_groups(pool):
        mine = group[used[group]]
        expected = single["score"][group].sum() / used[group].sum()
        torch.testing.assert_close(grouped["score"][mine], expected.expand(len(mine)))
    assert (grouped["score"][~used] == 0).all()
    sizes = [len(group) for group in random_groups(pool)]
    assert sizes == [40] * 7 + [20]
    # The gradient of a whole batch, by autograd, has that inner product.
    group = random_groups(pool)[0]
    parameters = list(pool.model.head.parameters())
    direction = torch.autograd.grad(support_loss(pool, 8), parameters)
    mean = example_losses(pool)[group].sum() / used[group].sum()
    gradient = torch.autograd.grad(mean, parameters)
    expected = sum((a * b).sum() for a, b in zip(direction, gradient, strict=True))
    torch.testing.assert_close(grouped["score"][group[used[group]]][0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rank", ["corrected", "printed"])
@pytest.mark.parametrize("options", [{}, {"granularity": "batch"}])
def test_unselected_examples_are_kept_only_after_all_selected_ones(rank, options, make_pool):
    check_unselected_last(INFUSE(keep=0.1, rank=rank, **options), make_pool)


@pytest.mark.parametrize("quota", ["proportional", "equal"])
def test_unselected_examples_come_last_with_top_scores_within_a_quota(quota, make_pool):
    check_unselected_last(RobustINFUSE(keep=0.1, strategy="top", quota=quota), make_pool)


def check_unselected_last(selector, make_pool):
    core = selector.select(make_pool(FixMatch(threshold=0.6)), 30)
    assert selector.selection_.rows.selected[core.ids.numpy()].all()
    selector.select(pool := make_pool(FixMatch(threshold=0.97)), 150)
    rows, kept = selector.selection_.rows, selector.selection_.coreset.ids.numpy()
    assert 0 < rows.selected.sum() < 150
    assert rows.selected[kept].sum() == rows.selected.sum()
    filled = kept[~rows.selected[kept]]
    others = np.setdiff1d(np.flatnonzero(~rows.selected), filled)
    assert rows.confidence[filled].min() >= rows.confidence[others].max()
    assert pool.size == 300


def test_helpful_and_paper_rank_the_same_scores_from_opposite_ends(make_pool):
    pool = make_pool()
    helpful, paper = INFUSE(keep=0.1), INFUSE(keep=0.1, rank="printed")
    a, b = helpful.select(pool, 30).ids.numpy(), paper.select(pool, 30).ids.numpy()
    np.testing.assert_array_equal(helpful.selection_.rows.scores, -paper.selection_.rows.scores)
    rows = helpful.selection_.rows
    assert rows.scores[a].min() > np.median(rows.scores[rows.selected]) > rows.scores[b].max()


def test_curvature_rescales_the_direction_by_the_damped_factors(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    plain, curved = (INFUSE(keep=0.3, curvature=c).direction(pool) for c in ("identity", "gauss_newton"))
    chunks = list(pool.sample(4096))
    assert sum(len(chunk.ids) for chunk in chunks) == 300
    used = torch.cat([chunk.weights for chunk in chunks]) > 0
    h = F.pad(torch.cat([c.outputs.features for c in chunks])[used], (0, 1), value=1.0).double()
    p = torch.cat([c.outputs.logits for c in chunks])[used].double().softmax(1)
    inner, outer = h.T @ h / len(h), torch.diag(p.mean(0)) - p.T @ p / len(p)
    inner, outer = (m + 0.1 * m.trace() / len(m) * torch.eye(len(m)) for m in (inner, outer))
    torch.testing.assert_close(outer @ curved.double() @ inner, plain.double(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [
    {"keep": 0}, {"keep": 1.2}, {"keep": float("nan")}, {"every": -1}, {"params": "tail"}, {"granularity": "x"},
    {"rank": "best"}, {"curvature": "full"}, {"params": "all", "curvature": "gauss_newton"}, {"mixup_draws": 0},
    {"support_views": -1}, {"support_size": 1}, {"first_interval": "cold"}, {"score_with": "both"}, {"damping": 0},
])  # fmt: skip
def test_wrong_options_are_named(options):
    name = list(options)[-1]
    with pytest.raises(OptionError, match=f"^{name} must .*, got {re.escape(repr(options[name]))}$"):
        INFUSE(**options)


class Attention(nn.Module):
    """A backbone with fused attention, dropout and BatchNorm."""

    def __init__(self):
        super().__init__()
        self.inwards, self.norm, self.drop = nn.Linear(8, 12), nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x):
        rows = self.inwards(self.norm(x.flatten(1).view(-1, 8, 8)))
        q, k, v = rows.chunk(3, dim=2)
        return self.drop(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].flatten(1))


def test_all_parameters_of_an_attention_network(make_pool, eval_mode):
    torch.manual_seed(0)
    model = Classifier(Attention(), nn.Linear(32, 10))
    pool = eval_mode(make_pool(FixMatch(threshold=0.0), model=model))
    columns = INFUSE(keep=0.3, params="all", mixup_draws=2, support_views=1).score_pool(pool)
    expected = autograd_scores(pool, list(model.parameters()), 2, range(20))
    torch.testing.assert_close(-columns["score"][:20], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("params", ["head", "all"])
def test_half_precision_forwards_give_nearly_the_same_scores(params, make_pool):
    full = make_pool()
    half = replace(full, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    scores = []
    for pool in (full, half):
        selector = INFUSE(keep=0.3, params=params)
        selector.select(pool, 90)
        scores.append(selector.selection_.rows.scores)
    assert scores[1].dtype == np.float32
    assert np.corrcoef(*scores)[0, 1] > 0.95


@pytest.fixture
def arrays():
    """Features of a pool and of labeled examples with a head, as in somebody else's training loop."""
    torch.manual_seed(1)
    head = nn.Linear(6, 4)
    pool, labeled = torch.randn(50, 6), torch.randn(8, 6)
    support = {"support_features": labeled, "support_labels": torch.arange(8) % 4, "head": head}
    return pool, head(pool).detach(), support


def test_scores_of_arrays_equal_autograd(arrays):
    pool, logits, support = arrays
    head, labeled, labels = support["head"], support["support_features"], support["support_labels"]
    targets, weights = torch.randint(4, (50,)), torch.rand(50)
    weights[::5] = 0
    found = INFUSE(mixup_draws=2).score(pool, logits, targets=targets, weights=weights, seed=7, **support)
    rng, truth, loss = np.random.default_rng([7, MIXUP]), F.one_hot(labels, 4).float(), 0
    for _ in range(2):
        partner, share = rng.permutation(8), torch.from_numpy(rng.random(8)).float()[:, None]
        mixed, target = (share * rows + (1 - share) * rows[partner] for rows in (labeled, truth))
        loss = loss + F.cross_entropy(head(mixed), target) / 2
    direction = torch.autograd.grad(loss, list(head.parameters()))
    for row in range(50):
        own = weights[row] * F.cross_entropy(head(pool[row : row + 1]), targets[row : row + 1])
        gradient = torch.autograd.grad(own, list(head.parameters()))
        expected = sum(float((a * b).sum()) for a, b in zip(direction, gradient, strict=True))
        assert found[row].item() == (pytest.approx(expected, abs=1e-6) if weights[row] else -np.inf)
    printed = INFUSE(mixup_draws=2, rank="printed")
    found_printed = printed.score(pool, logits, targets=targets, weights=weights, seed=7, **support)
    assert torch.equal(found_printed[weights > 0], -found[weights > 0])


def test_scores_of_arrays_take_numpy_and_the_parts_of_a_head(arrays):
    pool, logits, support = arrays
    head = support["head"]
    found = INFUSE().score(pool, logits, **support)
    parts = head.weight.detach().double().numpy(), head.bias.detach().numpy()
    arrays = {"support_features": support["support_features"].numpy(), "support_labels": np.arange(8) % 4}
    targets = logits.argmax(1).numpy()
    again = INFUSE().score(pool.numpy(), logits.numpy(), head=parts, targets=targets, weights=np.ones(50), **arrays)
    assert torch.equal(found, again)
    soft = F.one_hot(logits.argmax(1), 4).float()
    assert torch.equal(INFUSE().score(pool, logits, targets=soft, **support), found)
    assert not torch.equal(INFUSE().score(pool, logits, seed=1, **support), found)
    without_bias = INFUSE().score(pool, logits, **support | {"head": (head.weight, None)})
    assert not torch.allclose(without_bias, found)


def test_curvature_of_arrays_is_that_of_the_pool(arrays):
    pool, logits, support = arrays
    weights = torch.rand(50)
    found = INFUSE(curvature="gauss_newton").score(pool, logits, weights=weights, **support)
    head = support["head"].weight, support["head"].bias
    gradient = support_direction(
        support["support_features"], support["support_labels"], head=head, rng=np.random.default_rng([0, MIXUP])
    )
    direction = GaussNewton([(logits.softmax(1), pool, weights)]).solve(gradient, 0.1)
    expected = -influence(pool, logits, targets=logits.argmax(1), direction=direction, weights=weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("selector", [INFUSE(params="all"), INFUSE(granularity="batch"), AlignedINFUSE()], ids=repr)
def test_what_cannot_score_arrays_says_so(selector, arrays):
    pool, logits, support = arrays
    with pytest.raises(UserError, match="scor.*INFUSE|params=.head. and granularity=.example."):
        selector.score(pool, logits, **support)
