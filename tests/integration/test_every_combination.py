"""Every method with every calibrator, selector and wrapper: two steps of finite loss, or one clear sentence."""

import copy
import math
import random
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.helpers.every import ALGORITHMS, CALIBRATORS, RUN, SELECTORS, WRAPPERS, differences, few_digits, lively, name

from vcc_infuse import (
    MLP,
    MMCE,
    MPL,
    VCC,
    CoMatch,
    EnsembleTS,
    FixMatch,
    FlexMatch,
    PseudoLabel,
    SoftMatch,
    Softmax,
    TemperatureScaling,
    Trainer,
    UserError,
)
from vcc_infuse.algorithms import PseudoLabeling
from vcc_infuse.algorithms.baselines import ClosedForm

TWO = {**RUN, "steps": 2, "eval_every": 2}


@pytest.fixture(scope="module")
def data():
    return few_digits(test=20)


def pairs(first, second, quick, works):
    """Two steps of each pair that works; those in which nothing new meets are slow."""
    cases = [
        pytest.param(*pair, id="-".join(map(name, pair)), marks=() if quick(*pair) else pytest.mark.slow)
        for pair in product(first, second)
        if works(*pair)
    ]
    return pytest.mark.parametrize(("kind", "other"), cases)


class Watching(Trainer):
    """Looks at everything that a selection must leave alone; then the algorithm is told of the new core set."""

    looks = 0

    def refresh_coreset(self, number):
        algorithm, before = self.state_.algorithm, self._everything()

        def look(ids):
            self.looks += 1
            assert differences(before, self._everything()) == []
            type(algorithm).on_coreset_change(algorithm, ids)

        with patch.object(algorithm, "on_coreset_change", look):
            super().refresh_coreset(number)

    def _everything(self):
        parts = self.state_
        modes = [part.training for module in (*parts.modules, parts.ema) for part in module.modules()]
        draws = [torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].copy()), hash(random.getstate())]
        state = {key: value for key, value in parts.state_dict().items() if key != "coreset_scheduler"}
        return copy.deepcopy([modes, draws, state])


def check_run(data, algorithm, calibrator=None, selector=None):
    """Two steps of finite loss; none for a method that is solved instead of trained."""
    steps = 2
    if selector:
        selector.every, steps = 1, round(2 / selector.keep)  # a refresh before each of the two steps
    trainer = Watching(MLP((16,)), algorithm, calibrator, selector, **{**TWO, "steps": steps})
    summary = trainer.fit(data)
    losses = [value for key, value in summary.items() if key.startswith("loss_")]
    trained = not isinstance(algorithm, ClosedForm)
    assert bool(losses) == trained
    assert all(math.isfinite(loss) for loss in losses)
    assert summary["steps"] == (2 if trained else 0)
    assert all(p.isfinite().all() for p in trainer.state_.model.parameters())
    return trainer


def check_sentence(refusal, *kinds):
    """One line that names both, and says what to do."""
    said = str(refusal.value)
    assert "\n" not in said
    assert all(name(kind) in said for kind in kinds), said
    assert any(word in said for word in ("choose", "leave it out")), said


def calibrates(algorithm, calibrator):
    return calibrator is Softmax or lively(algorithm).uses_confidence


def selects(algorithm, selector):
    return bool(lively(algorithm).views) or not (selector.restricts or issubclass(algorithm, ClosedForm))


def wraps(wrapper, base):
    return issubclass(base, PseudoLabeling) and ("strong" in lively(base).views or not wrapper.needs_strong)


# A fixed threshold, counts of the pool, weights by confidence, labels from neighbors.
BY_CONFIDENCE = (FixMatch, FlexMatch, SoftMatch, CoMatch)


@pairs(ALGORITHMS, CALIBRATORS, lambda algorithm, _: algorithm in BY_CONFIDENCE, calibrates)
def test_an_algorithm_with_a_calibrator(kind, other, data):
    check_run(data, lively(kind), lively(other))


# Two views, counts that follow the core set, one view, two networks.
BY_POOL = (FixMatch, FlexMatch, PseudoLabel, MPL)


@pairs(ALGORITHMS, SELECTORS, lambda algorithm, _: algorithm in BY_POOL, selects)
def test_an_algorithm_with_a_selector(kind, other, data):
    selector = lively(other)
    trainer = check_run(data, lively(kind), None, selector)
    chosen = trainer.state_.coreset_scheduler.coreset
    assert trainer.looks == (0 if not selector.restricts else 1 if selector.static else 2)
    assert (chosen is not None) == selector.restricts
    assert chosen is None or len(chosen.ids) == round(selector.keep * len(data.split.pool))


@pairs(WRAPPERS, ALGORITHMS, lambda _, base: base in (FixMatch, CoMatch), wraps)
def test_a_wrapper_around_a_base(kind, other, data):
    check_run(data, lively(kind, base=lively(other)))


def test_other_pairs_are_refused_in_one_sentence():
    refused = 0
    for kind, other in product(ALGORITHMS, CALIBRATORS):
        if not calibrates(kind, other):
            check_refused("selects nothing by confidence", kind, other, lively(kind), lively(other))
            refused += 1
    for kind, other in product(ALGORITHMS, SELECTORS):
        if not selects(kind, other):
            said = "uses no unlabeled images|has no training steps"
            check_refused(said, kind, other, lively(kind), None, lively(other))
            refused += 1
    for kind, other in product(WRAPPERS, ALGORITHMS):
        if not wraps(kind, other):
            with pytest.raises(UserError, match=", but .* has no") as refusal:
                kind(lively(other))
            check_sentence(refusal, kind, other)
            refused += 1
    assert refused > 50


def check_refused(said, kind, other, *parts):
    with pytest.raises(UserError, match=said) as refusal:
        Trainer(MLP((16,)), *parts, **TWO)
    check_sentence(refusal, kind, other)


@pytest.mark.parametrize("kind", SELECTORS, ids=name)
def test_a_selection_leaves_the_memories_of_a_calibrator_alone(kind, data):
    check_run(data, lively(FlexMatch), lively(VCC), lively(kind))


@pytest.mark.parametrize("kind", [TemperatureScaling, EnsembleTS, MMCE], ids=name)
def test_labels_from_a_view_that_the_method_does_not_show(kind, data):
    """PseudoLabel has no strong view whose prediction could be compared with the weak one's."""
    with pytest.raises(UserError, match="learns from strong views of unlabeled images") as refusal:
        Trainer(MLP((16,)), PseudoLabel(), kind(labels="weak_strong"), **TWO)
    check_sentence(refusal, kind, PseudoLabel)
    check_run(data, PseudoLabel(), kind(labels="labeled_strong"))
    check_run(data, FixMatch(), kind(labels="weak_strong"))
