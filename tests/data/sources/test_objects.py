"""Datasets of other libraries, lists and columns: the same images and labels whatever they come in."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Subset, TensorDataset

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer
from vcc_infuse.errors import OptionError, UserError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (8, 6, 6, 3), dtype=np.uint8)
NAMES = ["cat", "dog", "cat", "dog", None, None, None, None]
NUMBERS = [0, 1, 0, 1, -1, -1, -1, -1]


class Pairs:
    """Any map-style dataset of (image, label or −1)."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], self.labels[row]


class ClassLabel:
    names = ("cat", "dog")


class HubDataset:
    """What Hugging Face's datasets offer: rows as dicts, `features` with the names of the classes."""

    def __init__(self, images, labels, columns=("image", "label")):
        self.rows = [dict(zip(columns, row, strict=True)) for row in zip(images, labels, strict=True)]
        self.column_names, self.features = list(columns), {columns[0]: object(), columns[1]: ClassLabel()}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.rows[row] if isinstance(row, int) else [r[row] for r in self.rows]


class Series(list):
    """What a column of pandas offers beyond a list."""

    iloc = property(lambda self: self)


class Frame(dict):
    """What a table of pandas offers: columns by name."""

    iloc = property(lambda self: self)
    columns = property(lambda self: list(self))


def pictures():
    return [Image.fromarray(pixels) for pixels in PIXELS]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for number, image in enumerate(pictures()):
        image.save(root / f"{number}.png")
    return [str(root / f"{number}.png") for number in range(8)]


def planes(dtype=torch.uint8):
    found = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    return found if dtype == torch.uint8 else found.float() / 255


def png(pixels):
    import io

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


NAN = float("nan")
WAYS = {
    "pictures": lambda f: ((pictures(), NAMES), {}),
    "paths": lambda f: ((f, NAMES), {}),
    "numbers": lambda f: ((f, NUMBERS), {"classes": ("cat", "dog")}),
    "floats": lambda f: ((f, np.array([0, 1, 0, 1, NAN, NAN, NAN, NAN])), {"classes": ("cat", "dog")}),
    "series": lambda f: ((Series(f), Series([*NAMES[:4], NAN, NAN, NAN, NAN])), {}),
    "frame": lambda f: ((Frame(file=Series(f), label=Series(NAMES)),), {}),
    "frame columns": lambda f: ((Frame(a=Series(f), b=Series(NAMES)),), {"columns": ("a", "b")}),
    "arrays": lambda f: ((list(PIXELS), NAMES), {}),
    "one array": lambda f: ((PIXELS, NAMES), {}),
    "pairs": lambda f: ((Pairs(pictures(), NAMES),), {}),
    "loader": lambda f: ((DataLoader(Pairs(pictures(), NAMES), batch_size=3),), {}),
    "tensors": lambda f: ((TensorDataset(planes(), torch.tensor(NUMBERS)),), {"classes": ("cat", "dog")}),
    "float tensors": lambda f: ((TensorDataset(planes(float), torch.tensor(NUMBERS)),), {"classes": ("cat", "dog")}),
    "hub": lambda f: ((HubDataset(pictures(), NUMBERS),), {}),
    "hub columns": lambda f: ((HubDataset(pictures(), NUMBERS, ("a", "b")),), {"columns": ("a", "b")}),
    "hub bytes": lambda f: ((HubDataset([{"bytes": png(p), "path": None} for p in PIXELS], NUMBERS),), {}),
    "hub and y": lambda f: ((HubDataset(pictures(), [-1] * 8), NAMES), {}),
    "splits": lambda f: (({"train": HubDataset(pictures(), NUMBERS)},), {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_data(files, way):
    arguments, options = WAYS[way](files)
    data = SSLData.from_dataset(*arguments, **options)
    assert np.abs(data.dataset.train.x.astype(int) - PIXELS).max() <= (way == "float tensors")
    assert data.dataset.classes == ("cat", "dog")
    assert data.dataset.train.y.tolist() == NUMBERS
    assert sorted(data.split.labeled) == [0, 1, 2, 3]
    assert len(data.split.pool) == 8
    assert data.dataset.test is None


def test_an_image_folder_of_torchvision(tmp_path):
    from torchvision.datasets import ImageFolder

    for number, name in enumerate(["zebra", "ape"] * 4):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(PIXELS[number]).save(tmp_path / name / f"{number}.png")
    folder = ImageFolder(tmp_path)
    data = SSLData.from_dataset(folder, labels=4)
    assert data.dataset.classes == ("ape", "zebra")
    assert data.dataset.train.y.tolist() == folder.targets
    assert np.bincount(data.labeled_y).tolist() == [2, 2]
    assert SSLData.from_dataset(Subset(folder, [0, 5, 6])).dataset.classes == ("ape", "zebra")


def test_the_real_hub_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    table = datasets.Dataset.from_dict({"image": pictures(), "label": NUMBERS}, features=features)
    data = SSLData.from_dataset(datasets.DatasetDict(train=table, test=table.select(range(4))))
    assert data.dataset.classes == ("cat", "dog")
    assert np.array_equal(data.dataset.train.x, PIXELS)
    assert len(data.dataset.test) == 4


def test_real_pandas_columns(files):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"file": files, "label": pandas.Series([*NAMES[:4], *[pandas.NA] * 4], dtype="string")})
    for data in (SSLData.from_dataset(table), SSLData.from_dataset(table["file"], table["label"])):
        assert data.dataset.train.y.tolist() == NUMBERS
        assert np.array_equal(data.dataset.train.x, PIXELS)


def test_mixed_sizes_need_a_size_and_get_it():
    photos = [Image.fromarray(RNG.integers(0, 256, (10 + i, 20, 3), dtype=np.uint8)) for i in range(8)]
    with pytest.raises(OptionError, match="size must be set, because the images have different sizes"):
        SSLData.from_dataset(photos, NAMES)
    data = SSLData.from_dataset(photos, NAMES, size=8)
    for photo, found in zip(photos, data.dataset.train.x, strict=True):
        assert np.array_equal(found, np.asarray(ImageOps.fit(photo, (8, 8), Image.Resampling.BILINEAR)))


def test_gray_only_if_all_are_gray():
    gray = [image.convert("L") for image in pictures()]
    assert SSLData.from_dataset(gray, NAMES).dataset.shape == (6, 6, 1)
    assert SSLData.from_dataset([*gray[:7], pictures()[7]], NAMES).dataset.shape == (6, 6, 3)
    assert SSLData.from_dataset(pictures(), NAMES, mode="gray").dataset.shape == (6, 6, 1)
    assert SSLData.from_dataset(gray, NAMES, mode="rgb").dataset.shape == (6, 6, 3)


def test_sixteen_bits_and_many_channels():
    stacks = [RNG.integers(0, 4096, (6, 6, 5), dtype=np.uint16) for _ in range(8)]
    data = SSLData.from_dataset(stacks, NAMES, (stacks * 1)[:2], ["cat", "dog"]).dataset
    assert data.ranges == ((0.0, 4095.0),)
    assert np.abs(data.train.x.astype(float) - np.stack(stacks) * (255 / 4095)).max() <= 0.51
    assert np.array_equal(data.test.x, data.train.x[:2])


def test_a_test_set_keeps_the_names_of_the_classes():
    data = SSLData.from_dataset(pictures(), [7, 3, 7, 3, -1, -1, -1, -1], pictures()[:3], [3, 7, -1])
    assert data.dataset.classes == ("3", "7")
    assert data.dataset.train.y.tolist() == [1, 0, 1, 0, -1, -1, -1, -1]
    assert data.dataset.test.y.tolist() == [0, 1], "an image without a label cannot be tested"
    splits = {"train": HubDataset(pictures(), NUMBERS), "test": HubDataset(pictures()[:2], [1, 1])}
    assert SSLData.from_dataset(splits).dataset.test.y.tolist() == [1, 1]
    hidden = {"train": HubDataset(pictures(), NUMBERS), "test": HubDataset(pictures()[:2], [-1, -1])}
    assert SSLData.from_dataset(hidden).dataset.test is None


def test_unreadable_files_are_skipped_and_listed(files, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    data = SSLData.from_dataset([*files, str(tmp_path / "broken.png"), "gone.png"], [*NAMES, "cat", None]).dataset
    assert len(data.train) == 8
    assert [name.rpartition("/")[2] for name, _ in data.skipped] == ["broken.png", "gone.png"]
    nan = [*PIXELS.astype(float) / 255, np.full((6, 6, 3), np.nan)]
    assert SSLData.from_dataset(nan, [*NAMES, None]).dataset.skipped == (("item 8", "holds NaN or infinite values"),)


def test_a_share_for_validation_and_a_run():
    data = SSLData.from_dataset(pictures(), ["cat", "dog"] * 4, validation=0.25, flip=False)
    assert (data.dataset.evaluated_on, data.dataset.flip, len(data.dataset.test)) == ("validation", False, 2)
    summary = Trainer(SmallConv(4), FixMatch(), steps=1, batch_size=4, progress=False, device="cpu").fit(data)
    assert summary["evaluated_images"] == 2


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([], []), {}, "no images; at least one is needed"),
        ((pictures(), NAMES[:3]), {}, "data has 8 images and y 3 labels"),
        ((pictures(),), {}, r"an item is Image; it must be \(image, label\)"),
        ((iter(pictures()), NAMES), {}, "give a dataset or list with a length"),
        (("photos", NAMES), {}, "data is str; give a dataset or list"),
        ((3, NAMES), {}, "data is int; give a dataset or list"),
        ((pictures(), [None] * 8), {}, "every label is −1, which means unlabeled"),
        ((pictures(), ["cat"] * 8), {}, "y has 1 class"),
        ((pictures(), ["cat", 3] * 4), {}, "mixes int, str"),
        (
            (pictures(), NAMES),
            {"classes": ("cat", "dgo")},
            "2 labels are not in classes, first 'dog'.*dgo",
        ),
        ((pictures(), [0, 5] * 4), {"classes": ("cat", "dog")}, "from -1 to 1"),
        ((HubDataset(pictures(), NUMBERS),), {"columns": ("a", "label")}, "data has no column 'a'"),
        ((HubDataset(pictures(), NUMBERS, ("x", "y")),), {}, "data has no column 'image'.* of x, y"),
        ((["gone.png"] * 8, NAMES), {}, "8 of 8 images cannot be read, first gone.png"),
        (([[["a"]]] * 8, NAMES), {}, r"it must be \(image, label\)|an image is"),
        ((pictures(), NAMES), {"size": 0}, "size must be an integer from 1 to 8192, got 0"),
        ((pictures(), NAMES), {"size": 10**9}, "size must be an integer from 1 to 8192"),
        ((pictures(), NAMES), {"mode": "cmyk"}, "mode must be one of"),
        ((pictures(), NAMES), {"intensity": "most"}, "intensity must be one of"),
        ((pictures(), NAMES), {"labels": 1}, "labels must be at least 2"),
        ((pictures(), NAMES), {"validation": 2}, "validation must be a number in"),
        ((pictures()[:1], ["cat"]), {}, "y has 1 class"),
        (([*pictures()[:7], np.zeros((6, 6, 4), np.uint8)], NAMES), {}, "channels are needed"),
    ],
)
def test_mistakes_cost_one_line(arguments, options, message):
    with pytest.raises(UserError, match=message) as caught:
        SSLData.from_dataset(*arguments, **options)
    assert "\n" not in str(caught.value)
