"""Completion: every command and option is offered, and a real shell completes what a user types."""

import re
import shutil
import subprocess

import pytest

from vcc_infuse.cli import completion
from vcc_infuse.cli.main import COMMANDS, main

TRY = """
source {script}
COMP_WORDS=(vcc-infuse {words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_vcc_infuse
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell, in a file."""
    folder = tmp_path_factory.mktemp("completion")
    whole = completion.whole_command()
    for shell in completion.SHELLS:
        (folder / shell).write_text(completion.shtab.complete(whole, shell))
    return folder


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_knows_every_command_and_the_options_of_classes(shell, scripts):
    text = (scripts / shell).read_text()
    words = set(re.split(r"[^\w.-]+", text))
    assert set(COMMANDS) <= words
    dashes = "" if shell == "fish" else "--"
    options = ("algorithm", "selector.keep", "algorithm.threshold", "bank.weak", "trust-code", "abstain", "json")
    assert {f"{dashes}{name}" for name in options} <= words
    assert {"FixMatch", "INFUSE", "frozen"} <= words
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", scripts / shell], capture_output=True).stderr == b""


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(("words", "offered"), [
    ("do", {"doctor"}),
    ("train --algorithm Fi", {"FixMatch"}),
    ("train --preset fr", {"frozen"}),
    ("train --selector.ke", {"--selector.keep"}),
    ("train --lazy t", {"true"}),
    ("train --init st", {"start"}),
    ("predict --format ''", {"csv", "jsonl"}),
    ("predict photo", {"photos/"}),
    ("export photos/model --format o", {"onnx"}),
])  # fmt: skip
def test_bash_completes(words, offered, scripts, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "start").touch()
    code = TRY.format(script=scripts / "bash", words=words)
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert {line.rstrip("/") for line in ended.stdout.split()} == {word.rstrip("/") for word in offered}


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize(("words", "offered"), [
    ("do", "doctor"), ("train --algorithm Fi", "FixMatch"), ("train --selector.ke", "--selector.keep"),
])  # fmt: skip
def test_fish_completes(words, offered, scripts):
    code = f"source {scripts / 'fish'}; complete -C 'vcc-infuse {words}'"
    ended = subprocess.run(["fish", "-c", code], capture_output=True, text=True)
    assert [line.split("\t")[0] for line in ended.stdout.splitlines()] == [offered]


def test_the_command_prints_the_script(capsys, scripts):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == (scripts / "bash").read_text() + "\n"


def test_another_shell(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "SHELL must be one of bash, zsh, fish, got 'tcsh'" in capsys.readouterr().err
