"""OracleINFUSE against autograd on the test set, on images and on a bank."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vcc_infuse
from paper.cell import Cell
from paper.oracle import OracleINFUSE
from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer, UserError
from vcc_infuse.models import Identity
from vcc_infuse.selectors.base import example_columns
from vcc_infuse.selectors.pool import Pool
from vcc_infuse.utils.serialization import to_config

OPTIONS = {"steps": 8, "eval_every": 4, "batch_size": 8, "unlabeled_ratio": 3, "progress": False, "report": False}


def make_data(kind):
    """Random images, or random rows of one plain, one weak and two strong views; the test set needs two chunks."""
    rng, bank = np.random.default_rng(0), kind == "bank"
    x = rng.normal(size=(760, 4, 6)) if bank else rng.integers(0, 256, (760, 8, 8, 1))
    x, y = x.astype(np.float32 if bank else np.uint8), rng.integers(0, 3, 760)
    shown = np.where(np.arange(60) < 12, y[:60], -1)
    return SSLData.from_arrays(x[:60], shown, x[60:], y[60:], slots=(1, 2) if bank else None)


def make_pool(kind, data):
    model = Identity() if kind == "bank" else SmallConv(width=4)
    trainer = Trainer(model, FixMatch(threshold=0.34), **OPTIONS)
    trainer.prepare(data)
    state = trainer.state_
    for part in (state.model, state.algorithm, state.calibrator):
        part.eval()
    parts = {name: getattr(state, name) for name in ("model", "algorithm", "calibrator", "task")}
    return Pool(batches=trainer.batches_, ema=state.model, number=3, **parts)


def loss_on_test(model, dataset):
    """The mean loss with its graph; the inputs are made by hand."""
    x, (mean, std) = torch.from_numpy(dataset.test.x), (torch.tensor(part) for part in (dataset.mean, dataset.std))
    if x.ndim == 3:
        x = F.normalize((x[:, 0] - mean) / std, dim=1)  # a head on a bank sees unit vectors
    else:
        x = (x.permute(0, 3, 1, 2) / 255 - mean[:, None, None]) / std[:, None, None]
    return F.cross_entropy(model(x).logits, torch.from_numpy(dataset.test.y))


@pytest.mark.parametrize("params", ["head", "all"])
@pytest.mark.parametrize("kind", ["images", "bank"])
def test_scores_are_those_of_the_gradient_on_the_test_set(kind, params):
    data = make_data(kind)
    pool, selector = make_pool(kind, data), OracleINFUSE(keep=0.5, params=params)
    selector.attach(data.dataset)
    columns, chunks = selector.score_pool(pool), []
    parameters = list((pool.model.head if params == "head" else pool.model).parameters())
    true = torch.autograd.grad(loss_on_test(pool.model, data.dataset), parameters)
    pool.scan(lambda chunk: chunks.append(chunk) or example_columns(chunk))
    assert (columns["weight"] > 0).sum() >= 10
    for chunk in chunks:
        losses = F.cross_entropy(pool.model(chunk.images).logits, chunk.labels, reduction="none") * chunk.weights
        for row, loss in zip(chunk.ids[:15].tolist(), losses[:15], strict=True):
            own = torch.autograd.grad(loss, parameters, retain_graph=True)
            expected = sum((a * b).sum() for a, b in zip(true, own, strict=True))
            torch.testing.assert_close(columns["score"][row], expected, rtol=1e-3, atol=1e-7)


def test_a_run_selects_by_it_and_its_copy_shares_the_test_examples():
    data, selector = make_data("bank"), OracleINFUSE(keep=0.5, every=2, first_interval="score")
    selector.attach(data.dataset)
    trainer = Trainer(Identity(), FixMatch(threshold=0.3), selector=selector, **OPTIONS)
    trainer.fit(data)
    used = trainer.state_.coreset_scheduler.selector
    assert used is not selector
    assert used.inputs is selector.inputs
    assert used.selection_.rows.selected.any()


def test_without_test_examples_it_says_so():
    data = make_data("bank")
    with pytest.raises(UserError, match="^OracleINFUSE has no test examples; call its attach before fit$"):
        OracleINFUSE(keep=0.5).score_pool(make_pool("bank", data))
    alone = SSLData.from_arrays(data.dataset.train.x, data.dataset.train.y, slots=(1, 2))
    with pytest.raises(UserError, match="^OracleINFUSE needs a test set, and .* has none; choose another selector$"):
        OracleINFUSE(keep=0.5).attach(alone.dataset)


def test_it_is_no_method_of_the_package_but_a_cell_can_name_it():
    assert "OracleINFUSE" not in vcc_infuse.__all__
    path = "paper.oracle.OracleINFUSE"
    cell = Cell({"data": "digits", "selector": path, "selector.keep": 0.2, "selector.params": "all"})
    selector = cell.config().build("selector")
    assert (type(selector), selector.keep, selector.params) == (OracleINFUSE, 0.2, "all")
    assert to_config(selector)["class_path"] == path
