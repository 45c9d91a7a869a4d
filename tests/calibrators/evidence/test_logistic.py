"""The fit against a general optimizer, and thresholds against the definition of conformal risk control."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm

from vcc_infuse.calibrators.evidence.logistic import (
    BIAS,
    BIAS_SD,
    CLASS_SD,
    REMEMBERED,
    WEIGHT,
    WEIGHT_SD,
    LogisticModel,
    NormalScores,
    class_thresholds,
    cross_fitted,
    equal_shares,
    labels_needed,
    log_odds,
    normal_quantile,
    risk_threshold,
    softened_softmax,
    trusted_threshold,
)


def rows(weights, count=300, classes=3, seed=0):
    """Evidence, labels, and whether they are right, by a model with these weights."""
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.randn(count, len(weights), generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    logits = evidence @ torch.tensor(weights) + 1 + torch.tensor([0.0, 1.0, -1.0])[labels]
    return evidence, labels, torch.rand(count, generator=generator) < logits.sigmoid()


@pytest.mark.parametrize("weights", [[1.0, 2.0], [-2.0, 1.0]], ids=["free", "at the bound"])
def test_fit_is_the_most_probable_monotone_model(weights):
    evidence, labels, right = rows(weights)
    model = LogisticModel(2, 3)
    model.fit(evidence, labels, right, rounds=200)
    x, y, own = evidence.double().numpy(), right.double().numpy(), labels.numpy()

    def loss(at):
        logits = x @ at[:2] + at[2] + at[3:][own]
        prior = ((at[:2] - WEIGHT / 2) / WEIGHT_SD) ** 2
        priors = prior.sum() + ((at[2] - BIAS) / BIAS_SD) ** 2 + ((at[3:] / CLASS_SD) ** 2).sum()
        return (np.logaddexp(0, logits) - y * logits).sum() + priors / 2

    bounds = [(0, None)] * 2 + [(None, None)] * 4
    best = minimize(loss, np.zeros(6), bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    found = torch.cat([model.weights, model.bias[None], model.offsets]).numpy()
    np.testing.assert_allclose(found, best.x, atol=2e-3)
    assert (found[:2] >= 0).all()


def test_with_few_judgments_the_softmax_is_believed_and_with_many_they_are():
    """The log-odds are twice too large: a temperature of 2 is the truth."""

    def slope(count):
        generator = torch.Generator().manual_seed(1)
        evidence = torch.cat([2 * torch.randn(count, 1, generator=generator), torch.zeros(count, 1)], 1)
        right = torch.rand(count, generator=generator) < (evidence[:, 0] / 2).sigmoid()
        model = LogisticModel(2, 3, softened_softmax(2))
        model.fit(evidence, torch.zeros(count, dtype=torch.long), right, rounds=50)
        return model.weights[0].item()

    assert LogisticModel(2, 3, softened_softmax(2)).weights.tolist() == pytest.approx([0.8, 0])
    assert 0.7 < slope(6) < 0.9
    assert slope(4000) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("prior", [equal_shares(2), softened_softmax(2)], ids=["ranks", "softmax"])
def test_fit_is_drawn_to_its_prior(prior):
    evidence, labels, right = rows([0.5, 1.0], count=60)
    model = LogisticModel(2, 3, prior)
    model.fit(evidence, labels, right, rounds=200)
    x, y, own = evidence.double().numpy(), right.double().numpy(), labels.numpy()

    def loss(at):
        logits = x @ at[:2] + at[2] + at[3:][own]
        penalty = (((at[:2] - np.array(prior.weights)) / np.array(prior.weight_sd)) ** 2).sum()
        penalty += ((at[2] - prior.bias) / prior.bias_sd) ** 2 + ((at[3:] / CLASS_SD) ** 2).sum()
        return (np.logaddexp(0, logits) - y * logits).sum() + penalty / 2

    best = minimize(loss, np.zeros(6), bounds=[(0, None)] * 2 + [(None, None)] * 4, method="L-BFGS-B")
    np.testing.assert_allclose(torch.cat([model.weights, model.bias[None], model.offsets]).numpy(), best.x, atol=5e-3)


def test_log_odds_are_bounded():
    found = log_odds(torch.tensor([0.0, 0.5, 0.8, 1.0]))
    np.testing.assert_allclose(found.numpy(), [-9.2102, 0, np.log(4), 9.2102], atol=1e-3)


def test_more_evidence_never_lowers_the_probability():
    model = LogisticModel(2, 3)
    model.fit(*rows([-2.0, 1.0]))
    evidence, labels = torch.randn(50, 2), torch.zeros(50, dtype=torch.long)
    assert (model(evidence + torch.rand(50, 2), labels) >= model(evidence, labels)).all()


def test_ranks_are_normal_quantiles_within_the_last_of_the_pool():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(REMEMBERED + 500, 2, generator=generator)
    probs[::3, 1] = torch.nan
    ranks = NormalScores(2)
    for some in probs.split(300):
        ranks.observe(some)
    new = torch.tensor([[0.3, 0.9], [0.999, torch.nan], [2.0, 0.0]])
    found, last = ranks(new), probs[-REMEMBERED:].numpy()
    for column in range(2):
        known = last[:, column][~np.isnan(last[:, column])]
        for row in range(3):
            value = new[row, column].item()
            if not np.isnan(value):
                share = ((known < value).sum() + (known == value).sum() / 2 + 0.5) / (len(known) + 1)
                assert found[row, column] == pytest.approx(norm.ppf(share), abs=1e-4)
    assert found[1, 1] == found[1, 0]
    assert abs(ranks(probs[-REMEMBERED:])[:, 0].std() - 1) < 0.01


def test_ranks_do_not_depend_on_sharpness_and_tell_saturated_values_apart():
    logits = 20 + torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)).double()
    one, two = NormalScores(1).double(), NormalScores(1).double()
    one.observe(logits.sigmoid())
    two.observe((logits / 9).sigmoid())
    torch.testing.assert_close(one(logits.sigmoid()), two((logits / 9).sigmoid()))
    assert len(one(logits.sigmoid()).unique()) > 900


def test_ranks_of_equal_values_are_in_the_middle_and_nothing_is_known_at_first():
    ranks = NormalScores(2)
    assert torch.equal(ranks(torch.tensor([[0.3, torch.nan]])), torch.zeros(1, 2))
    ranks.observe(torch.full((50, 2), 0.5))
    assert ranks(torch.full((1, 2), 0.5)).abs().max() < 1e-6
    # A column that was never known follows the first.
    ranks = NormalScores(2)
    ranks.observe(torch.tensor([[0.1, torch.nan], [0.9, torch.nan]]))
    found = ranks(torch.tensor([[0.95, 0.2]]))
    assert found[0, 0] > 0.5
    assert found[0, 1] == found[0, 0]


def test_threshold_is_the_lowest_that_keeps_the_promise():
    generator = torch.Generator().manual_seed(0)
    for count, max_error in ((100, 0.05), (40, 0.1), (30, 0.5)):
        scores = torch.rand(count, generator=generator)
        right = torch.rand(count, generator=generator) < scores
        found = risk_threshold(scores, right, max_error)

        def risk(threshold, scores=scores, right=right, count=count):
            return (((scores > threshold) & ~right).sum() + 1) / (count + 1)

        assert risk(found) <= max_error
        lower = torch.cat([scores[scores < found], torch.tensor([-1.0])])
        assert all(risk(value) > max_error for value in lower) or found == -torch.inf
    assert risk_threshold(torch.rand(10), torch.ones(10, dtype=torch.bool), 0.05) == torch.inf
    assert risk_threshold(torch.rand(40), torch.ones(40, dtype=torch.bool), 0.05) == -torch.inf


def test_the_promise_holds_on_average_for_examples_drawn_alike():
    generator = torch.Generator().manual_seed(0)
    risks = []
    for _ in range(400):
        scores = torch.rand(40, generator=generator)
        right = torch.rand(40, generator=generator) < scores
        threshold = risk_threshold(scores, right, 0.1)
        risks.append((1 - threshold.clamp(0, 1)) ** 2 / 2)  # ∫ (1 − s) ds above the threshold
    assert 0.07 < torch.stack(risks).mean() < 0.1


def test_classes_with_many_labels_have_thresholds_of_their_own():
    scores, labels = torch.rand(120), torch.tensor([0] * 60 + [1] * 50 + [2] * 10)
    right = torch.rand(120) < scores
    found = class_thresholds(scores, labels, right, classes=4, max_error=0.1)
    for label in (0, 1):
        own = labels == label
        assert found[label] == risk_threshold(scores[own], right[own], 0.1)
    rest = labels == 2
    assert found[2] == found[3] == risk_threshold(scores[rest], right[rest], 0.1)


def test_cross_fitted_scores_do_not_see_the_answer():
    evidence, labels, right = rows([1.0, 2.0], count=40)
    folds = torch.arange(40) % 4
    found = cross_fitted(evidence, labels, right, folds, classes=3)
    changed = right.clone()
    changed[folds == 2] = ~changed[folds == 2]
    again = cross_fitted(evidence, labels, changed, folds, classes=3)
    torch.testing.assert_close(again[folds == 2], found[folds == 2])
    assert (again != found)[folds != 2].all()


def test_the_promise_holds_with_few_labels_because_scores_are_cross_fitted():
    def wrong(draw, cross):
        evidence, labels, right = rows([0.3, 0.0, 0.0], 1040, seed=draw)
        known, new, model = [part[:40] for part in (evidence, labels, right)], slice(40, None), LogisticModel(3, 3)
        model.fit(*known)
        scores = cross_fitted(*known, torch.arange(40) % 4, classes=3) if cross else model(*known[:2])
        trusted = model(evidence[new], labels[new]) > risk_threshold(scores, known[2], 0.1)
        return (trusted & ~right[new]).float().mean().item()

    seen, unseen = (np.mean([wrong(draw, cross) for draw in range(60)]) for cross in (False, True))
    assert unseen < 0.1 < 0.12 < seen


def by_rule_of_benjamini_and_hochberg(scores, right, pool, max_error):
    """Which of the pool is trusted, by conformal p-values, one at a time."""
    p_values = np.array([(1 + (~right & (scores >= score)).sum()) / (len(scores) + 1) for score in pool])
    ordered = np.sort(p_values)
    passed = np.flatnonzero(ordered <= max_error * np.arange(1, len(pool) + 1) / len(pool) + 1e-12)
    return p_values <= (ordered[passed[-1]] if len(passed) else -1)


def share_of_wrong_labels(scores, right, threshold):
    """Among the labels above a threshold, one more of which may be wrong than was seen."""
    shown = [bool(ok) for score, ok in zip(scores, right, strict=True) if score > threshold]
    return (1 + shown.count(False)) / (1 + len(shown))


def test_what_is_trusted_passes_conformal_selection_and_a_look_at_the_labels():
    generator = np.random.default_rng(0)
    trusted = stricter = 0
    for count, max_error in ((40, 0.1), (100, 0.05), (30, 0.5), (10, 0.05)):
        for _ in range(20):
            scores, pool = generator.random(count).round(2), generator.random(200).round(2)  # with ties
            right = generator.random(count) < scores**0.2
            found = trusted_threshold(*(torch.from_numpy(part) for part in (scores, right, pool)), max_error).item()
            selected = by_rule_of_benjamini_and_hochberg(scores, right, pool, max_error)
            cuts = [-np.inf, *scores[~right]]
            passing = [
                cut
                for cut in cuts
                if selected[pool > cut].all() and share_of_wrong_labels(scores, right, cut) <= max_error + 1e-9
            ]
            allowed = pool > min((cut for cut in passing if (pool > cut).any()), default=np.inf)
            assert np.array_equal(pool > found, allowed)
            trusted += allowed.any()
            stricter += allowed.sum() < selected.sum()
    assert 20 < trusted < 80
    assert stricter > 0


def test_a_pool_that_is_scored_higher_than_the_labels_is_not_trusted():
    """A head that learns from its own labels grows sure of them, and one in five is right."""
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(300):
        scores, right = torch.rand(40, generator=generator), torch.rand(40, generator=generator) < 0.2
        pool = torch.rand(500, generator=generator) ** 0.1
        trusted = pool > trusted_threshold(scores, right, pool, 0.1)
        errors.append(0.8 * trusted.any())
    assert np.mean(errors) < 0.1


@pytest.mark.parametrize(("count", "max_error"), [(40, 0.1), (150, 0.05), (12, 0.2)])
def test_of_what_is_trusted_no_more_is_wrong_on_average_than_promised(count, max_error):
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(600):
        scores = torch.rand(count + 500, generator=generator)
        right = torch.rand(count + 500, generator=generator) < scores**0.3
        threshold = trusted_threshold(scores[:count], right[:count], scores[count:], max_error)
        trusted = scores[count:] > threshold
        shares.append(((trusted & ~right[count:]).sum() / trusted.sum().clamp_min(1)).item())
    assert 0.1 * max_error < np.mean(shares) < max_error
    assert np.mean(np.array(shares) > 0) > 0.1, "a rule that trusts nothing keeps every promise"


@pytest.mark.parametrize("max_error", [0.05, 0.1, 0.03, 0.5])
def test_labels_needed_are_the_fewest_that_can_keep_a_promise(max_error):
    def threshold(count):
        right = torch.ones(count, dtype=torch.bool)
        both = (
            risk_threshold(torch.rand(count), right, max_error),
            trusted_threshold(torch.rand(count), right, torch.rand(50), max_error),
        )
        return [value.item() for value in both]

    least = labels_needed(max_error)
    assert threshold(least) == [-torch.inf, -torch.inf]
    assert threshold(least - 1) == [torch.inf, torch.inf]


def test_quantiles_by_arithmetic_are_those_of_scipy():
    from scipy.stats import norm

    shares = torch.cat([torch.logspace(-9, -1, 60, dtype=torch.float64), torch.linspace(0.1, 1 - 1e-6, 80)])
    torch.testing.assert_close(
        normal_quantile(shares.double()), torch.from_numpy(norm.ppf(shares)), rtol=1e-7, atol=1e-8
    )
