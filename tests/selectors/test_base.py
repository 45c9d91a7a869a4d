"""What all selectors share: steps, budgets, refresh intervals, the first core set."""

import numpy as np
import pytest
import torch
from tests.helpers.every import SELECTORS, name

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.errors import OptionError, UserError
from vcc_infuse.selectors import EL2N, INFUSE, RETRIEVE, EarlyStop, GradMatch, Random, Selector
from vcc_infuse.types import Task
from vcc_infuse.utils.serialization import from_config, to_config

every_selector = pytest.mark.parametrize("kind", SELECTORS, ids=name)


@every_selector
def test_steps_budget_and_core_set(kind, make_pool):
    selector, pool = kind(keep=0.25, every=3), make_pool()
    core = selector.select(pool, selector.budget(pool.size))
    size = 75 if selector.restricts else 300
    assert len(core.ids) == len(core.ids.unique()) == size
    assert core.ids.dtype == torch.long
    assert float(core.weights.mean()) == pytest.approx(1, abs=1e-5)
    assert selector.steps(1000) == 250
    assert selector.schedule_steps(1000) == (1000 if kind is EarlyStop else 250)
    assert selector.steps(1) == 1
    assert selector.static == (kind is Random)
    assert all(isinstance(v, torch.Tensor) for v in selector.state_dict().values())


@every_selector
def test_a_selector_is_rebuilt_from_its_configuration(kind):
    selector = kind(keep=0.25, every=3)
    again = from_config(to_config(selector), Selector)
    assert type(again) is kind
    assert to_config(again) == to_config(selector)
    assert (again.keep, again.every, again.first_interval) == (0.25, 3, selector.first_interval)


@every_selector
def test_mistakes_name_the_option(kind, make_pool):
    with pytest.raises(UserError, match="a core set of 301 does not fit a pool of 300; change the selector's keep"):
        kind().select(make_pool(), 301)
    with pytest.raises(OptionError, match=r"^keep must be a number in \(0, 1\], got 0$"):
        kind(keep=0)
    with pytest.raises(OptionError, match=r"^every must be an integer of at least 0, got 2\.5$"):
        kind(every=2.5)


@every_selector
def test_keeping_everything_selects_nothing(kind, make_pool):
    selector = kind(keep=1)
    assert not selector.active
    assert selector.steps(1234) == selector.schedule_steps(1234) == 1234
    core = selector.select(make_pool(), selector.budget(300))
    assert core.ids.tolist() == list(range(300))
    assert (core.weights == 1).all()


@every_selector
def test_only_influence_has_a_direction_for_images_outside_the_pool(kind, make_pool, eval_mode):
    direction = kind().direction(eval_mode(make_pool()))
    if issubclass(kind, INFUSE):
        assert direction.shape == (10, 25)  # classes × (width + bias)
    else:
        assert direction is None


def make_task(pool, steps, batch_size=64, unlabeled_batch_size=448):
    return Task(10, 40, pool, torch.full((10,), 4), steps, batch_size, unlabeled_batch_size)


@pytest.mark.parametrize("every", [None, 0])
def test_a_long_run_has_the_papers_interval(every):
    paper = make_task(50_000, round(0.4 * 2**20))
    assert INFUSE(keep=0.4, every=every).interval(paper) == 16_384  # 40/1024 of the run


@pytest.mark.parametrize("steps", [1, 240, 2**20])
def test_every_counts_optimizer_steps(steps):
    assert INFUSE(keep=0.4, every=7).interval(make_task(1437, steps)) == 7


def scan_cost(pool, steps, batch, unlabeled):
    """The cost of all scans as a fraction of the training, in forward passes counted by hand, and their number."""
    interval = INFUSE(keep=0.4).interval(make_task(pool, steps, batch, unlabeled))
    scans = len(range(0, steps, interval)) - 1  # the first core set is drawn without a scan
    step = 3 * (batch + unlabeled) + unlabeled  # labeled and strong views forward and backward, weak views forward
    return scans * 2 * pool / (steps * step), interval


@pytest.mark.parametrize("steps", [600, 2400, 10_000])
@pytest.mark.parametrize("pool", [500, 1437, 3000])
def test_a_short_run_scans_as_often_as_it_can_afford(pool, steps):
    cost, interval = scan_cost(pool, steps, 32, 160)
    assert cost <= 0.05
    assert cost > 0.025 or interval == round(steps * 40 / 1024)  # never more often than in the paper


@pytest.mark.parametrize("steps", [3, 60, 240])
def test_a_run_that_cannot_afford_it_scans_once_halfway(steps):
    assert INFUSE(keep=0.4).interval(make_task(60_000, steps, 32, 160)) == -(-steps // 2)


def test_a_run_of_one_step_has_an_interval():
    assert INFUSE(keep=0.4).interval(make_task(1437, 1)) == 1


def test_the_first_core_set_needs_no_model():
    first = INFUSE(keep=0.1).first_coreset(300, 30, seed=1)
    assert len(first.ids.unique()) == 30
    assert torch.equal(first.ids, INFUSE(keep=0.1).first_coreset(300, 30, seed=1).ids)
    assert not torch.equal(first.ids, INFUSE(keep=0.1).first_coreset(300, 30, seed=2).ids)
    assert INFUSE(keep=0.1, first_interval="full").first_coreset(300, 30, seed=1) is None
    assert Random(keep=0.1).first_interval == "score"


def test_without_selected_examples_confidence_decides(make_pool):
    for selector in (INFUSE(keep=0.1), EL2N(keep=0.1), RETRIEVE(keep=0.1), GradMatch(keep=0.1)):
        kept = selector.select(make_pool(FixMatch(threshold=1.0)), 30).ids.numpy()
        rows = selector.selection_.rows
        assert not rows.selected.any()
        assert rows.confidence[kept].min() >= np.sort(rows.confidence)[-30]
