"""`memory`: the pieces that fit, from what autograd keeps."""

import pytest
import torch
from tests.helpers.every import RUN, few_digits
from tests.helpers.tiny import same
from torch import nn

from vcc_infuse import FixMatch, OptionError, SmallConv, Trainer
from vcc_infuse.training import micro_batch as budget
from vcc_infuse.training.config import TrainConfig, memory_bytes
from vcc_infuse.training.micro_batch import saved_bytes, used_bytes


@pytest.mark.parametrize(("text", "size"), [("4GB", 4e9), ("0.5 gb", 5e8), ("800MB", 8e8)])
def test_sizes(text, size):
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["4", "four", "0GB", "4GiB", "-1GB", ""])
def test_a_size_that_is_none(text):
    with pytest.raises(OptionError, match="must be a size such as 4GB"):
        TrainConfig(memory=text)


def test_what_autograd_keeps():
    """Of two linear layers and a sigmoid: the input, and the output of the sigmoid, which two of them need."""
    net = nn.Sequential(nn.Linear(10, 100), nn.Sigmoid(), nn.Linear(100, 3))
    rows = 7
    assert saved_bytes(net, torch.randn(rows, 10)) == 4 * rows * (10 + 100)


def test_counting_changes_nothing():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    assert saved_bytes(net, torch.randn(5, 4, generator=torch.Generator().manual_seed(0))) > 0
    assert same(before, net.state_dict())
    assert torch.equal(random, torch.get_rng_state())


def prepared(memory, **options):
    trainer = Trainer(SmallConv(8), FixMatch(), **{**RUN, "batch_size": 32, "memory": memory, **options})
    trainer.prepare(few_digits())
    return trainer


def test_less_memory_means_smaller_pieces(monkeypatch):
    monkeypatch.setattr(budget, "used_bytes", lambda device: 1e9)
    assert prepared("8GB").micro_batch_ is None
    pieces = [prepared(memory).micro_batch_ for memory in ("1000.5MB", "1000.8MB", "1001.2MB")]
    assert None not in pieces
    assert 2 <= pieces[0] < pieces[1] < pieces[2] < 96
    with pytest.raises(OptionError, match="too little .* at least 1.0GB"):
        prepared("1000.1MB")


def test_a_given_micro_batch_wins():
    assert prepared("8GB", micro_batch=3).micro_batch_ == 3
    assert prepared(None).micro_batch_ is None


def test_the_step_is_taken_in_these_pieces(monkeypatch):
    monkeypatch.setattr(budget, "used_bytes", lambda device: 1e9)
    trainer, sizes = prepared("1000.8MB"), []
    trainer.state_.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    trainer.train_step(0)
    assert max(sizes) == trainer.micro_batch_


def test_memory_in_use_is_that_of_the_process():
    assert 5e7 < used_bytes(torch.device("cpu")) < 1e11
