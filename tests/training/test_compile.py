"""`compile` with a compiler that fails."""

from functools import partial
from unittest.mock import patch

import torch
from tests.helpers.every import RUN, few_digits
from tests.helpers.processes import fork, wait

from vcc_infuse import FixMatch, SmallConv, Trainer


def broken(graph, inputs):
    raise RuntimeError("no compiler here")


def train():
    with patch.object(torch, "compile", partial(torch.compile, backend=broken)):
        trainer = Trainer(SmallConv(4), FixMatch(), compile=True, **{**RUN, "steps": 2, "eval_every": 2})
        assert 0 <= trainer.fit(few_digits())["error"] <= 1


def test_what_cannot_be_compiled_runs_as_it_is(tmp_path):
    """In a process of its own: the compiler starts threads, after which later tests could not fork theirs."""
    assert wait(fork(train, tmp_path / "log.txt")) == 0, (tmp_path / "log.txt").read_text()
