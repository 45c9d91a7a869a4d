"""The linear probe against scikit-learn."""

import time
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from tests.helpers.blobs import blobs
from torch import nn

from vcc_infuse import MLP, Identity
from vcc_infuse.models.linear_probe import FALLBACK, STRENGTHS, cross_validate, fit_probe, probe_on, standardized_probe

warnings.filterwarnings("ignore", module="sklearn")


def logits(probe, x):
    return x.double() @ probe.weight.T.double() + probe.bias.double()


def reference(x, y, strength):
    return LogisticRegression(C=strength, tol=1e-8, max_iter=10_000).fit(x.numpy(), y.numpy())


def cross_validated(x, y, folds):
    """Log loss and error of each strength, from scikit-learn's own cross-validation."""
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    found = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000)
        probs = cross_val_predict(model, x.numpy(), y.numpy(), cv=split, method="predict_proba")
        found.append((log_loss(y.numpy(), probs), (probs.argmax(1) != y.numpy()).mean()))
    return np.array(found)


@pytest.mark.parametrize("rows", [24, 120], ids=["fewer rows than features", "more"])
@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_the_regression_of_scikit_learn_at_the_strength_of_least_cross_validated_loss(rows, classes):
    x, y = blobs(rows, classes=classes)
    probe = fit_probe(x, y, classes)
    losses, errors = cross_validated(x, y, folds=5).T
    chosen = STRENGTHS.index(probe.strength)
    assert losses[chosen] <= losses.min() * 1.01
    assert probe.error == pytest.approx(errors[chosen], abs=1.01 / rows)
    expected = reference(x, y, probe.strength).predict_proba(x.numpy())
    torch.testing.assert_close(logits(probe, x).softmax(1), torch.from_numpy(expected), rtol=0, atol=5e-3)


def test_the_choice_is_near_the_best_on_other_rows():
    x, y = blobs(1080, width=60)
    train, test = slice(0, 80), slice(80, None)
    probe = fit_probe(x[train], y[train], 4)
    candidates = [reference(x[train], y[train], strength).predict_proba(x[test].numpy()) for strength in STRENGTHS]
    losses = [log_loss(y[test].numpy(), probs) for probs in candidates]
    own = logits(probe, x[test]).softmax(1).numpy()
    assert log_loss(y[test].numpy(), own) <= 1.05 * min(losses)
    assert max(losses) > 1.5 * min(losses)  # it matters
    errors = [(probs.argmax(1) != y[test].numpy()).mean() for probs in candidates]
    assert (own.argmax(1) != y[test].numpy()).mean() <= min(errors) + 0.05


def test_a_single_label_per_class_leaves_nothing_to_cross_validate():
    x, y = blobs(4)
    probe = fit_probe(x, y, 4)
    assert (probe.strength, probe.error) == (FALLBACK, None)
    assert torch.equal(logits(probe, x).argmax(1), y)


def test_two_labels_per_class_are_cross_validated_in_two_folds():
    x, y = blobs(8, noise=0.1)
    assert fit_probe(x, y, 4).error == 0


@pytest.mark.parametrize(("scale", "shift"), [(1e4, 0.0), (1e-4, 0.0), (1.0, 1e4)])
def test_the_scale_and_place_of_all_features_do_not_matter(scale, shift):
    x, y = blobs(60)
    plain, moved = fit_probe(x, y, 4), fit_probe(scale * x + shift, y, 4)
    assert plain.strength == moved.strength
    torch.testing.assert_close(logits(plain, x), logits(moved, scale * x + shift), rtol=0, atol=0.05)


def test_constant_features_have_no_weight():
    x, y = blobs(20)
    probe = fit_probe(torch.zeros_like(x), y, 4)
    assert not probe.weight.any()
    torch.testing.assert_close(probe.bias - probe.bias.mean(), torch.zeros(4), rtol=0, atol=1e-4)
    assert standardized_probe(torch.ones_like(x), y, 4).weight.isfinite().all()


def test_it_is_deterministic_and_the_seed_draws_the_folds():
    x, y = blobs(60)
    one, other = fit_probe(x, y, 4, seed=3), fit_probe(x, y, 4, seed=3)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
    assert one[2:] == other[2:]
    assert len({fit_probe(x, y, 4, seed=seed).error for seed in range(3)}) > 1


def test_many_labels_are_cross_validated_on_some_of_them(monkeypatch):
    monkeypatch.setattr("vcc_infuse.models.linear_probe.LARGEST", 40)
    x, y = blobs(400)
    probe = fit_probe(x, y, 4)
    assert (40 * probe.error) == pytest.approx(round(40 * probe.error))
    expected = reference(x, y, probe.strength).predict_proba(x.numpy())  # the regression itself sees all
    torch.testing.assert_close(logits(probe, x).softmax(1), torch.from_numpy(expected), rtol=0, atol=5e-3)


def test_a_standardized_probe_takes_the_features_as_they_are():
    """Badly scaled features: the head on them equals the probe on standardized ones."""
    x, y = blobs(60)
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-1, 1, x.shape[1], dtype=torch.float64)
    raw = (x * sizes + torch.randn(x.shape[1], generator=generator)).float()
    folded = standardized_probe(raw, y, 4)
    mean, std = raw.mean(0), raw.std(0, correction=0)
    std = std.clamp(min=0.1 * std.square().mean().sqrt())
    apart = fit_probe((raw - mean) / std, y, 4)
    head = nn.Linear(x.shape[1], 4)
    folded.copy_to(head)
    assert (folded.strength, folded.error) == (apart.strength, apart.error)
    torch.testing.assert_close(head(raw).double(), logits(apart, (raw - mean) / std), rtol=1e-4, atol=1e-4)


def test_a_feature_that_hardly_varies_among_the_labels_stays_unimportant():
    """Ten labels cannot know that another image has it a thousand times stronger."""
    x, y = blobs(12, noise=0.1)
    x = torch.cat([x, 1e-5 * (y == 1)[:, None]], 1)
    probe = standardized_probe(x, y, 4)
    other = x.clone()
    other[:, -1] = 1e-2
    assert torch.equal(logits(probe, other).argmax(1), y)


def test_vectors_are_taken_as_they_come_and_features_of_a_network_standardized():
    x, y = blobs(40)
    x = x * torch.logspace(-1, 1, x.shape[1])
    assert torch.equal(probe_on(Identity(), x, y, 4).weight, fit_probe(x, y, 4).weight)
    assert torch.equal(probe_on(MLP(), x, y, 4).weight, standardized_probe(x, y, 4).weight)


def test_the_scale_multiplies_the_logits():
    x, y = blobs(40)
    probe, head = fit_probe(x, y, 4), nn.Linear(x.shape[1], 4)
    probe.copy_to(head, scale=3)
    torch.testing.assert_close(head(x.float()).double(), 3 * logits(probe, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "limit"), [(250, 3), (4000, 20)])
def test_it_takes_seconds(rows, limit):
    x, y = blobs(rows, width=1280, classes=10)
    began = time.process_time()
    fit_probe(x, y, 10)
    assert time.process_time() - began < limit


def test_a_probe_is_fitted_once_per_problem_and_again_for_another():
    x, y = blobs(24, classes=2)
    first = fit_probe(x, y, 2)
    assert fit_probe(x.clone(), y.clone(), 2) is first
    changed = x.clone()
    changed[0, 0] += 1
    assert not torch.equal(fit_probe(changed, y, 2).weight, first.weight)
    assert torch.equal(fit_probe(x, y.flip(0), 2).weight, fit_probe(x, y.flip(0).clone(), 2).weight)
    assert not torch.equal(fit_probe(x, 1 - y, 2).weight, first.weight)


def test_cross_validated_losses_do_not_depend_on_how_modest_the_answers_are():
    """The oracle tries many factors on the logits of scikit-learn's own cross-validation."""
    x, y = blobs(40, classes=10, noise=0.5)
    validated = cross_validate(x, y, 10)
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    model = LogisticRegression(C=validated.strength, tol=1e-8, max_iter=10_000)
    probs = cross_val_predict(model, x.numpy(), y.numpy(), cv=folds, method="predict_proba")
    powers = [probs**factor for factor in np.exp(np.linspace(-3, 3, 2001))]
    tried = [log_loss(y, power / power.sum(1, keepdims=True)) for power in powers]
    assert validated.losses.mean() == pytest.approx(min(tried), rel=0.03)
    assert min(tried) < 0.95 * log_loss(y, probs)  # so that a loss that is not calibrated would be seen
