"""Every method, calibrator and selector: a run that was interrupted and continued ends as if it never had been."""

import json
import os
import signal
from unittest.mock import patch

import pytest
from safetensors.torch import load_file
from tests.helpers.every import ALGORITHMS, RUN, cases, differences, few_digits, lively, name, trainer

from vcc_infuse import INFUSE, VCC, Algorithm, FixMatch, RobustINFUSE, SmallConv, Trainer
from vcc_infuse.algorithms.baselines import ClosedForm
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.recorder import RunRecorder
from vcc_infuse.utils.io import read_jsonl

DONE = 3


class Cut(Trainer):
    """Gets a signal in its third step, in the middle of the second interval of a core set."""

    def train_step(self, number):
        super().train_step(number)
        if number + 1 == DONE:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def data():
    return few_digits()


def check(case, data, folder):
    """Compare a run with one that was interrupted and resumed."""
    whole, cut = folder / "whole", folder / "cut"
    straight = trainer(SmallConv(4), case, out=str(whole))
    straight.fit(data)
    with pytest.raises(Interrupted, match=f"after step {DONE} of 6"):
        trainer(SmallConv(4), case, Cut, out=str(cut)).fit(data)
    resumed = trainer(SmallConv(4), case, out=str(cut))
    resumed.fit(data, resume=True)
    compare(straight, resumed, whole, cut)
    return straight


def compare(straight, resumed, whole, cut):
    """All state, figures, core sets and the saved model of two runs, bit for bit."""
    assert differences(straight.state_.state_dict(), resumed.state_.state_dict()) == []
    assert differences(*(load_file(run / "model.safetensors") for run in (whole, cut))) == []
    for file in ("metrics.jsonl", "selections.jsonl"):
        lines = [read_jsonl(run / file).values if (run / file).exists() else [] for run in (whole, cut)]
        assert differences(*lines) == []


CASES = cases()
SOLVED = [key for key, case in CASES.items() if isinstance(case[0], ClosedForm)]


@pytest.mark.parametrize("key", [key for key in CASES if key not in SOLVED])
def test_a_resumed_run_ends_bit_identical(key, data, tmp_path):
    check(CASES[key], data, tmp_path)


@pytest.mark.parametrize("key", SOLVED)
@pytest.mark.parametrize("place", ["on_evaluation", "checkpoint", "on_finish"])
def test_a_run_without_steps_finishes_when_resumed(key, place, data, tmp_path):
    """Interrupted before its evaluation, before its checkpoint or before its summary."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    straight = trainer(SmallConv(4), CASES[key], out=str(whole))
    straight.fit(data)
    with patch.object(RunRecorder, place, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        trainer(SmallConv(4), CASES[key], out=str(cut)).fit(data)
    assert not (cut / "summary.json").exists()
    resumed = trainer(SmallConv(4), CASES[key], out=str(cut))
    assert resumed.fit(data, resume=True)["error"] == json.loads((whole / "summary.json").read_text())["error"]
    assert len(read_jsonl(cut / "metrics.jsonl").values) == 1
    compare(straight, resumed, whole, cut)


FOLLOWERS = [kind for kind in ALGORITHMS if kind.on_coreset_change is not Algorithm.on_coreset_change]


@pytest.mark.parametrize("kind", FOLLOWERS, ids=name)
def test_counts_that_follow_the_core_set_resume_in_mid_interval(kind, data, tmp_path):
    straight = check((lively(kind), lively(VCC), lively(INFUSE)), data, tmp_path)
    assert [line["step"] for line in read_jsonl(tmp_path / "cut" / "selections.jsonl").values] == [0, 2, 4]
    assert straight.state_.coreset_scheduler.coreset_start == 4


def test_a_core_set_that_is_resampled_after_each_pass_resumes(data, tmp_path):
    selector = RobustINFUSE(
        keep=1.5 * RUN["batch_size"] * RUN["unlabeled_ratio"] / len(data.split.pool),
        every=6,
        first_interval="score",
        resample_each_pass=True,
    )
    straight = check((lively(FixMatch), None, selector), data, tmp_path)
    # Two batches make a pass, so there is one draw before the interruption and one after.
    assert straight.state_.coreset_scheduler.coreset_start == 4
    assert len(read_jsonl(tmp_path / "cut" / "selections.jsonl").values) == 1
