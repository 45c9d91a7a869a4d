"""`compile` with a compiler that fails."""

from functools import partial

import torch
from tests.helpers.every import RUN, few_digits

from vcc_infuse import FixMatch, SmallConv, Trainer


def broken(graph, inputs):
    raise RuntimeError("no compiler here")


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    summary = Trainer(SmallConv(4), FixMatch(), compile=True, **{**RUN, "steps": 2, "eval_every": 2}).fit(few_digits())
    assert 0 <= summary["error"] <= 1
