"""Every method has its options in its repr, and scikit-learn can read, set, clone and search them."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV

from vcc_infuse import (
    DARP,
    INFUSE,
    MLP,
    Algorithm,
    FixMatch,
    FlexMatch,
    SSLClassifier,
    TemperatureScaling,
    UserError,
)
from vcc_infuse.cli.registry import KINDS, choices

EVERY = [kind for _, module, base in KINDS for kind in choices(module, base)]
every = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)


@every
def test_options_are_those_of_the_constructor(kind):
    made = kind()
    expected = [
        p.name for p in inspect.signature(kind).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    own = made.get_params(deep=False)
    assert list(own) == expected
    again = kind(**own)
    assert repr(again.get_params(deep=False)) == repr(own)


@every
def test_options_are_in_the_repr(kind):
    made, shown = kind(), " ".join(repr(kind()).split())
    assert shown.startswith(f"{kind.__name__}(")
    for name, value in made.get_params(deep=False).items():
        assert (f"{name}={value!r}" in shown) or isinstance(value, torch.nn.Module)


@every
def test_a_clone_is_another_object_with_the_same_options(kind):
    made = kind()
    copy = clone(made)
    assert copy is not made
    assert type(copy) is kind
    assert repr(copy) == repr(made)


def test_options_are_set_and_checked():
    method = FixMatch().set_params(threshold=0.5)
    assert (method.threshold, method.weight) == (0.5, 1.0)
    assert repr(method) == "FixMatch(weight=1.0, threshold=0.5)"
    with pytest.raises(UserError, match=r"threshold must be a number in \[0, 1\], got 5"):
        method.set_params(threshold=5)
    with pytest.raises(UserError, match="thresold is not an option of FixMatch; did you mean threshold"):
        method.set_params(thresold=0.5)
    assert method.threshold == 0.5


def test_what_follows_from_an_option_follows():
    calibrator = TemperatureScaling()
    assert calibrator.labeled_views == ()
    assert calibrator.set_params(labels="labeled_strong").labeled_views == ("strong",)
    assert calibrator.held_out == 0


def test_options_of_options():
    base = FlexMatch()
    plugin = DARP(base=base)
    assert plugin.get_params()["base__threshold"] == base.threshold
    plugin.set_params(base__threshold=0.6, alpha=3)
    assert (plugin.base.threshold, plugin.alpha) == (0.6, 3)
    assert base.threshold != 0.6, "the object that the user gave stays as it is"
    with pytest.raises(UserError, match="alpha of DARP is 3, which has no options to set"):
        plugin.set_params(alpha__x=1)


def test_a_selector_shows_its_options():
    assert "keep=0.3" in repr(INFUSE(keep=0.3))
    assert INFUSE().set_params(keep=0.2).keep == 0.2


class Forgetful(Algorithm):
    def __init__(self, threshold=0.5):
        super().__init__()


def test_a_class_that_keeps_no_option_is_told():
    with pytest.raises(UserError, match=r"Forgetful does not keep its option threshold; write self.threshold ="):
        Forgetful().get_params()
    assert repr(Forgetful()) == "Forgetful(threshold='?')"


@pytest.fixture(scope="module")
def data():
    x, truth = make_blobs(60, centers=3, cluster_std=0.5, random_state=0)
    return x.astype(np.float32), np.where(np.arange(60) % 2, -1, truth)


def classifier(**options):
    return SSLClassifier(MLP((8,)), **{"steps": 3, "batch_size": 8, "unlabeled_ratio": 1, **options})


def test_a_grid_over_the_options_of_the_parts(data):
    x, y = data
    model = classifier(
        algorithm=FixMatch(), selector=INFUSE(keep=0.5), calibrator=TemperatureScaling(labels="weak_strong")
    )
    grid = {"algorithm__threshold": [0.2, 0.9], "selector__keep": [0.4], "model__hidden": [(4,), (6,)]}
    found = GridSearchCV(model, grid, cv=2, error_score="raise").fit(x, y)
    tried = found.cv_results_["params"]
    assert len(tried) == 4
    best = found.best_estimator_
    assert best.algorithm.threshold == found.best_params_["algorithm__threshold"]
    assert best.predictor_.model.backbone.hidden == found.best_params_["model__hidden"]
    assert best.selector.keep == 0.4
    assert (model.algorithm.threshold, model.selector.keep, model.model.hidden) == (0.95, 0.5, (8,))


def test_a_grid_over_whole_parts_prints_them_apart(data):
    grid = GridSearchCV(classifier(), {"algorithm": [FixMatch(threshold=0.2), FixMatch(threshold=0.9)]}, cv=2).fit(
        *data
    )
    assert len({str(params["algorithm"]) for params in grid.cv_results_["params"]}) == 2


def test_the_estimator_knows_the_options_of_its_parts(data):
    model = classifier(algorithm=FixMatch(threshold=0.7))
    assert model.get_params()["algorithm__threshold"] == 0.7
    copy = clone(model)
    assert copy.algorithm is not model.algorithm
    copy.set_params(algorithm__threshold=0.1)
    assert (copy.algorithm.threshold, model.algorithm.threshold) == (0.1, 0.7)
    assert "FixMatch(weight=1.0, threshold=0.7)" in repr(model)
    assert "FixMatch" in model._repr_html_()
    with pytest.raises(UserError, match="algorithm__threshold cannot be set, because algorithm is None"):
        classifier().set_params(algorithm__threshold=0.5)
    both = classifier().set_params(algorithm=FlexMatch(), algorithm__threshold=0.5)
    assert both.algorithm.threshold == 0.5
