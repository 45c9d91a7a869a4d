import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.calibrators import Softmax
from vcc_infuse.data.batches import Batches
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.inference.predictor import make_views
from vcc_infuse.models import Classifier, SmallConv
from vcc_infuse.selectors.pool import Pool
from vcc_infuse.types import Task, identity_gather

POOL, LABELED = 300, 30


def _digits():
    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8, 1) * 15.9).astype(np.uint8)
    shown = y.copy()[:POOL]
    shown[LABELED:] = -1
    data = SSLData.from_arrays(x[:POOL], shown, x[POOL : POOL + 200], y[POOL : POOL + 200])
    return data, y[:POOL]


@pytest.fixture(scope="session")
def data():
    return _digits()[0]


@pytest.fixture(scope="session")
def truth(data):
    return _digits()[1][data.split.pool]


def _batches(data, rank=0, world=1):
    views = make_views(data.dataset)
    return Batches(data, views, ("weak", "strong"), batch_size=20, unlabeled_batch_size=40, rank=rank, world=world)


@pytest.fixture(scope="session")
def trained(data):
    """A classifier that is confident on about half of the pool, so that some examples are selected and some are not."""
    torch.manual_seed(0)
    model = Classifier.build(SmallConv(width=6), (1, 8, 8), 10).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = _batches(data)
    for step in range(60):
        batch = batches.at(step)
        loss = F.cross_entropy(model(batch.x).logits, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.fixture
def make_pool(data, trained):
    def make(algorithm=None, calibrator=None, number=7, rank=0, world=1, gather=identity_gather, model=None):
        model = copy.deepcopy(trained) if model is None else model
        ema = copy.deepcopy(model).eval()
        algorithm = FixMatch(threshold=0.6) if algorithm is None else algorithm
        calibrator = Softmax() if calibrator is None else calibrator
        counts = torch.bincount(torch.from_numpy(data.labeled_y), minlength=10)
        task = Task(10, len(data.labeled_y), len(data.split.pool), counts, 100, 20, 40)
        for part in (algorithm, calibrator):
            part.setup(model, task)
            part.train()
        return Pool(
            batches=_batches(data, rank, world),
            model=model.train(),
            ema=ema,
            algorithm=algorithm,
            calibrator=calibrator,
            task=task,
            number=number,
            gather=gather,
        )

    return make


@pytest.fixture
def eval_mode():
    """Puts a pool's modules in eval mode, for tests that bypass `select`."""

    def switch(pool):
        for part in (pool.model, pool.algorithm, pool.calibrator):
            part.eval()
        return pool

    return switch
