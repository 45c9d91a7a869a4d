"""Methods that are solved instead of trained, against scikit-learn."""

import resource
import sys

import numpy as np
import pytest
import torch
from sklearn.semi_supervised import LabelSpreading as Spreading

from tests.helpers.blobs import blobs
from vcc_infuse import MLP, Identity, LabelSpreading, LinearProbe, OptionError, Predictor, SmallConv, SSLData, Trainer
from vcc_infuse.algorithms import baselines
from vcc_infuse.algorithms.baselines import NeighborVotes
from vcc_infuse.models import Classifier
from vcc_infuse.models.linear_probe import fit_probe, standardized_probe

RUN = dict(device="cpu", precision="fp32", progress=False, report=False)


def vectors(noise=0.4):
    """80 rows, of which 12 are labeled, and 40 test rows."""
    x, y = blobs(120, width=8, noise=noise)
    x, y = x.float().numpy(), y.numpy()
    labels = np.where(np.arange(80) < 12, y[:80], -1)
    return SSLData.from_arrays(x[:80], labels, x[80:], y[80:])


def small_images():
    generator = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = generator.integers(0, 120, (60, 8, 8, 3)) + 60 * (y == 1)[:, None, None, None] * np.array([1, 0, 0])
    labels = np.where(np.arange(60) < 15, y, -1)
    return SSLData.from_arrays(x.astype(np.uint8), labels, x[:20].astype(np.uint8), y[:20])


def solve(method, labeled, y, pool):
    model = Classifier.build(Identity(), (labeled.shape[1],), int(y.max()) + 1)
    return method.solve(model, labeled.float(), y, pool.float()).model.eval()


@pytest.mark.parametrize("backbone", [Identity(), SmallConv(4)], ids=["vectors", "images"])
def test_a_linear_probe_is_the_regression_on_the_features(backbone):
    data = vectors() if isinstance(backbone, Identity) else small_images()
    trainer = Trainer(backbone, LinearProbe(seed=2), **RUN)
    summary = trainer.fit(data)
    model = trainer.state_.model.eval()
    with torch.no_grad():
        features = model.backbone(trainer.state_.views("plain", torch.from_numpy(data.dataset.train.x)))
    labeled = features[torch.from_numpy(data.split.labeled)]
    fit = fit_probe if isinstance(backbone, Identity) else standardized_probe
    probe = fit(labeled, torch.from_numpy(data.labeled_y), model.head.out_features, 2)
    torch.testing.assert_close(model.head.weight, probe.weight, rtol=1e-3, atol=1e-3)
    assert (summary["steps"], summary["error_probe"]) == (0, summary["error"])


@pytest.mark.parametrize("neighbors", [3, 7])
def test_label_spreading_is_that_of_scikit_learn(neighbors):
    x, y = blobs(600, width=8, noise=0.5)
    labeled, pool, other = x[:24], x[24:500], x[500:]
    model = solve(LabelSpreading(n_neighbors=neighbors), labeled, y[:24], pool)
    own = Spreading("knn", n_neighbors=neighbors, alpha=0.2, max_iter=30)
    own.fit(x[:500].numpy(), torch.cat([y[:24], torch.full((476,), -1)]).numpy())
    for rows in (pool, other):  # new rows, and those of the pool as if they were new
        probs = model(rows.float()).logits.softmax(1).detach().numpy()
        with np.errstate(invalid="ignore"):
            expected = own.predict_proba(rows.numpy())
        reached = ~np.isnan(expected).any(1)  # scikit-learn divides by zero where no neighbor has a label
        assert reached.mean() > 0.5
        equal = np.abs(probs - expected).max(1) < 1e-3
        assert equal[reached].mean() > 0.97  # but for ties of distances, which are stored in half precision
        np.testing.assert_allclose(probs[~reached], 1 / 4, atol=1e-6)


def test_separate_blobs_are_labeled_as_by_scikit_learn_exactly():
    x, y = blobs(300, width=8, noise=0.1)
    model = solve(LabelSpreading(), x[:12], y[:12], x[12:200])
    own = Spreading("knn", n_neighbors=10, alpha=0.2, max_iter=30)
    own.fit(x[:200].numpy(), torch.cat([y[:12], torch.full((188,), -1)]).numpy())
    assert np.array_equal(model(x[12:200].float()).logits.argmax(1).numpy(), own.transduction_[12:])
    assert np.array_equal(model(x[200:].float()).logits.argmax(1).numpy(), own.predict(x[200:].numpy()))


@pytest.mark.parametrize("width", [8, 300])
def test_many_rows_are_spread_over_a_graph_as_over_all_pairs(width, monkeypatch):
    pytest.importorskip("faiss")
    x, y = blobs(600, width=width, noise=0.5)
    exact = solve(LabelSpreading(), x[:12], y[:12], x[12:])
    monkeypatch.setattr(baselines, "use_graph", lambda rows: True)
    monkeypatch.setattr(baselines, "COLUMNS", 70)
    model = solve(LabelSpreading(), x[:12], y[:12], x[12:])
    same = (model.backbone.spread - exact.backbone.spread).abs().amax(1) < 1e-3
    assert same.float().mean() > 0.95
    answers, expected = (one(x.float()).logits.softmax(1) for one in (model, exact))
    assert ((answers - expected).abs().amax(1) < 1e-3).float().mean() > 0.95


def test_alpha_decides_how_much_comes_from_neighbors():
    """A labeled row that lies among another class keeps its label at a small alpha only."""
    x, y = blobs(200, width=8, noise=0.1)
    y = y.clone()
    y[0] = (y[0] + 1) % 4
    shares = []
    for alpha in (0.01, 0.99):
        model = solve(LabelSpreading(alpha=alpha), x[:40], y[:40], x[40:])
        shares.append(float(model.backbone.spread[0, y[0]]))
    assert shares[0] > 0.9
    assert shares[1] < 0.5


def test_fewer_rows_than_neighbors():
    x, y = blobs(4, noise=0.1)
    model = solve(LabelSpreading(n_neighbors=10), x, y, x[:0])
    assert model(x.float()).logits.isfinite().all()


@pytest.mark.parametrize("option", [{"alpha": 0}, {"alpha": 1}, {"n_neighbors": 0}, {"max_iter": 0}])
def test_wrong_options(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        LabelSpreading(**option)


@pytest.mark.parametrize("method", [LinearProbe(), LabelSpreading()], ids=["probe", "spreading"])
@pytest.mark.parametrize("backbone", [Identity(), MLP((6,)), SmallConv(4)], ids=["linear", "MLP", "images"])
def test_a_saved_run_predicts_the_same(method, backbone, tmp_path):
    data = small_images() if isinstance(backbone, SmallConv) else vectors()
    trainer = Trainer(backbone, method, **RUN, out=str(tmp_path / "run"))
    summary = trainer.fit(data)
    rows = data.dataset.test.x
    before, after = trainer.predictor().predict(rows), Predictor.load(tmp_path / "run").predict(rows)
    assert torch.equal(before.probs, after.probs)
    assert summary["error"] == pytest.approx(float((after.labels.numpy() != data.dataset.test.y).mean()))


def test_a_large_pool_needs_no_matrix_of_all_pairs():
    """20,000 rows: a dense matrix of pairs would take 3.2 GB; the rows themselves are 5 MB here."""
    x, y = blobs(20_000, width=32, noise=0.3)
    unit = 1024**2 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    model = solve(LabelSpreading(), x[:40], y[:40], x[40:])
    logits = torch.cat([model(part.float()).logits for part in x[:1024].split(512)])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before < 1500
    assert (logits.argmax(1) == y[:1024]).float().mean() > 0.9


def test_votes_are_the_mean_of_the_nearest_rows():
    votes = NeighborVotes(Identity(), rows=3, width=1, classes=2, n_neighbors=2)
    votes.setup((1,))
    votes.attach(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
    torch.testing.assert_close(votes(torch.tensor([[0.2]])).exp(), torch.tensor([[0.75, 0.25]]))
