"""Bounds against scipy, against slow sums, and against people who overlook and stop when they like."""

import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import binomtest

from vcc_infuse.errors import UserError
from vcc_infuse.label.bounds import Batch, bulk_bound, clopper_pearson, pooled_bound

quick_bound = cache(bulk_bound)  # the same counts come again and again


@pytest.mark.parametrize(("wrong", "n"), [(0, 1), (0, 59), (1, 150), (7, 20), (20, 20), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_clopper_pearson_is_that_of_scipy(wrong, n, confidence):
    oracle = binomtest(wrong, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(wrong, n, confidence=confidence, side="two") == pytest.approx((oracle.low, oracle.high))
    oracle = binomtest(wrong, n, alternative="less").proportion_ci(confidence, method="exact")
    assert clopper_pearson(wrong, n, confidence=confidence) == pytest.approx((0, oracle.high))


def test_nothing_looked_at_promises_nothing():
    assert clopper_pearson(0, 0) == (0, 1)
    assert bulk_bound(Batch(100, 0, 0))["at_most"] == 1
    assert pooled_bound([Batch(100, 0, 0)])["at_most"] == 1
    assert 0.5 < pooled_bound([Batch(100, 0, 0), Batch(100, 100, 0)])["at_most"] < 0.52  # all of the first may be wrong
    assert pooled_bound([]) == {"labels": 0, "looked_at": 0, "wrong": 0, "at_most": 0}
    assert bulk_bound(Batch(0, 0, 0)) == {"labels": 0, "looked_at": 0, "wrong": 0, "at_most": 0}
    assert bulk_bound(Batch(3, 3, 3))["labels"] == 0


@pytest.mark.parametrize(("n", "wrong"), [(59, 0), (150, 1), (96, 4)])
def test_a_large_batch_and_a_careful_person_give_clopper_pearson(n, wrong):
    """The first of the looks spends half of the 5 %."""
    oracle = binomtest(wrong, n, alternative="less").proportion_ci(0.975, method="exact").high
    bound = bulk_bound(Batch(200_000, n, wrong), missed=0)
    assert bound["at_most"] == pytest.approx(oracle, abs=5e-4)
    assert bound == {"labels": 200_000 - wrong, "looked_at": n, "wrong": wrong, "at_most": bound["at_most"]}


def test_who_looked_at_everything_only_overlooks():
    assert bulk_bound(Batch(48, 48, 5), missed=0)["at_most"] == 0
    assert bulk_bound(Batch(48, 48, 0), missed=0.05)["at_most"] == pytest.approx(1 / 48)


def test_more_wrong_fewer_looked_at_more_looks_and_less_care_promise_less():
    def at_most(batch, missed=0.05):
        return bulk_bound(batch, missed=missed)["at_most"]

    base = at_most(Batch(500, 96, 1, 1))
    assert base < at_most(Batch(500, 96, 2, 1))
    assert base < at_most(Batch(500, 60, 1, 1))
    assert base < at_most(Batch(500, 96, 1, 2)) < at_most(Batch(500, 96, 1, 9))
    assert base < at_most(Batch(500, 96, 1, 1), missed=0.3)


def slow_coverage(size, wrong, n, missed):
    """The probability that the promise after one look holds, by summing over all that a person can see and click."""
    total = 0.0
    for shown in range(max(0, n - size + wrong), min(n, wrong) + 1):
        drawn = math.comb(wrong, shown) * math.comb(size - wrong, n - shown) / math.comb(size, n)
        for clicked in range(shown + 1):
            chance = math.comb(shown, clicked) * (1 - missed) ** clicked * missed ** (shown - clicked)
            at_most = quick_bound(Batch(size, n, clicked), missed=missed)["at_most"]
            left = (wrong - clicked) / (size - clicked) if size > clicked else 0
            total += drawn * chance * (left <= at_most + 1e-12)
    return total


@pytest.mark.parametrize("missed", [0.0, 0.05, 0.3])
@pytest.mark.parametrize(("size", "n"), [(30, 12), (48, 48), (90, 20)])
def test_one_look_holds_however_many_are_wrong(size, n, missed):
    """Half of the 5 % are left for later looks."""
    coverage = [slow_coverage(size, wrong, n, missed) for wrong in range(0, size + 1, 6)]
    assert min(coverage) >= 0.975 - 1e-9


def simulate(rng, share, looks, missed=0.05, size=400, count=48):
    """One batch; the promise after each look, and the truth."""
    wrong = np.zeros(size, bool)
    wrong[: round(share * size)] = True
    order = rng.permutation(size)
    clicked = wrong[order] & (rng.random(size) >= missed)
    for look in range(1, looks + 1):
        n = min(look * count, size)
        k = int(clicked[:n].sum())
        yield Batch(size, n, k, look), int(wrong.sum()) - k


@pytest.mark.parametrize("share", [0.005, 0.02, 0.06, 0.065, 0.3])
def test_promises_hold_for_people_who_stop_when_they_like(share):
    """Every look of a batch at once: the worst stopping rule cannot do better than failing whenever any look fails."""
    rng = np.random.default_rng(round(1000 * share))
    held = [
        all(left <= quick_bound(batch)["at_most"] * (batch.size - batch.wrong) + 1e-9
            for batch, left in simulate(rng, share, looks=5))
        for _ in range(150)
    ]  # fmt: skip
    assert np.mean(held) >= 0.95


def test_without_accounting_for_looks_they_would_not():
    """So the test above can fail: the plain 95 % bound after each of many short looks breaks in more than 5 %."""
    rng = np.random.default_rng(0)
    held = [
        all(left <= clopper_pearson(batch.wrong, batch.looked_at)[1] * (batch.size - batch.wrong)
            for batch, left in simulate(rng, 0.06, looks=20, missed=0, size=5000, count=10))
        for _ in range(300)
    ]  # fmt: skip
    assert np.mean(held) < 0.94


def test_the_most_confident_tiles_would_bound_nothing():
    """Exchangeability is what the promise rests on: tiles in the order of a good score show too few mistakes."""
    rng = np.random.default_rng(0)
    wrong = rng.random(400) < np.linspace(0, 0.3, 400)  # the score is good: mistakes are at its end
    bound = bulk_bound(Batch(400, 48, int(wrong[:48].sum())))
    assert bound["at_most"] < wrong.mean()


@pytest.mark.parametrize("shares", [(0.02, 0.02, 0.02), (0.01, 0.05, 0.2)])
def test_the_sum_over_batches_holds_at_all_times(shares):
    """The person goes on with a batch until its bound pleases him, then takes the next, and stops anywhere."""
    rng = np.random.default_rng(1)
    held = []
    for _ in range(40):
        done, left_before, good = [], 0, True
        for share in shares:
            for batch, left in simulate(rng, share, looks=4):
                bound = pooled_bound([*done, batch])
                good &= left_before + left <= bound["at_most"] * bound["labels"] + 1e-9
                if quick_bound(batch)["at_most"] < 0.05:
                    break
            done.append(batch)
            left_before += left
        held.append(good)
    assert np.mean(held) >= 0.95


def test_batches_that_were_given_up_count():
    """Keeping what looks good is choosing by the outcome: promises on the kept alone would break."""
    rng = np.random.default_rng(2)
    held = {"all": [], "kept": []}
    for _ in range(100):
        begun, left_kept = [], 0
        for _ in range(40):
            batch, left = next(simulate(rng, 0.1, looks=1))
            begun.append(batch._replace(kept=batch.wrong <= 2))
            left_kept += left if begun[-1].kept else 0
        for name, some in (("all", begun), ("kept", [batch for batch in begun if batch.kept])):
            bound = pooled_bound(some)
            held[name].append(left_kept <= bound["at_most"] * bound["labels"] + 1e-9)
    assert np.mean(held["all"]) >= 0.95
    assert np.mean(held["kept"]) < 0.95


def test_the_sum_over_batches_is_of_use():
    batch = Batch(500, 100, 1, 2)
    together = pooled_bound([batch] * 10)
    assert together["labels"] == 4990
    assert together["looked_at"] == 1000
    assert together["wrong"] == 10
    assert together["at_most"] < bulk_bound(batch)["at_most"] / 2


@pytest.mark.parametrize("batch", [Batch(10, 11, 0), Batch(10, 5, 6), Batch(10, 5, -1)])
def test_impossible_counts_are_refused(batch):
    for bound in (bulk_bound, lambda one: pooled_bound([one])):
        with pytest.raises(UserError, match="must be"):
            bound(batch)
    with pytest.raises(UserError, match="side"):
        clopper_pearson(0, 5, side="lower")
