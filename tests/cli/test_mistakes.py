"""A user's mistake: one line that names the option, the value and the remedy, exit status 2, nothing half-written."""

import warnings

import pytest
from PIL import Image

from vcc_infuse.cli.main import main


def picture(path, color=128, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (color, 0, 0)).save(path)


def folder(root, classes=("cat", "dog"), images=3):
    for name in classes:
        for part in ("train", "test"):
            for i in range(images):
                picture(root / part / name / f"{i}.png", 40 * i)
    return root


def one_line(capsys):
    """The only line about a mistake, after those that say what is being done."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vcc-infuse: ")]
    return line


TRAIN = ["train", "--data", "digits", "--labels", "40"]
DARP = [*TRAIN, "--algorithm", "DARP", "--algorithm.base"]
TAIL = ["train", "--data", "digits", "--long_tail.first"]
CASES = [
    (["tain"], "did you mean train"),
    ([*TRAIN, "--algorithm", "FixMach"], "did you mean FixMatch"),
    ([*TRAIN, "--model", "WideResnet"], "did you mean WideResNet"),
    ([*TRAIN, "--calibrator", "Nope"], "vcc-infuse list"),
    ([*TRAIN, "--algorithm", "no.such.Thing"], "--algorithm no.such.Thing cannot be imported"),
    ([*TRAIN, "--stps", "10"], "did you mean --steps"),
    ([*TRAIN, "--steps", "many"], "--steps must be an integer, got 'many'"),
    ([*TRAIN, "--steps", "-3"], "--steps must be an integer of at least 1, got -3"),
    ([*TRAIN, "--steps"], "--steps needs a value"),
    (
        [*TRAIN, "--lazy", "--joint_bn"],
        "--lazy must be false with joint_bn, which computes all views at once, got True",
    ),
    ([*TRAIN, "--lazy", "--algorithm", "SimMatch"], "--lazy must be false for SimMatch"),
    ([*DARP, "CoMatch", "--lazy"], "--lazy must be false for DARP(CoMatch)"),
    ([*TRAIN, "--out"], "--out needs a value"),
    ([*TRAIN, "100"], "100 belongs to no option"),
    ([*TRAIN, "--algorithm.thresold", "0.9"], "--algorithm.thresold is not an option of FixMatch"),
    *(
        ([*TRAIN, f"--{option}", name], f"--{option} {name} is unknown")
        for option, name in (
            ("algorithm", "Algorithm"),
            ("algorithm", "PseudoLabeling"),
            ("algorithm", "Wrapper"),
            ("calibrator", "Calibrator"),
            ("selector", "Selector"),
            ("model", "Backbone"),
        )
    ),
    ([*TRAIN, "--selector", "vcc_infuse.Selector"], "must be a concrete class derived from Selector"),
    ([*TRAIN, "--selector", "VCC"], "--selector VCC must be a concrete class derived from Selector"),
    ([*TRAIN, "--selector.keep", "0.5"], "choose the class with --selector"),
    ([*TRAIN, "--model", "null"], "--model must be a class, got 'null'; choose one, such as SmallConv"),
    (
        [*TRAIN, "--model", "resnet18"],
        "--model resnet18 is unknown; a network of timm is named by --model.name resnet18",
    ),
    ([*DARP, "FlexMach"], "--algorithm.base FlexMach is unknown; did you mean FlexMatch"),
    ([*DARP, "VAT"], "--algorithm.base VAT must be a concrete class derived from PseudoLabeling"),
    ([*DARP, "FixMatch", "--algorithm.base.threshold", "5"], "--algorithm.base.threshold must be a number in [0, 1]"),
    ([*DARP, "FixMatch", "--algorithm.base.threshold", "x"], "--algorithm.base.threshold must be a number, got 'x'"),
    ([*TRAIN, "--download", "maybe"], "--download must be true or false, got 'maybe'"),
    ([*TRAIN, "--long_tail.frst", "3"], "is not an option of LongTail; did you mean --long_tail.first"),
    ([*TRAIN, "--device", "cudda"], "--device must be auto, cpu, cuda"),
    ([*TRAIN, "--batch_size", "64x"], "--batch_size must be an integer, got '64x'"),
    (["train", "--labels", "4.5"], "--labels must be an integer, got '4.5'"),
    ([*TRAIN, "--precision", "fp17"], "--precision must be one of auto, fp32, bf16, fp16, got 'fp17'"),
    ([*TRAIN, "--calibrator", "RobustVCC", "--calibrator.match", "foo"], "--calibrator.match must be one of "),
    ([*TRAIN, "--selector", "INFUSE", "--selector.keep", "7"], "--selector.keep must be a number in (0, 1], got 7.0"),
    ([*TRAIN, "--algorithm", "VAT", "--calibrator", "VCC"], "VAT selects nothing by confidence"),
    ([*TRAIN, "--algorithm.threshold", "7"], "--algorithm.threshold must be a number in [0, 1], got 7.0"),
    ([*TRAIN, "--preset", "papr"], "--preset must be one of "),
    ([*TRAIN, "--precision", "fp16", "--device", "cpu"], "--precision needs a GPU, got 'fp16'"),
    ([*TRAIN, "--model", "WideResNet", "--model.depth", "11"], "--model.depth must be"),
    ([*TRAIN, "--config", "/no/such.yaml"], "--config /no/such.yaml cannot be read"),
    (["train", "--data", "digitz", "--labels", "40"], "did you mean digits"),
    (["train", "--data", "/no/such/folder", "--labels", "40"], "/no/such/folder"),
    (["train", "--data", "digits"], "--labels must be set, got None"),
    (["train", "--data", "digits", "--labels", "5"], "--labels must be at least 10, one per class, got 5"),
    (["train", "--data", "digits", "--labels", "100000"], "--labels must be at most"),
    ([*TAIL, "0"], "--long_tail.first must be an integer of at least 1, got 0"),
    ([*TAIL, "20"], "set long_tail.beta or long_tail.unlabeled_first"),
    ([*TAIL, "20", "--long_tail.beta", "2"], "--long_tail.beta must be a number in (0, 1), got 2.0"),
    ([*TAIL, "20", "--long_tail.gamma", "0.5", "--long_tail.beta", "0.5"], "--long_tail.gamma must be at least 1"),
    ([*TAIL, "20", "--long_tail.gamma_u", "0", "--long_tail.beta", "0.5"], "--long_tail.gamma_u must be at least 1"),
    (
        [*TAIL, "20", "--long_tail.unlabeled_first", "-1"],
        "--long_tail.unlabeled_first must be an integer of at least 0, got -1",
    ),
    ([*TAIL, "900", "--long_tail.beta", "0.5"], "--long_tail.first must be smaller, because class '0' has"),
    (
        [*TAIL, "20", "--long_tail.beta", "0.5"],
        "--long_tail.first must be larger, because class '6' gets no label, got 20",
    ),
    (
        [*TRAIN, "--algorithm", "PseudoLabel", "--calibrator", "MMCE", "--calibrator.labels", "weak_strong"],
        "MMCE learns from strong views of unlabeled images, which PseudoLabel does not have",
    ),
    ([*TRAIN, "--algorithm", "VAT", "--calibrator", "MMCE"], "VAT selects nothing by confidence"),
    (["train", "--resume", "/no/such/run"], "--resume /no/such/run"),
    (["evaluate", "/no/such/run"], "model.json"),
    (["evaluate"], "--help"),
    (["predict", "/no/such/run", "x"], "model.json"),
    (["list", "--nonsense"], "--nonsense"),
]


@pytest.mark.parametrize(("words", "hint"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_one_line_and_status_two(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = one_line(capsys)
    assert hint in error
    assert list(tmp_path.iterdir()) == []


CONFIGS = {
    "steps: x": "--steps must be an integer, got 'x' (in options.yaml)",
    "steps: null": "--steps must be an integer, got None (in options.yaml)",
    "stps: 3": "--stps is not an option; did you mean --steps",
    "algorithm: FixMach": "--algorithm FixMach is unknown; did you mean FixMatch",
    "algorithm: {class_path: vcc_infuse.Algorithm}": "--algorithm vcc_infuse.Algorithm must be a concrete class",
    "algorithm: {class_path: FixMatch, init_args: {thresold: 1}}": "--algorithm.thresold is not an option of FixMatch",
    "algorithm: {class_path: FixMatch, init_args: {threshold: x}}": "--algorithm.threshold must be a number, got 'x'",
    "algorithm: {class_path: FixMatch, init_args: {threshold: 7}}": "--algorithm.threshold must be a number in [0, 1]",
    "long_tail: 3": "--long_tail must hold options, one `name: value` per line, got 3",
    "preset: papr": "--preset must be one of ",
    "- steps": "--config options.yaml must hold options",
    "steps: [": "--config options.yaml cannot be read",
    "": "--config options.yaml must hold options",
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_wrong_configuration_costs_one_line(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.yaml").write_text(text)
    assert main([*TRAIN, "--config", "options.yaml"]) == 2
    error = one_line(capsys)
    assert CONFIGS[text] in error
    assert [path.name for path in tmp_path.iterdir()] == ["options.yaml"]


def spoil_empty(root):
    (root / "train" / "bird").mkdir()
    (root / "test" / "bird").mkdir()


def spoil_broken(root):
    for i in range(3):
        (root / "train" / "cat" / f"{i}.png").write_bytes(b"not a picture")


def spoil_test_class(root):
    picture(root / "test" / "cta" / "0.png")


def spoil_sizes(root):
    picture(root / "train" / "cat" / "9.png", size=(9, 12))


@pytest.mark.parametrize(
    ("spoil", "hint"),
    [(spoil_empty, "bird"), (spoil_broken, "cat"), (spoil_test_class, "cta"), (spoil_sizes, "--size")],
)
def test_faulty_folders(spoil, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spoil(folder(tmp_path / "data"))
    assert main(["train", "--data", "data", "--labels", "2", "--preset", "scratch", "--out", "run"]) == 2
    error = one_line(capsys)
    assert hint in error
    assert not (tmp_path / "run").exists()


def test_a_class_is_called_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "data")
    assert main(["train", "--data", "data", "--labels", "9", "--out", "run"]) == 2
    assert "--labels must be at most 6, because class 'cat' has 3" in capsys.readouterr().err


def test_a_single_class_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "data", classes=("cat",))
    assert main(["train", "--data", "data", "--labels", "2", "--out", "run"]) == 2
    assert "at least 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback(tmp_path):
    from vcc_infuse import UserError

    with pytest.raises(UserError):
        main(["train", "--data", "digits", "--debug"])


def test_a_full_disk_costs_one_line_and_the_temporary_file_is_gone(tmp_path, monkeypatch, capsys):
    import errno
    from pathlib import Path

    write = Path.write_bytes

    def full(path, content):
        if path.parent.name != "checkpoints":
            return write(path, content)
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    words = "train --data digits --labels 40 --steps 2 --batch_size 2 --unlabeled_ratio 1 --progress false --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 2
    remedy = "free some space, then continue with --resume, or start again if there is no checkpoint yet"
    assert capsys.readouterr().err == f"vcc-infuse: No space left on device; {remedy}\n"
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_broken_images_are_skipped_counted_and_listed(tmp_path, monkeypatch):
    import csv
    import json

    monkeypatch.chdir(tmp_path)
    root = folder(tmp_path / "data", images=6)
    (root / "train" / "cat" / "3.png").write_bytes(b"not a picture")
    (root / "train" / "cat" / "4\t5\n.png").write_bytes(b"nor this")
    words = "train --data data --labels 4 --steps 2 --batch_size 2 --unlabeled_ratio 1 --progress false --out run"
    assert main(words.split()) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["skipped_images"] == 2
    with open(tmp_path / "run" / "skipped.tsv", newline="") as handle:
        listed = list(csv.reader(handle, "excel-tab"))
    assert [name for name, _ in listed] == ["train/cat/3.png", "train/cat/4\t5\n.png"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("stop", "vcc-infuse: the loss is not finite in step 1 (labeled nan, unlabeled nan): the learning rate is too"),
        ("skip", "leaving out 3 batches did not help"),
        ("rollback", "or clip_grad 1, also with lr × 0.03125"),
    ],
)
def test_a_learning_rate_far_too_high_is_one_line_whatever_is_to_be_done_about_it(answer, said, tmp_path, capsys):
    words = (
        "train --data digits --labels 40 --preset scratch --model SmallConv --model.width 4 --steps 8 --eval_every 4 "
        "--batch_size 8 --unlabeled_ratio 1 --progress false --lr 1e30"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*words.split(), "--on_nan", answer, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("vcc-infuse: ") == 1
    assert said in error
