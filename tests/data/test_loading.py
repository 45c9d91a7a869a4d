import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets

from vcc_infuse.data.sources import named as fashion_mnist
from vcc_infuse.data.sources.arrays import from_arrays
from vcc_infuse.data.sources.named import SPECS, read_idx
from vcc_infuse.data.ssl_data import SOURCES, load, load_ssl
from vcc_infuse.errors import UserError
from vcc_infuse.inference.predictor import make_views

RNG = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))


def images(n, side, channels=3):
    return RNG.randint(0, 256, (n, side, side, channels), np.uint8)


# Digits


def test_digits_are_those_of_scikit_learn_with_a_fixed_split():
    data, again = load("digits"), load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (8, 8, 1))
    assert np.array_equal(data.test.x, again.test.x)
    values, labels = load_digits(return_X_y=True)
    original = {tuple(np.rint(row * 255 / 16).astype(int)): y for row, y in zip(values, labels, strict=True)}
    both = np.concatenate([data.train.x, data.test.x]).reshape(-1, 64)
    assert [original[tuple(row)] for row in both.tolist()] == [*data.train.y, *data.test.y]
    shares = np.bincount(data.test.y) / np.bincount([*data.train.y, *data.test.y])
    assert np.abs(shares - 0.2).max() < 0.01


@pytest.mark.parametrize(("mode", "channels"), [("auto", 1), ("gray", 1), ("rgb", 3)])
def test_size_and_mode_change_any_source(mode, channels):
    data = load("digits", size=16, mode=mode)
    assert data.shape == (16, 16, channels)
    expected = Image.fromarray(load("digits").train.x[5, ..., 0]).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train.x[5], np.repeat(np.asarray(expected)[..., None], channels, 2))
    np.testing.assert_allclose(data.std, (data.train.x / 255).std((0, 1, 2)))


# Names


@pytest.mark.parametrize(
    ("data", "hint"), [("cifar1", "cifar10"), ("digit", "did you mean digits"), ("%%%", "known sources: digits")]
)
def test_an_unknown_name_gets_a_suggestion(data, hint):
    with pytest.raises(UserError, match=hint) as caught:
        load(data)
    assert f"data must be a known source or the path of a folder or zip, got {data!r}" in str(caught.value)


def test_an_unknown_path_gets_a_suggestion(tmp_path):
    (tmp_path / "flowers.zip").write_bytes(b"")
    with pytest.raises(UserError, match=r"flowers\.zip"):
        load(str(tmp_path / "flower.zip"))


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "size must be .*, got 0"), ({"mode": "cmyk"}, "mode must be .*, got 'cmyk'")]
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        load("digits", **options)


def test_every_missing_source_has_a_description_and_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "none")
    for name in set(SOURCES) - {"digits"}:
        assert SOURCES[name].strip()
        with pytest.raises(UserError, match=r"root.*download") as caught:
            load(name)
        assert name in str(caught.value)


def test_a_path_is_a_folder(tmp_path):
    for part in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / "d" / part).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "d" / part / "x.png")
    assert load(str(tmp_path / "d")).classes == ("a", "b")


def test_which_sources_may_be_mirrored(tmp_path):
    """Not the named digits. A folder may, whatever its name, unless the user sets flip=False."""
    for part in ("train/0", "train/1", "test/0", "test/1"):
        (tmp_path / "svhn" / part).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "svhn" / part / "x.png")
    assert load(str(tmp_path / "svhn")).flip
    assert not load_ssl(str(tmp_path / "svhn"), labels=2, flip=False, progress=False).dataset.flip
    assert not load("digits").flip
    assert {name for name, spec in SPECS.items() if not spec.flip} == {"svhn", "svhn_train"}


# IDX and Fashion-MNIST


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def fashion(tmp_path):
    made = {}
    for prefix, n in (("train", 30), ("t10k", 10)):
        made[prefix] = images(n, 28, 1)[..., 0], (np.arange(n) % 10).astype(np.uint8)
        for kind, array, pack in zip(("images-idx3", "labels-idx1"), made[prefix], (gzip.compress, bytes), strict=True):
            suffix = ".gz" if pack is gzip.compress else ""
            (tmp_path / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(pack(idx(array)))
    return tmp_path, made


def test_fashion_mnist_from_root_or_debian(fashion, monkeypatch):
    root, made = fashion
    data = load("fashion_mnist", root=str(root))
    assert data.shape == (28, 28, 1)
    assert data.classes[9] == "Ankle boot"
    for examples, (x, y) in ((data.train, made["train"]), (data.test, made["t10k"])):
        assert np.array_equal(examples.x[..., 0], x)
        assert np.array_equal(examples.y, y)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", root)
    assert len(load("fashion_mnist").train) == 30


def test_fashion_mnist_with_a_file_missing(fashion):
    (fashion[0] / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="t10k-labels"):
        load("fashion_mnist", root=str(fashion[0]))


GOOD = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (GOOD[:-1], "damaged IDX"),
        (GOOD + b"x", "damaged IDX"),
        (GOOD[:7], "damaged IDX"),
        (b"\0\0\x0d" + GOOD[3:], "not an IDX"),
        (b"", "not an IDX"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
    ],
    ids=["cut short", "too long", "no header", "another type", "empty", "half a gzip"],
)
def test_damaged_idx_files(tmp_path, raw, message):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(UserError, match=message):
        read_idx(tmp_path / "a")


# Datasets of torchvision, in tiny files of their own formats


def write_cifar(root, folder, names, key, classes):
    root = root / folder
    root.mkdir(parents=True)
    x = {name: images(2 * classes, 32) for name in names}
    for name in names:
        columns = {"data": x[name].transpose(0, 3, 1, 2).reshape(len(x[name]), -1), key: [*range(classes)] * 2}
        (root / name).write_bytes(pickle.dumps(columns))
    meta, label = ("batches.meta", "label_names") if classes == 10 else ("meta", "fine_label_names")
    (root / meta).write_bytes(pickle.dumps({label: [f"c{i}" for i in range(classes)]}))
    return x


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path, monkeypatch, name):
    batches = [f"data_batch_{i}" for i in range(1, 6)]
    args = {
        "cifar10": ("cifar-10-batches-py", [*batches, "test_batch"], "labels", 10),
        "cifar100": ("cifar-100-python", ["train", "test"], "fine_labels", 100),
    }[name]
    x = write_cifar(tmp_path, *args)
    with pytest.raises(UserError, match="not usable"):  # torchvision checks the checksums of the real files
        load(name, root=str(tmp_path))
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *a: True)
    data = load(name, root=str(tmp_path))
    assert np.array_equal(data.train.x, np.concatenate([x[n] for n in args[1][:-1]]))
    assert np.array_equal(data.test.x, x[args[1][-1]])
    assert data.test.y.tolist() == [*range(args[3])] * 2
    assert data.classes[7] == "c7"
    assert data.mean[0] == pytest.approx({"cifar10": 125.3, "cifar100": 129.3}[name] / 255)
    monkeypatch.setattr(datasets.CIFAR10, "__init__", lambda *a, **k: pytest.fail("read again"))
    assert np.array_equal(load(name, root=str(tmp_path)).train.x, data.train.x)


def test_svhn_with_and_without_extra(tmp_path, monkeypatch):
    x = {split: images(n, 32) for split, n in (("train", 20), ("extra", 30), ("test", 10))}
    for split, values in x.items():
        y = (np.arange(len(values)) % 10 + 1).astype(np.uint8)[:, None]  # the files store the digit 0 as 10
        scipy.io.savemat(tmp_path / f"{split}_32x32.mat", {"X": values.transpose(1, 2, 3, 0), "y": y})
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.svhn.check_integrity", lambda *a: True, raising=False)
    full, small = load("svhn", root=str(tmp_path)), load("svhn_train", root=str(tmp_path))
    assert np.array_equal(full.train.x, np.concatenate([x["train"], x["extra"]]))
    assert np.array_equal(small.train.x, x["train"])
    assert full.train.y[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert full.mean == (0.4380, 0.4440, 0.4730)
    assert not full.flip, "a mirrored digit is no digit"
    assert not small.flip
    assert not make_views(small).flip
    split = {"labels": 10, "root": str(tmp_path), "progress": False}
    assert [load_ssl("svhn_train", flip=flip, **split).dataset.flip for flip in (None, False, True)] == [
        False,
        False,
        True,
    ]


def test_stl10_has_an_unlabeled_part_and_can_be_resized(tmp_path, monkeypatch):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    x = {split: images(n, 96) for split, n in (("train", 10), ("unlabeled", 5), ("test", 10))}
    for split, values in x.items():
        (folder / f"{split}_X.bin").write_bytes(values.transpose(0, 3, 2, 1).tobytes())  # column by column
    for split in ("train", "test"):
        (folder / f"{split}_y.bin").write_bytes(np.arange(1, 11, dtype=np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"c{i}" for i in range(10)))
    monkeypatch.setattr(datasets.STL10, "_check_integrity", lambda self: True)
    data = load("stl10", root=str(tmp_path))
    assert np.array_equal(data.train.x, np.concatenate([x["train"], x["unlabeled"]]))
    assert data.train.y.tolist() == [*range(10)] + [-1] * 5
    assert data.mean[0] == pytest.approx(112.4 / 255)
    small = load("stl10", root=str(tmp_path), size=32, mode="gray")
    assert small.shape == (32, 32, 1)
    expected = Image.fromarray(x["unlabeled"][0]).convert("L").resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(small.train.x[10, ..., 0], np.asarray(expected))
    np.testing.assert_allclose(small.mean, (small.train.x / 255).mean((0, 1, 2)))


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.SVHN, "download", refuse)
    with pytest.raises(UserError, match=r"no route to host.*try again later"):
        load("svhn", root=str(tmp_path), download=True)


# Arrays


def test_arrays_of_every_type_and_shape():
    y, gray = [0, 1, -1], images(3, 5, 1)
    for x in (gray, gray[..., 0], gray[..., 0].tolist(), gray[..., 0] / 255, (gray / 255).astype(np.float32)):
        data = from_arrays(x, y, x, [0, 1, 1])
        assert np.array_equal(data.train.x, gray)
        assert data.train.y.dtype == np.int64
        assert data.classes == ("0", "1")
    assert from_arrays(images(3, 5), y, images(2, 5), [0, 1], classes=["ant", "bee"]).classes == ("ant", "bee")


def test_vectors_get_mean_and_std_per_feature():
    x = RNG.randn(3000, 4) * [1, 10, 1, 0] + [0, 5, 1e4, 0.1]
    data = from_arrays(x, np.arange(3000) % 2, x, np.arange(3000) % 2)
    assert data.train.x.dtype == np.float32
    assert data.shape == (4,)
    exact = data.train.x.astype(np.float64)
    np.testing.assert_allclose(data.mean, exact.mean(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(data.std[:3], exact.std(0)[:3], rtol=1e-9)
    assert data.std[3] == 1


X, Y = images(4, 5), [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.transpose(0, 3, 1, 2), Y, X, Y), "channels-first"),
        ((X, Y[:3], X, Y), "4 examples but labels of shape"),
        ((X, Y, X[:, :4], Y), "give both the same shape"),
        ((X, Y, X[:0], []), "test: no examples"),
        ((X[:0], [], X, Y), "train: no examples"),
        ((X, [0, 0, 0, 0], X, Y), "only 1 class"),
        ((X, [-1] * 4, X, Y), "only 0 class"),
        ((X, [0, 2, 0, 2], X, [0] * 4), "class '1' has no labeled"),
        ((X, Y, X, [0, 1, 0, -1]), "from 0 to 1"),
        ((X, Y, X, [0, 1, 0, 2]), "from 0 to 1"),
        ((X, ["a", "b", "a", "b"], X, Y), "both hold text or both integers"),
        ((X, [0.5, 1, 0, 1], X, Y), "integers"),
        ((X[..., :2], Y, X, Y), r"shape \(5, 5, 3\), training examples \(5, 5, 2\)"),
        ((np.repeat(X, 6, 3), Y, X, Y), "must be 1 to 16 channels"),
        ((X[..., :0], Y, X, Y), "must be 1 to 16 channels"),
        (([[1.0, np.nan]] * 4, Y, [[1.0, 2.0]] * 4, Y), "train: x holds NaN"),
        (([[1.0, 2.0]] * 4, Y, [[1.0, np.inf]] * 4, Y), "test: x holds NaN"),
        ((np.full((4, 5, 5), np.nan), Y, X, Y), "must lie in"),
    ],
)
def test_wrong_arrays_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        from_arrays(*arguments)
    assert "\n" not in str(caught.value)


# Real images


@pytest.mark.skipif("VCC_INFUSE_DATA" not in os.environ, reason="VCC_INFUSE_DATA is not set to a folder with stl10.zip")
def test_real_images():
    data = load(str(Path(os.environ["VCC_INFUSE_DATA"]) / "stl10.zip"), size=32)
    assert (len(data.train), len(data.test), data.shape) == (1000, 500, (32, 32, 3))
    assert data.skipped == ()
    np.testing.assert_allclose(data.mean, np.array([112.4, 109.1, 98.6]) / 255, atol=0.03)
