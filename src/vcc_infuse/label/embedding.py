"""Embeds the images in a process of its own while labeling goes on, and writes their thumbnails on the way.

Only plain views are embedded, a seventh of a bank. The order is random, so that what is embedded at any moment is a
random sample of the images, however they are sorted into folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..bank.onnx_engine import Engine
from .images import ImagePool, PoolSource, Unreadable
from .thumbnails import HEAD, KEY, KeyIndex, Places, Records, scan

if TYPE_CHECKING:
    from ..augment.views import ImageViews
    from ..models import Backbone

CHUNK = 32
FEATURES = "features.bin"
THUMBNAILS = "thumbnails.bin"
SECONDS = 0.03  # per image in PyTorch, about: whether an export to ONNX Runtime pays
Embed = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Network:
    """The network that embeds, as it is named; `load` makes it.

    Args:
        name: in timm.
        weights: where they come from; see `Timm`.
        input_size: side of the images that it is shown; that of its training if not given.
        device: where it computes.
        engine: "torch", "onnx" or "auto".
    """

    name: str = "tf_efficientnet_lite2"
    weights: str = "auto"
    input_size: int | None = None
    device: str = "auto"
    engine: Engine = "auto"

    @property
    def key(self) -> bytes:
        """Features of networks with the same key can be mixed."""
        return hashlib.blake2b(repr((self.name, self.weights, self.input_size)).encode(), digest_size=16).digest()

    def frozen(self) -> tuple[int, Backbone, ImageViews]:
        """The side of its images, the network itself, and what makes them its input."""
        from ..augment.views import ImageViews
        from ..bank.embed import input_side, make_encoder
        from ..models import Timm

        network = Timm(self.name, self.weights, self.input_size)
        side = input_side(network)
        encoder, _ = make_encoder(network, (side, side, 3))
        expects = encoder.preprocessing()
        views = ImageViews(expects.mean, expects.std) if expects else ImageViews((0.5,) * 3, (0.25,) * 3)
        return side, encoder, views

    def load(self, images: int) -> tuple[int, Embed]:
        """The side of its images, and a function from uint8 (images, side, side, 3) to features, float16."""
        import torch

        from ..bank.encoder import ForwardOptions, features
        from ..bank.onnx_engine import choose_engine
        from ..utils.device import resolve_device

        side, frozen, views = self.frozen()
        place = resolve_device(self.device)
        fast = choose_engine(frozen, self.engine, device=place, seconds=SECONDS * images) or frozen
        encoder = fast.to(place).eval()
        options = ForwardOptions.default(place)

        def embed(pixels: np.ndarray) -> np.ndarray:
            return features(encoder, views("plain", torch.from_numpy(pixels).to(place)), options).cpu().numpy()

        return side, embed


class Progress(NamedTuple):
    """What was written: where the thumbnails of some images are, how many images are done, and how many unreadable.

    `fault` says why nothing more will come.
    """

    places: Places
    unreadable: Sequence[int] | np.ndarray
    done: int
    fault: str = ""

    @classmethod
    def broken(cls, fault: str) -> Progress:
        """Nothing more will come."""
        return cls(Places.of([], []), [], -1, fault)


def embed_pool(source: PoolSource, network: Any, out: Path, seed: int, send: Callable[[Progress], None]) -> None:
    """Embed what is not embedded yet; `network` has the `key` and `load` of `Network`."""
    pool = ImagePool(source)
    with Records(out / THUMBNAILS) as thumbnails, open_features(out, network.key) as rows:
        known, bad = _stored(pool.keys, thumbnails, rows)
        send(Progress(known, bad, len(known.images)))
        done = np.zeros(len(pool), bool)
        done[known.images] = True
        waiting = np.random.default_rng(seed).permutation(len(pool))
        waiting = waiting[~done[waiting]]
        if not len(waiting):
            return
        side, embed = network.load(len(waiting))
        count = len(known.images)
        for start in range(0, len(waiting), CHUNK):
            progress = _embed_chunk(pool, waiting[start : start + CHUNK].tolist(), side, embed, thumbnails, rows)
            count += len(progress.places.images)
            send(progress._replace(done=count))


def _stored(keys: np.ndarray, thumbnails: Records, rows: Records) -> tuple[Places, np.ndarray]:
    """The images that have thumbnail and features, and those of them that could not be read."""
    shown = KeyIndex(thumbnails.keys).find(keys)
    embedded = KeyIndex(rows.keys).find(keys)
    known = np.flatnonzero((shown >= 0) & (embedded >= 0))
    places = Places(known, thumbnails.offsets[shown[known]], thumbnails.lengths[shown[known]])
    return places, known[rows.lengths[embedded[known]] == 0]


def _embed_chunk(
    pool: ImagePool, numbers: list[int], side: int, embed: Embed, thumbnails: Records, rows: Records
) -> Progress:
    places = []
    pixels = []
    good = []
    bad = []
    for number in numbers:
        try:
            seen, thumbnail = pool.decoded(number, side)
        except Unreadable:
            bad.append(number)
            thumbnail = b""
        else:
            good.append(number)
            pixels.append(seen)
        places.append(thumbnails.add(pool.keys[number], thumbnail))
    for number, row in zip(good, embed(np.stack(pixels)) if good else [], strict=True):
        rows.add(pool.keys[number], np.asarray(row, np.float16).tobytes())
    for number in bad:
        rows.add(pool.keys[number], b"")
    return Progress(Places.of(numbers, places), bad, 0)


def open_features(out: Path, key: bytes) -> Records:
    """The file of features, emptied if it is of another network; its first record is the network's key."""
    path = out / FEATURES
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(HEAD.size)[:16] != key:
                path.unlink()
    records = Records(path)
    if key not in records.keys:
        records.add(key, b"")
    return records


class FeatureRows:
    """The features that are written so far, read by the process that trains.

    Attributes:
        images: numbers of the images that have features, of shape (rows,).
        features: float16 of shape (rows, width).
    """

    def __init__(self, path: Path, keys: np.ndarray | Sequence[bytes]) -> None:
        self._path = path
        self._index = KeyIndex(np.asarray(keys, KEY))
        self._read = 0
        self.images = np.zeros(0, np.int64)
        self.features = np.zeros((0, 0), np.float16)

    def refresh(self) -> bool:
        """Read what is new; whether there was anything."""
        if not self._path.is_file():
            return False
        keys = bytearray()
        content = bytearray()  # not a list of rows, which takes six times the memory
        with open(self._path, "rb") as file:
            for key, place, row in scan(file.fileno(), self._read):
                self._read = sum(place)
                if row:
                    keys += key
                    content += row
        numbers = self._index.find(np.frombuffer(keys, KEY))
        known = numbers >= 0
        if not known.any():
            return False
        rows = np.frombuffer(content, np.float16).reshape(len(numbers), -1)
        rows = rows if known.all() else rows[known]
        self.features = np.concatenate([self.features, rows]) if len(self.features) else rows
        self.images = np.concatenate([self.images, numbers[known]])
        return True
