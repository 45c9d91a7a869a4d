"""An exported file gives the answers of its run, without vcc_infuse, for images of any size."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import load_sample_images
from tests.helpers.blobs import blobs
from tests.helpers.images import striped

import vcc_infuse
from vcc_infuse import (
    MLP,
    EnsembleTS,
    Evidence,
    FixMatch,
    Predictor,
    SmallConv,
    SSLData,
    TemperatureScaling,
    Timm,
    Trainer,
    WideResNet,
    export_model,
)
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import embed_data, head
from vcc_infuse.cli.main import main
from vcc_infuse.inference.export import (
    FORMATS,
    ExportedClassifier,
    exported_program,
    largest_difference,
    quiet,
    resize,
    write_onnx,
    write_torch,
)

PHOTOS = load_sample_images().images  # a temple and a flower, 427×640 pixels


def trained(model, data, calibrator=None, **options):
    trainer = Trainer(
        model, FixMatch(), calibrator, steps=8, batch_size=6, unlabeled_ratio=2, progress=False, device="cpu", **options
    )
    trainer.fit(data)
    return trainer.predictor()


def on_a_bank(config, folder, calibrator=None):
    data = embed_data(striped(), Timm("test_resnet", weights="none"), config, cache=str(folder), progress=False)
    return trained(head(config), data, calibrator, head_init="probe")


PREDICTORS = {
    "wide_resnet": lambda folder: trained(WideResNet(10, 1), striped()),
    "timm": lambda folder: trained(
        Timm("test_resnet", weights="none", input_size=48),
        striped(),
        TemperatureScaling(labels="labeled_strong", every=2),
    ),
    "bank": lambda folder: on_a_bank(BankConfig(), folder),
    "bank_mlp": lambda folder: on_a_bank(BankConfig(head="mlp"), folder, EnsembleTS(labels="labeled_strong", every=2)),
}


QUICK = ("bank_mlp",)


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PREDICTORS],
)
def exported(request, tmp_path_factory):
    """A predictor, and what answers for it: two files from one tracing, which takes seconds."""
    folder = tmp_path_factory.mktemp(request.param)
    predictor = PREDICTORS[request.param](folder)
    with quiet():
        program = exported_program(predictor)
        write_onnx(program, predictor, folder / "model.onnx")
        write_torch(program, predictor, folder / "model.pt2")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    module = torch.export.load(folder / "model.pt2").module()
    by_onnx = lambda x: session.run(None, {"images": x})  # noqa: E731
    known = ["unknown", "unknown_p"] if predictor.known else []
    assert [output.name for output in session.get_outputs()] == ["probabilities", "label", "confidence", *known]
    by_torch = lambda x: [output.numpy() for output in module(torch.from_numpy(x))]  # noqa: E731
    return predictor, {"onnx": by_onnx, "torch": by_torch}


def crops(count, *shape):
    """Pieces of real photos."""
    rng = np.random.default_rng(count)
    corners = [(rng.integers(427 - shape[0]), rng.integers(640 - shape[1])) for _ in range(count)]
    return np.stack([PHOTOS[i % 2][a : a + shape[0], b : b + shape[1]] for i, (a, b) in enumerate(corners)])


@pytest.mark.parametrize("run", ["onnx", "torch"])
@pytest.mark.parametrize("count", [1, 7])
def test_the_files_answer_as_the_run_does(exported, run, count):
    predictor, answers = exported
    images = crops(count, *predictor.shape[:2])
    expected = predictor.predict(images)
    probs, label, confidence, *unknown = answers[run](images)
    assert len(unknown) == (0 if predictor.known is None else 2)
    for found, reference, step in zip(unknown, (expected.unknown, expected.unknown_p), (0, 1), strict=False):
        jump = step / (1 + len(predictor.known.rows))  # a label that is just as far may count or not
        np.testing.assert_allclose(found, reference, atol=1e-4 + jump)
    np.testing.assert_allclose(probs, expected.probs, atol=1e-5)
    np.testing.assert_allclose(confidence, expected.calibrated, atol=1e-5)
    assert label.tolist() == expected.labels.tolist()
    assert (probs.dtype, label.dtype, confidence.dtype) == (np.float32, np.int64, np.float32)


@pytest.mark.parametrize("run", ["onnx", "torch"])
@pytest.mark.parametrize("size", [(100, 130), (20, 50), (400, 64)])
def test_other_sizes_are_resized_inside(exported, run, size):
    """Pillow's rounding differs in some pixels by one level."""
    predictor, answers = exported
    images = crops(3, *size)
    expected = predictor.predict(images)
    probs, _, confidence, *_ = answers[run](images)
    np.testing.assert_allclose(probs, expected.probs, atol=0.01)
    np.testing.assert_allclose(confidence, expected.calibrated, atol=0.01)


@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (32, 32)])
@pytest.mark.parametrize("size", [(16, 24), (200, 30), (31, 200), (5, 5), (427, 640)])
def test_resizing_is_pillows(shape, size):
    from PIL import Image, ImageOps

    image = np.asarray(Image.fromarray(PHOTOS[0]).resize(size[::-1]))
    expected = ImageOps.fit(Image.fromarray(image), shape[::-1], Image.Resampling.BILINEAR)
    found = resize(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float(), *shape)[0].permute(1, 2, 0)
    assert np.abs(found.numpy() - np.asarray(expected)).max() <= 1


def test_a_gray_run_by_the_command(tmp_path, digits, capsys):
    predictor = trained(SmallConv(4), digits)
    predictor.save(tmp_path)
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "own.onnx")]) == 0
    assert "differs from the run by at most" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "own.onnx")
    assert session.get_inputs()[0].shape == ["batch", "height", "width", 1]
    assert [output.shape for output in session.get_outputs()] == [["batch", 10], ["batch"], ["batch"]]
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == [str(i) for i in range(10)]
    x = digits.dataset.test.x[:9]
    np.testing.assert_allclose(session.run(None, {"images": x})[0], predictor.predict(x).probs, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json",
        "model.json",
        "model.safetensors",
        "own.onnx",
        "own.onnx.sha256",
    }
    digest = hashlib.sha256((tmp_path / "own.onnx").read_bytes()).hexdigest()
    assert (tmp_path / "own.onnx.sha256").read_text() == f"{digest}  own.onnx\n"


def vectors(**options):
    x, y = (column.numpy() for column in blobs(40))
    return x.astype(np.float32), trained(MLP((8,)), SSLData.from_arrays(x.astype(np.float32), y), **options)


@pytest.mark.slow
def test_a_program_of_vectors_needs_no_vcc_infuse(tmp_path):
    x, predictor = vectors()
    assert export_model(predictor, tmp_path / "model.pt2") == tmp_path / "model.pt2"
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, json, numpy, torch; files = {'classes.json': ''};"
        "model = torch.export.load('model.pt2', extra_files=files).module();"
        "numpy.save('probs.npy', model(torch.from_numpy(numpy.load('x.npy')))[0].numpy());"
        "print(json.loads(files['classes.json'])); sys.exit('vcc_infuse' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['0', '1', '2', '3']"
    np.testing.assert_allclose(np.load(tmp_path / "probs.npy"), predictor.predict(x).probs, atol=1e-6)


def test_views_of_a_bank_without_a_network():
    """Rows of views are scaled to unit length inside the graph."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3, 6)).astype(np.float32)
    predictor = trained(head(), SSLData.from_arrays(rows, np.arange(40) % 3, slots=(1, 1)))
    found = ExportedClassifier(predictor).eval()(torch.from_numpy(rows[:, 0]))
    torch.testing.assert_close(found[0], predictor.predict(rows).probs)


def test_exporting_changes_nothing(tmp_path):
    _, predictor = vectors()
    predictor.model.train().requires_grad_(True)
    before = {name: value.clone() for name, value in predictor.model.state_dict().items()}
    export_model(predictor, tmp_path / "model.pt2")
    assert predictor.model.training
    assert all(torch.equal(before[name], value) for name, value in predictor.model.state_dict().items())
    assert all(p.requires_grad for p in predictor.model.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("RUN -o model.h5", "the name shows no format; end it in .onnx or .pt2"),
        ("RUN -o model.pt2 --format onnx", "--format onnx and -o model.pt2 do not fit; end the name in .onnx"),
        ("RUN --format tflite", "--format must be one of onnx, torch, got 'tflite'"),
        ("RUN -o no/such/folder/model.onnx", "there is no folder no/such/folder; create it first"),
        ("RUN/none -o model.onnx", "has no model.json"),
        ("RUN --device gpu", "--device must be auto, cpu"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, capsys, monkeypatch):
    vectors()[1].save(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words.replace("RUN", str(tmp_path)).split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "model.json", "model.safetensors"}


def test_the_loaded_run_exports_the_same(tmp_path):
    x, predictor = vectors()
    predictor.save(tmp_path)
    export_model(Predictor.load(tmp_path), tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(x))
    torch.testing.assert_close(found[0], predictor.predict(x).probs)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """FlexMatch with Evidence, cross-fitted, behind a network that enlarges the images."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 20, 24, 3), np.uint8)
    x[::2] //= 3
    y = np.where(np.arange(40) < 16, np.arange(40) % 2, -1)
    model = Timm("test_resnet", "none", 32)
    data = SSLData.from_arrays(x, y)
    cache = str(tmp_path_factory.mktemp("cache"))
    parts = {"model": model, "algorithm": "FlexMatch", "calibrator": Evidence(weigh=True)}
    return vcc_infuse.train(data, preset="frozen", **parts, steps=10, progress=False, cache=cache).predictor


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_two_joined_confidences_are_exported(joined, format, tmp_path):
    assert type(joined.calibrator).__name__ == "CrossFitted"
    assert joined.calibrator.joins
    path = export_model(joined, tmp_path / f"model{FORMATS[format]}")
    assert largest_difference(joined, path) < 1e-3
