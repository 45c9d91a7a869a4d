"""`vcc-infuse doctor`: each fault is named with the command that fixes it, and the status says if there is one."""

import json
import subprocess
import sys
from collections import namedtuple
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from vcc_infuse.cli import doctor
from vcc_infuse.cli.main import main
from vcc_infuse.models import pretrained

Usage = namedtuple("Usage", "total used free")


def declare(monkeypatch, *requirements, extras=()):
    """Let the package declare other requirements than its own."""
    about = metadata.metadata("vcc-infuse")
    del about["Provides-Extra"]
    for name in extras:
        about["Provides-Extra"] = name
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: list(requirements))
    monkeypatch.setattr(doctor.metadata, "metadata", lambda name: about)


def answer(capsys):
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_sound_installation(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "not" / "yet"))
    status, found = answer(capsys)
    assert status == 0
    assert found["ok"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    by_name = {check["name"]: check for check in found["checks"]}
    assert {"packages", "device", "weights", "cache", "runs"} <= set(by_name)
    assert f"torch {metadata.version('torch')}" in by_name["packages"]["text"]
    assert "not made yet" in by_name["cache"]["text"]
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(("needed", "said"), [
    ("no-such-package>=1", "no-such-package is missing"),
    ("numpy>=999", f"numpy {metadata.version('numpy')} must be >=999"),
])  # fmt: skip
def test_a_package_that_is_missing_or_too_old(needed, said, monkeypatch, capsys):
    declare(monkeypatch, "torch>=2", needed)
    assert main(["doctor"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert said in line
    assert line.endswith("; pip install --upgrade vcc-infuse")


def test_extras_are_notes_with_their_command(monkeypatch, capsys):
    rules = ['numpy>=1; extra == "there"', 'no-such-package; extra == "lacking"', 'nothing; extra == "dev"']
    declare(monkeypatch, "torch>=2", *rules, extras=("there", "lacking", "dev"))
    status, found = answer(capsys)
    assert status == 0
    lines = [(c["status"], c["text"], c["remedy"]) for c in found["checks"] if c["name"] == "extras"]
    lacking = ("note", "lacking: no-such-package is missing", "pip install 'vcc-infuse[lacking]'")
    assert lines == [("ok", "there", ""), lacking]


def test_a_requirement_of_another_system_is_not_missed(monkeypatch):
    declare(monkeypatch, 'no-such-package; sys_platform == "abacus"')
    assert doctor.requirements() == {"": []}


def test_a_package_that_cannot_be_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    status, found = answer(capsys)
    assert status == 1
    assert found["checks"][-1]["text"].startswith("torchvision cannot be imported (ModuleNotFoundError")
    assert found["checks"][-1]["remedy"] == "pip install --force-reinstall torchvision"


OTHERS = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from vcc_infuse.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
EVERYTHING = "torch,torchvision,numpy,scipy,sklearn,tqdm,yaml,PIL,timm,onnxruntime,jsonargparse,shtab,packaging"


def without(packages, *words):
    """Run a command where packages are missing."""
    return subprocess.run([sys.executable, "-c", OTHERS, packages, *words], capture_output=True, text=True)


@pytest.mark.parametrize("absent", ["torch", "packaging", EVERYTHING])
def test_it_works_where_packages_are_missing(absent):
    ended = without(absent, "doctor")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "pip install" in ended.stdout


def test_other_commands_point_to_it():
    ended = without(EVERYTHING, "list")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "`vcc-infuse doctor` says what is missing" in ended.stderr


def test_a_source_tree_that_is_not_installed(monkeypatch, capsys):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", absent)
    assert main(["doctor"]) == 1
    assert "not installed, only its source is found; pip install ." in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "file" / "cache"))
    status, found = answer(capsys)
    (cache,) = [check for check in found["checks"] if check["name"] == "cache"]
    assert (status, cache["status"]) == (1, "problem")
    assert "cannot be written to" in cache["text"]
    assert "VCC_INFUSE_CACHE" in cache["remedy"]


@pytest.mark.parametrize(("free", "status"), [(5e7, "problem"), (1e9, "note"), (3e9, "ok")])
def test_room_on_the_disk(free, status, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(1e12, 1e12 - free, free))
    check = doctor.check_folder("cache", tmp_path, "", "")
    assert check.status == status
    assert f"{free / 1e9:.1f} GB free" in check.text
    assert bool(check.remedy) == (status != "ok")


def test_no_weights_are_a_note(monkeypatch):
    monkeypatch.setattr(pretrained, "names_at_hand", lambda: [])
    check = doctor.check_weights()
    assert (check.status, check.remedy) == ("note", "for use offline: pip install 'vcc-infuse[weights]'")


def test_the_size_of_a_folder_is_that_of_all_files_below(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "deep" / "b").write_bytes(b"123")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert doctor.folder_bytes(tmp_path) == 8


def test_requirements_are_compared_by_version_and_not_as_text():
    assert list(doctor.unmet([Requirement("numpy>=1.9"), Requirement("torch>=2.2")])) == []


@pytest.mark.parametrize("word", ["--jsn", "runs/photos"])
def test_an_unknown_word(word, capsys):
    assert main(["doctor", word]) == 2
    assert f"{word} is not an option" in capsys.readouterr().err


def test_a_working_directory_that_was_deleted(tmp_path):
    """PyTorch would end the process with a message of its own, also before `doctor` could say anything."""
    (tmp_path / "gone").mkdir()
    command = f"cd {tmp_path}/gone && rmdir ../gone && {sys.executable} -m vcc_infuse doctor"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "vcc-infuse: the working directory no longer exists; change to another one\n"
