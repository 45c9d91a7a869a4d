"""Features of public datasets in several views, as plain arrays on which methods are compared in seconds a run.

    OMP_NUM_THREADS=1 python -m benchmarks features --data cifar10.zip --images 6000 --size 224 --out features

writes FOLDER/cifar10-224.npz: `train` (rows, 1 + weak + strong, features) in float16, plain view first, `train_y`,
`test` (rows, features) and `test_y`. The same number of training images of each class is drawn. `--plain` embeds only
the plain views, in a seventh of the time: methods that solve for a head, such as the default, need no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vcc_infuse import BankConfig, SSLData, Timm
from vcc_infuse.bank.embed import make_encoder, open_bank
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.errors import UserError
from vcc_infuse.utils.io import write_atomic

TEST_IMAGES = 2000
SLOTS = (2, 4)


@dataclass(frozen=True)
class FeatureSet:
    """The features of one dataset."""

    name: str
    train: np.ndarray
    train_y: np.ndarray
    test: np.ndarray
    test_y: np.ndarray

    @classmethod
    def load(cls, folder: Path, name: str) -> FeatureSet:
        """Read NAME.npz."""
        path = folder / f"{name}.npz"
        if not path.is_file():
            raise UserError(f"{path} does not exist; make it with: python -m benchmarks features")
        with np.load(path) as arrays:
            return cls(name, *(arrays[key] for key in ("train", "train_y", "test", "test_y")))

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_y.max()) + 1

    @property
    def slots(self) -> tuple[int, int]:
        """Weak and strong views of each training image."""
        return SLOTS if self.train.shape[1] > 1 else (0, 0)

    def draw(self, per_class: int, seed: int, slots: tuple[int, int] | None = None) -> SSLData:
        """The set with a few labels of each class shown; the truth of the others is known for measuring."""
        slots = slots or self.slots
        data = SSLData.from_arrays(self.train, self.train_y, self.test, self.test_y, slots=slots)
        return SSLData(data.dataset, balanced(self.train_y, per_class * self.classes, self.classes, seed))


def flip(labels: np.ndarray, rate: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Replace a share of the labels, rounded, by any other class."""
    given = labels.copy()
    rows = rng.choice(len(labels), round(rate * len(labels)), replace=False)
    given[rows] = (given[rows] + rng.integers(1, classes, len(rows))) % classes
    return given


def main(argv: Sequence[str]) -> None:
    """Embed the images and write the arrays."""
    options = read(argv)
    dataset = load(options.data, root=options.root, cache=options.cache, progress=True)
    if dataset.test is None:
        raise UserError(f"--data {options.data} has no test set; give a dataset with test/<class>")
    classes = len(dataset.classes)
    kept = balanced(dataset.train.y, options.images // classes * classes, classes, 0).labeled
    tested = np.sort(np.random.default_rng(0).permutation(len(dataset.test))[:TEST_IMAGES])
    config = BankConfig(weak=SLOTS[0], strong=SLOTS[1], lazy=options.plain)
    arrays: dict[str, Any] = {"train_y": dataset.train.y[kept], "test_y": dataset.test.y[tested]}
    data = SSLData.from_arrays(
        dataset.train.x[kept],
        arrays["train_y"],
        dataset.test.x[tested],
        arrays["test_y"],
        classes=dataset.classes,
        flip=dataset.flip,
    )
    encoder, _ = make_encoder(Timm(options.network, input_size=options.size), data.dataset.shape)
    opened = open_bank(data, encoder, config, cache=options.cache)
    # Not `embed_data`: all rows are labeled here, and of those a lazy bank embeds every view.
    opened.embed_plain() if options.plain else opened.embed_all(kept)
    bank = opened.dataset()
    assert bank.test is not None
    views = slice(1 if options.plain else None)
    arrays |= {"train": np.asarray(bank.train.x)[:, views], "test": np.asarray(bank.test.x)[:, 0]}
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{Path(options.data).stem}-{options.size}.npz"
    write_atomic(path, lambda temporary: _save(temporary, arrays))
    print(f"{path}: {arrays['train'].shape[0]:,} images, {arrays['test'].shape[0]:,} to test")


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # np.savez would add a suffix to the name
        np.savez(file, **arrays)


def read(argv: Sequence[str]) -> Any:
    """The options, checked."""
    parser = Parser("python -m benchmarks features", "Embed a dataset in several views and write plain arrays.")
    parser.add_argument("--data", required=True, help="a named source, or a zip or folder of images with a test set")
    parser.add_argument("--root", help="folder with the files of a named source")
    parser.add_argument("--images", type=integer(10), default=6000, help="training images to draw (6000)")
    parser.add_argument("--network", default="tf_efficientnet_lite0", help="a network of timm (%(default)s)")
    parser.add_argument("--size", type=integer(16), default=224, help="side to which views are resized (224)")
    parser.add_argument("--plain", action="store_true", help="embed only the plain view of each image")
    parser.add_argument("--cache", help="cache folder")
    parser.add_argument("--out", default="features", help="folder to write to (features)")
    return parser.read(argv)
