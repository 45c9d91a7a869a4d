"""Helpers of several processes, on one process; tests/integration/test_every_processes.py starts two."""

import random

import numpy as np
import torch
import torch.distributed as dist

from vcc_infuse.cli.main import main
from vcc_infuse.training.distributed import autocast, average_, gather, make_accelerator
from vcc_infuse.utils.seeding import seed_step


def test_a_single_process_changes_nothing():
    x = torch.arange(6.0).view(3, 2)
    assert gather(x) is x
    average_([x])
    assert torch.equal(x, torch.arange(6.0).view(3, 2))


def test_a_step_seeds_every_generator():
    def draw(step, rank):
        seed_step(5, step, rank)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draw(3, 0) == draw(3, 0)
    assert len({draw(3, 0), draw(4, 0), draw(3, 1)}) == 3


def test_a_lost_process_is_one_line_from_every_process(monkeypatch, capsys):
    def lost(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1\nmore")

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lost)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("vcc_infuse.cli.evaluate.run", lambda words: average_([torch.zeros(2)]))
    assert main(["evaluate"]) == 2
    said = capsys.readouterr().err
    assert "another process of this run has ended ([gloo/transport/tcp/pair.cc] Connection closed by peer" in said
    assert said.count("\n") == 1


def test_weights_keep_their_gradient_after_a_forward_pass_without_one():
    """Old versions of torch cache what autocast makes of a weight under no_grad, and the strong view learns nothing."""
    layer = torch.nn.Linear(4, 4)
    with autocast(make_accelerator("bf16", "cpu")):
        assert not torch.is_autocast_cache_enabled()
        with torch.no_grad():
            layer(torch.ones(2, 4))
        assert layer(torch.ones(2, 4)).requires_grad
