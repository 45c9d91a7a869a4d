"""Suggestions: near words only, and nothing where no word is near."""

import pytest

from vcc_infuse.utils.suggest import did_you_mean, did_you_mean_path


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("--stps", ["--steps", "--seed", "--size"], "; did you mean --steps?"),
        ("--ema", ["--ema_decay", "--memory"], "; did you mean --ema_decay?"),
        (
            "--algorithm.thresold",
            ["--algorithm.threshold", "--algorithm.weight"],
            "; did you mean --algorithm.threshold?",
        ),
        ("--algorithm.x", ["--algorithm.threshold", "--algorithm.weight"], ""),
        ("dgo", ["cat", "dog"], "; did you mean dog?"),
        ("plastic", ["glass", "metal", "paper"], ""),
        ("anything", [], ""),
    ],
)
def test_only_near_words_are_suggested(word, known, suggested):
    assert did_you_mean(word, known) == suggested


def test_a_folder_in_common_does_not_make_files_similar(tmp_path):
    (tmp_path / "flowers.zip").touch()
    (tmp_path / "birds").touch()
    assert did_you_mean_path(str(tmp_path / "flower.zip")) == f"; did you mean {tmp_path}/flowers.zip?"
    assert did_you_mean_path(str(tmp_path / "cars")) == ""
    assert did_you_mean_path("digitz", ["digits", "svhn"]) == "; did you mean digits?"
