"""A saved run can be loaded, gives the same predictions, and takes images in whatever form they come."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tests.helpers.blobs import blobs
from torch import nn

from vcc_infuse import MLP, VCC, FixMatch, Predictor, SmallConv, SSLData, Trainer, UserError
from vcc_infuse.utils.manifest import publish


class OwnNetwork(nn.Module):
    """A user's backbone: any module that returns features."""

    def __init__(self, width=6):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def saved(model, folder, digits):
    trainer = Trainer(model, FixMatch(), VCC(), steps=2, batch_size=4, unlabeled_ratio=2, progress=False, device="cpu")
    trainer.fit(digits)
    predictor = trainer.predictor()
    predictor.save(folder)
    return predictor


@pytest.mark.parametrize(
    ("model", "path"), [(SmallConv(4), "vcc_infuse.SmallConv"), (OwnNetwork(), f"{__name__}.OwnNetwork")]
)
def test_a_loaded_run_predicts_the_same(model, path, tmp_path, digits):
    predictor, x = saved(model, tmp_path, digits), digits.dataset.test.x[:50]
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["backbone"]["class_path"] == path
    assert card["calibrator"]["class_path"] == "vcc_infuse.VCC"
    before, after = predictor.predict(x), Predictor.load(tmp_path, trust_code=[path]).predict(x)
    torch.testing.assert_close(tuple(before), tuple(after), rtol=0, atol=0, equal_nan=True)


def test_faulty_folders_are_one_line(tmp_path, digits):
    with pytest.raises(UserError, match="has no model.json; give the folder of a finished run"):
        Predictor.load(tmp_path)
    saved(SmallConv(4), tmp_path, digits)
    card = json.loads((tmp_path / "model.json").read_text())
    card["backbone"]["init_args"]["width"] = 5
    publish(tmp_path, {"model.json": json.dumps(card).encode()})
    with pytest.raises(UserError, match="does not match this version's Classifier; train again"):
        Predictor.load(tmp_path)
    publish(tmp_path, {"model.json": b"{"})
    with pytest.raises(UserError, match="model.json is damaged"):
        Predictor.load(tmp_path)
    saved(SmallConv(4), tmp_path, digits)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"model.safetensors is damaged or was changed: it has 7 bytes"):
        Predictor.load(tmp_path)
    publish(tmp_path, {"model.safetensors": b"damaged"})
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        Predictor.load(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="manifest.json is missing"):
        Predictor.load(tmp_path)


@pytest.fixture(scope="module")
def predictor(digits):
    trainer = Trainer(SmallConv(4), steps=20, batch_size=8, unlabeled_ratio=2, progress=False, device="cpu")
    trainer.fit(digits)
    return trainer.predictor()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Color photos of several sizes, and what a viewer shows of them: 8×8 gray, centered, by PIL."""
    folder, rng, seen = tmp_path_factory.mktemp("photos"), np.random.default_rng(0), []
    for i, size in enumerate([(8, 8), (30, 20), (20, 30), (9, 100)]):
        picture = Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8))
        picture.save(folder / f"{i}.png")
        seen.append(np.asarray(ImageOps.fit(picture.convert("L"), (8, 8), Image.Resampling.BILINEAR))[..., None])
    return folder, np.stack(seen)


def same(found, expected):
    """Up to the last digits, which depend on the number of images per forward."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, equal_nan=True)


def test_images_come_in_many_forms(predictor, photos, tmp_path):
    folder, seen = photos
    expected = predictor.predict(seen)
    paths = sorted(folder.glob("*.png"))
    pictures = [Image.open(path) for path in paths]
    shutil.make_archive(str(tmp_path / "photos"), "zip", folder)
    for images in (
        folder, str(folder), tmp_path / "photos.zip", paths, [str(p) for p in paths], pictures, iter(pictures),
        [np.asarray(p) for p in pictures], [paths[0], pictures[1], np.asarray(pictures[2]), str(paths[3])],
        [torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures],
    ):  # fmt: skip
        same(predictor.predict(images), expected)
    same(predictor.predict(pictures[1]), [column[1:2] for column in expected])
    same(predictor.predict(np.asarray(pictures[1])), [column[1:2] for column in expected])
    same(predictor.predict(folder, batch_size=3), expected)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float32) / 255,
        lambda x: x.astype(np.float64) / 255,
        lambda x: x[..., 0],
        lambda x: x.repeat(3, 3),
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(x).permute(0, 3, 1, 2),
    ],
)
def test_arrays_of_any_size_and_type(convert, predictor, digits):
    x = digits.dataset.test.x[:5]
    same(predictor.predict(convert(x)), predictor.predict(x))


def test_a_photo_is_turned_as_its_camera_says(predictor, photos, tmp_path):
    folder, _ = photos
    picture = Image.open(folder / "1.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    picture.save(tmp_path / "turned.tif", exif=exif)
    upright = predictor.predict(picture.transpose(Image.Transpose.ROTATE_270))
    same(predictor.predict(tmp_path / "turned.tif"), upright)
    same(predictor.predict(Image.open(tmp_path / "turned.tif")), upright)


def test_a_stream_is_read_as_it_is_needed(predictor, photos):
    _, seen = photos
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield seen[len(taken) % 4]

    stream = predictor.stream(endless(), batch_size=2)
    first = [next(stream) for _ in range(5)]
    assert len(taken) == 6
    assert [row.name for row in first] == list("01234")
    expected = predictor.predict(seen)
    for row, i in zip(first, [1, 2, 3, 0, 1], strict=True):
        assert row.label == predictor.classes[expected.labels[i]]
        assert row.probs == pytest.approx(expected.probs[i].tolist(), abs=1e-6)


def test_a_stream_goes_on_after_a_broken_image(predictor, photos, tmp_path):
    folder, _ = photos
    (tmp_path / "broken.png").write_bytes(b"rubbish")
    images = [folder / "0.png", tmp_path / "broken.png", tmp_path / "none.png", folder]
    found = list(predictor.stream(images))
    assert [bool(row.error) for row in found] == [False, True, True, *[False] * 4]
    assert found[1].label is found[1].best_label is None
    assert "no such file" in found[2].error
    assert found[3].name == str(folder / "0.png")
    with pytest.raises(UserError, match=r"broken.png cannot be read: not an image file; remove it, or use stream"):
        predictor.predict(images)


def test_an_unsure_image_has_no_label(predictor, digits):
    x = digits.dataset.test.x[:40]
    calibrated = predictor.predict(x).calibrated
    least = float(calibrated.median())
    found = list(predictor.stream(x, abstain=least))
    assert [row.label is None for row in found] == (calibrated < least).tolist()
    assert all(row.probs for row in found)
    assert [row.best_label for row in found] == [row.label for row in predictor.stream(x)]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "there are no images"),
        (np.zeros((0, 8, 8, 1), np.uint8), "there are no|no rows"),
        (3, "must be paths, PIL images or arrays, got int"),
        ([3], "got int in the list"),
        ("no/such/folder", "no such file or folder"),
        (np.zeros(7), "an array of shape"),
        (np.full((2, 8, 8), np.nan), "must lie in 0…1"),
        (np.array([["a"]]), "give numbers"),
    ],
)
def test_what_is_no_image_is_one_line(images, message, predictor):
    with pytest.raises(UserError, match=message):
        predictor.predict(images)


def test_options_are_checked(predictor, tmp_path, digits):
    with pytest.raises(UserError, match="batch_size must be an integer of at least 1"):
        predictor.stream([], batch_size=0)
    with pytest.raises(UserError, match="abstain must be a number in"):
        predictor.stream([], abstain=2)
    predictor.save(tmp_path)
    assert Predictor.load(tmp_path, device="cpu").device.type == "cpu"
    with pytest.raises(UserError, match="device must be auto, cpu, cuda"):
        Predictor.load(tmp_path, device="gpu")


def test_vectors_are_rows():
    x, y = (column.numpy() for column in blobs(40))
    x = x.astype(np.float32)
    trainer = Trainer(MLP((8,)), steps=2, batch_size=4, unlabeled_ratio=2, progress=False, device="cpu")
    trainer.fit(SSLData.from_arrays(x, y))
    predictor = trainer.predictor()
    expected = predictor.predict(x)
    same(predictor.predict(x.astype(np.float64).tolist()), expected)
    same(predictor.predict(torch.from_numpy(x)), expected)
    same(predictor.predict(x[0]), [column[:1] for column in expected])
    for wrong in (x[:, :1], "words", [["a", "b"]]):
        with pytest.raises(UserError, match="trained on feature vectors of length"):
            predictor.predict(wrong)
    with pytest.raises(UserError, match="use predict"):
        predictor.stream(x)
