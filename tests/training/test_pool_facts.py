"""What is known of a pool before the first step: class shares, and weights of foreign rows that act softly and late."""

from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch

from vcc_infuse import (
    ABC,
    AlignedINFUSE,
    Balance,
    Evidence,
    FixMatch,
    Identity,
    LinearProbe,
    SelfTraining,
    SmallConv,
    Softmax,
    SSLData,
    Trainer,
)
from vcc_infuse.errors import UserError
from vcc_infuse.selectors.infuse import aligned as aligned_module
from vcc_infuse.training import pool_facts
from vcc_infuse.training.pool_facts import LEAST, estimated_shares, late, open_set_weights, trusted_labels
from vcc_infuse.types import Step

FAST = dict(steps=8, eval_every=8, batch_size=8, unlabeled_ratio=2, progress=False, precision="fp32", device="cpu")


def clustered(pool, labels=10, width=6, foreign=0, seed=0):
    """`pool[c]` unlabeled rows of each class beside balanced labels, then rows of a class without labels."""
    rng = np.random.default_rng(seed)
    centers = 4 * np.eye(width)
    y = np.repeat(np.arange(len(pool)), labels)
    truth = np.concatenate([y, np.repeat(np.arange(len(pool)), pool), np.full(foreign, len(pool))])
    x = centers[truth] + rng.normal(size=(len(truth), width))
    shown = np.concatenate([y, np.full(len(truth) - len(y), -1)])
    return SSLData.from_arrays(x.astype(np.float32), shown), truth


def test_shares_are_those_of_the_pool_and_not_of_the_labels():
    data, truth = clustered([300, 90, 30])
    expected = np.bincount(truth, minlength=3) / len(truth)
    assert np.abs(estimated_shares(data).numpy() - expected).max() < 0.2 * np.abs(1 / 3 - expected).max()


def test_foreign_rows_weigh_less_and_no_row_is_left_out():
    data, truth = clustered([60, 60, 60], foreign=60)
    weights = open_set_weights(data).numpy()
    of = truth[data.split.pool]
    assert weights.shape == (len(data.split.pool),)
    assert weights.mean() == pytest.approx(1, abs=1e-5)
    assert weights.min() >= LEAST
    assert weights[of == 3].mean() < 0.5 * weights[of < 3].mean()
    labeled = np.isin(data.split.pool, data.split.labeled)
    assert (weights[labeled] == weights.max()).all()


def test_weights_come_late():
    weights = torch.tensor([0.2, 1.4])
    assert torch.equal(late(weights, 0.25), torch.ones(2))
    assert torch.allclose(late(weights, 0.375), torch.tensor([0.6, 1.2]))
    assert torch.allclose(late(weights, 0.9), weights)


def test_a_step_is_given_the_weights_of_its_rows(monkeypatch):
    data, _ = clustered([60, 60, 60], foreign=60)
    seen = []
    losses = FixMatch.losses

    def spy(self, step: Step):
        seen.append((step.number, step.batch.pool_ids.clone(), step.batch.weights.clone()))
        return losses(self, step)

    monkeypatch.setattr(FixMatch, "losses", spy)
    Trainer(Identity(), FixMatch(), open_set="auto", **FAST).fit(data)
    expected = open_set_weights(data)
    for number, ids, weights in seen:
        torch.testing.assert_close(weights, late(expected[ids], number / 8))
    assert (seen[0][2] == 1).all()
    assert (seen[-1][2] != 1).any()


def test_a_selector_that_asks_gets_estimated_shares():
    data, _ = clustered([200, 60, 20])
    for shares in ("labels", "estimated"):
        trainer = Trainer(Identity(), FixMatch(), selector=AlignedINFUSE(keep=0.5, shares=shares), **FAST)
        trainer.fit(data)
        estimate = trainer.state_.task.pool_shares
        assert (estimate is None) == (shares == "labels")
    torch.testing.assert_close(estimate, estimated_shares(data))


@pytest.mark.parametrize("shares", ["auto", "predicted", "estimated"])
def test_balance_and_evidence_count_against_estimated_shares(shares):
    data, _ = clustered([200, 60, 20])
    for method, calibrator in (
        (ABC(Balance(FixMatch(), shares=shares)), Softmax()),
        (FixMatch(), Evidence(shares=shares)),
    ):
        trainer = Trainer(Identity(), method, calibrator, **FAST)
        trainer.fit(data)
        state = trainer.state_
        scale = state.algorithm.base.scale if isinstance(method, ABC) else state.calibrator.scale
        if shares == "predicted":
            assert scale.expected is None
        else:
            torch.testing.assert_close(scale.expected, estimated_shares(data))


def test_a_selector_keeps_the_shares_of_the_labels_beside_balance(monkeypatch):
    data, _ = clustered([200, 60, 20])
    used = []
    monkeypatch.setattr(aligned_module, "aligned", lambda probs, shares: used.append(shares) or probs)
    Trainer(Identity(), Balance(FixMatch()), selector=AlignedINFUSE(keep=0.5), **FAST).fit(data)
    assert all(torch.equal(shares, torch.full((3,), 10.0)) for shares in used)
    assert used


def test_self_training_asks_for_shares_that_leave_out_what_is_foreign():
    asked = {}
    for foreign in (0, 300):
        data, _ = clustered([100, 60, 60, 60, 20], foreign=foreign, labels=15)
        trainer = Trainer(Identity(), SelfTraining(), progress=False)
        trainer.fit(data)
        asked[foreign] = trainer.state_.task.pool_shares
        torch.testing.assert_close(asked[foreign] / asked[foreign].sum(), estimated_shares(data))
    assert asked[0].sum() == pytest.approx(1)
    assert asked[300].sum() == pytest.approx(0.5, abs=0.1)
    trainer = Trainer(Identity(), SelfTraining(shares="equal"), progress=False)
    trainer.fit(data)
    assert trainer.state_.task.pool_shares is None


def test_images_have_no_estimate_unless_they_are_asked_for_one():
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 1)).astype(np.uint8)
    data = SSLData.from_arrays(images, [0, 1] * 3 + [-1] * 6)
    trainer = Trainer(SmallConv(), Balance(FixMatch()), **FAST)
    trainer.fit(data)
    assert trainer.state_.task.pool_shares is None
    with pytest.raises(UserError, match="shares estimated needs features of a frozen network"):
        Trainer(SmallConv(), Balance(FixMatch(), shares="estimated"), **FAST).fit(data)


@pytest.mark.parametrize(("labels", "estimated"), [(9, False), (10, True)])
def test_few_labels_are_no_basis_for_an_estimate(labels, estimated):
    data, _ = clustered([40, 30, 20], labels=labels)
    trainer = Trainer(Identity(), Balance(FixMatch()), **FAST)
    trainer.fit(data)
    assert (trainer.state_.task.pool_shares is not None) == estimated


def test_shares_of_a_large_pool_are_estimated_on_a_part_of_it(monkeypatch):
    data, _ = clustered([300, 90, 30])
    whole = estimated_shares(data)
    monkeypatch.setattr(pool_facts, "MOST", 100)
    part = estimated_shares(data)
    assert not torch.equal(part, whole)
    torch.testing.assert_close(part, whole, atol=0.1, rtol=0)


def test_images_without_a_bank_are_refused_in_one_line():
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 1)).astype(np.uint8)
    data = SSLData.from_arrays(images, [0, 1] * 3 + [-1] * 6)
    with pytest.raises(UserError, match="open_set auto needs features of a frozen network"):
        Trainer(SmallConv(), FixMatch(), open_set="auto", **FAST).fit(data)


def flipped():
    """Data in which every tenth label is that of the next class, and the truth."""
    data, truth = clustered([60, 60, 60], labels=20, width=30)
    y = data.dataset.train.y.copy()
    y[:60:10] = (y[:60:10] + 1) % 3
    return SSLData(replace(data.dataset, train=replace(data.dataset.train, y=y)), data.split), truth


def test_wrong_labels_are_left_to_the_pool_and_right_ones_stay():
    data, truth = flipped()
    after = trusted_labels(data)
    doubted = np.setdiff1d(data.split.labeled, after.split.labeled)
    assert len(doubted) >= 4
    assert (data.dataset.train.y[doubted] != truth[doubted]).mean() > 0.6
    assert set(after.split.pool) == set(data.split.pool) | set(doubted)
    inside = np.isin(after.split.pool, after.split.labeled)
    assert inside[: inside.sum()].all()  # labeled rows first, as everywhere
    assert (np.diff(after.split.pool[inside.sum() :]) > 0).all()
    clean = clustered([60, 60, 60], labels=20, width=30)[0]
    assert len(trusted_labels(clean).split.labeled) == 60


def test_a_class_whose_labels_are_all_in_doubt_keeps_them(monkeypatch):
    data, _ = flipped()
    y = data.labeled_y
    doubts = namedtuple("Doubts", "p_wrong")(np.where(y == 1, 0.9, np.nan))
    monkeypatch.setattr(pool_facts, "find_doubtful_labels", lambda *_, **__: doubts)
    assert len(trusted_labels(data).split.labeled) == 60


@pytest.mark.parametrize("algorithm", [LinearProbe(), FixMatch()], ids=["LinearProbe", "FixMatch"])
def test_doubt_lowers_the_loss_on_the_truth(algorithm):
    data, truth = flipped()
    losses = []
    for doubt in ("off", "weigh"):
        trainer = Trainer(Identity(), algorithm, doubt=doubt, head_init="probe", cross_fit=False, **FAST)
        trainer.fit(data)
        logits = trainer.state_.classifier()(torch.from_numpy(standardized(data))).logits.detach()
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(truth))))
    assert losses[1] < 0.9 * losses[0]


def standardized(data):
    x = data.dataset.train.x
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def test_the_summary_says_which_labels_weigh_nothing():
    data, _ = flipped()
    with pytest.warns(UserWarning, match=r"\d of 60 labels are more likely wrong than right and weigh nothing"):
        Trainer(Identity(), FixMatch(), doubt="weigh", cross_fit=False, **FAST).fit(data)


def test_doubt_without_a_bank_is_refused_in_one_line():
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 1)).astype(np.uint8)
    data = SSLData.from_arrays(images, [0, 1] * 3 + [-1] * 6)
    with pytest.raises(UserError, match="doubt weigh needs features of a frozen network"):
        Trainer(SmallConv(), FixMatch(), doubt="weigh", **FAST).fit(data)
