"""The bank: every image embedded once by a frozen network, in one plain, a few weak and several strong views.

Features are float16 in memory-mapped files of the cache folder, in a folder for the recipe (the network's weights, the
views, the seed) and in it one for the images. What another bank of the recipe has embedded is copied. Work is done in
chunks, each from a seed of its own: a killed process continues where it was, and several processes share the chunks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn

from ..augment.recipe import read_augment
from ..augment.views import ImageViews
from ..data.cache import cache_folder
from ..data.dataset import Dataset, Examples, channel_mean_std
from ..errors import check_choice, check_integer, check_range
from ..utils.io import read_json
from ..utils.progress import Progress
from . import storage
from .earlier import take_over
from .encoder import ForwardOptions, FrozenNetwork, fastest_options, seconds_per_image
from .onnx_engine import BATCH, ENGINES, Engine, choose_engine
from .storage import StoredViews

FORMAT = 3  # raise it when augmentation or layout changes, so that old banks are no longer found
BLOCK = 2**22  # bytes of images that are read at a time for the key
DIGEST = 16  # bytes per image
MEASURED = 20_000  # views from which on it pays to measure how the network is fastest
FORWARD = "forward.json"
NATURAL = read_augment("natural")
Part = Literal["train", "test"]
Run = Callable[..., Iterable[Any]]


@dataclass(frozen=True)
class BankConfig:
    """What a bank holds of each training image, besides its plain view.

    Args:
        weak: weakly augmented views per image.
        strong: strongly augmented views per image.
        noise: Gaussian noise added to a drawn view, in standard deviations of each feature.
        head: what is trained on the features: a "linear" layer, or an "mlp" with one hidden layer.
        lazy: embed only the plain view at first, and the others of an image when a selector keeps it.
        batch_size: images per forward of the frozen network; the fastest is found by measurement if not given.
    """

    weak: int = 2
    strong: int = 4
    noise: float = 0.0
    head: Literal["linear", "mlp"] = "linear"
    lazy: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_integer("weak", self.weak)
        check_integer("strong", self.strong)
        check_range("noise", self.noise)
        check_choice("head", self.head, ("linear", "mlp"))
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size)

    @property
    def names(self) -> tuple[str, ...]:
        """The view in each slot of a row."""
        return ("plain", *["weak"] * self.weak, *["strong"] * self.strong)


class Job(NamedTuple):
    """Rows of one chunk whose views are embedded together."""

    part: Part
    number: int  # of the chunk
    rows: np.ndarray
    names: tuple[str, ...]

    @property
    def views(self) -> int:
        """How many views go through the network."""
        return len(self.rows) * len(self.names)


class Bank:
    """Features of a dataset's images: `(images, 1 + weak + strong, features)` for training, one slot for the test set.

    Images need not be an array: `shape`, `dtype` and indexing by row numbers are enough. `views` augments and
    normalizes them for `encoder`, which is put in eval mode.
    """

    def __init__(
        self,
        dataset: Dataset,
        encoder: nn.Module,
        views: ImageViews,
        config: BankConfig | None = None,
        *,
        seed: int = 0,
        cache: str | None = None,
        device: torch.device | str = "cpu",
        engine: Engine = "auto",
    ) -> None:
        self.source = dataset
        self.views = views
        self.config = config or BankConfig()
        self.seed = seed
        self.cache = cache
        self.device = torch.device(device)
        self.engine = check_choice("engine", engine, ENGINES)
        self.seconds = 0.0  # that this process has spent on embedding
        self.encoder = encoder.to(self.device).eval()
        self.images: dict[Part, np.ndarray] = {"train": dataset.train.x}
        if dataset.test is not None and dataset.validation is None:
            self.images["test"] = dataset.test.x
        digests = {part: self._digests(part) for part in self.images}
        self.folder = cache_folder(cache) / "banks" / self._recipe_key() / _images_key(digests)
        with torch.no_grad():
            width = self.encoder(self.plain_batch(1)).shape[1]
        self.stored: dict[Part, StoredViews] = {}
        for part, images in self.images.items():
            slots = len(self.config.names) if part == "train" else 1
            lazy = self.config.lazy and part == "train"
            shape = (images.shape[0], slots, width)
            self.stored[part] = StoredViews(self.folder, part, shape, digests[part], lazy)
        self.taken = take_over(self.folder, list(self.stored.values()))  # images found in earlier banks
        with suppress(OSError):  # a folder that may only be read
            os.utime(self.folder)  # when it was last used
        self.features = {part: stored.features for part, stored in self.stored.items()}

    @classmethod
    def of_views(
        cls, x: np.ndarray, y: np.ndarray, names: Sequence[str], classes: tuple[str, ...], *, encoder: nn.Module,
        views: ImageViews, shape: tuple[int, int, int], recipe: str, name: str, slots: tuple[int, int] = (1, 1),
        groups: np.ndarray | None = None,
    ) -> Dataset:  # fmt: skip
        """Data whose views `(rows, views, features)` someone else has embedded, under the key `recipe`.

        Where only the plain view is there, it stands for the others. The bank only knows the network and the shape of
        the images, so that a run on these views is saved as one that takes images.
        """
        mean, std = (tuple(values.tolist()) for values in (views.mean, views.std))
        pictures = np.broadcast_to(np.zeros(1, np.uint8), (len(x), *shape))  # nobody looks at the pixels
        examples = Examples(pictures, y, names)
        source = Dataset(examples, None, classes, mean, std, fixed=True, name=name, groups=groups)
        bank = cls.__new__(cls)
        bank.source = source
        bank.encoder = encoder.eval()
        bank.views = views
        bank.config = BankConfig()
        bank.seconds = 0.0
        bank.folder = Path(recipe) / "elsewhere"
        mean, std = channel_mean_std(x[:, 0])
        if x.shape[1] == 1:
            x = np.broadcast_to(x, (len(x), 3, x.shape[2]))
            slots = (1, 1)
        return replace(source, train=replace(examples, x=x), mean=mean, std=std, slots=slots, bank=bank)

    def embed_plain(self, *, progress: bool = True) -> None:
        """Embed the plain views that are missing with the other processes of this run; a linear probe needs no more."""
        self._share(plain=True, progress=progress)

    def embed_all(self, rows: np.ndarray, *, progress: bool = True) -> None:
        """Embed what is missing with the other processes of this run; of a lazy bank all views only of `rows`."""
        self._share(plain=False, progress=progress)
        self.ensure(rows)  # which counts its own seconds

    def _share(self, *, plain: bool, progress: bool) -> None:
        state = PartialState(cpu=self.device.type == "cpu")
        began = time.perf_counter()
        shown = progress and state.is_main_process
        self.build(rank=state.process_index, world=state.num_processes, progress=shown, plain=plain)
        state.wait_for_everyone()
        self.seconds += time.perf_counter() - began

    # --- what is still to be done, and doing it

    def about(self, *, plain: bool = False) -> str:
        """What it takes on the disk, how many images are to be embedded, and how many an earlier bank had."""
        taken = f", {self.taken:,} taken over from an earlier one" if self.taken else ""
        return f"bank of {self.megabytes:,.1f} MB with {self.new_images(plain=plain):,} new images{taken}"

    def jobs(self, rank: int = 0, world: int = 1, *, plain: bool = False) -> Iterator[Job]:
        """What is not embedded of the chunks of process `rank`: of a lazy bank, or if `plain`, only the plain views.

        Making a plain view draws no random number, so the others are the same whether or not it was made before.
        """
        for part, stored in self.stored.items():
            names = ("plain",) if plain else self._names(part)
            for number in stored.missing(len(names)):
                if number % world == rank:  # not every world-th of the list, which others shorten meanwhile
                    rows = stored.lacking(number, len(names))
                    if not len(rows):  # another run on these images was faster
                        continue
                    yield Job(part, number, rows, names[1:] if stored.have_plain(rows) else names)

    def missing(self, rank: int = 0, world: int = 1, *, plain: bool = False) -> int:
        """Views that process `rank` has to embed."""
        return sum(job.views for job in self.jobs(rank, world, plain=plain))

    def new_images(self, *, plain: bool = False) -> int:
        """Images that lack a view, or if `plain` the plain one."""
        return sum(len(job.rows) for job in self.jobs(plain=plain))

    @property
    def megabytes(self) -> float:
        """What the bank takes on the disk, once it is open."""
        return sum(stored.features.nbytes for stored in self.stored.values()) / 1e6

    def build(
        self, *, rank: int = 0, world: int = 1, progress: bool = True, run: Run = map, plain: bool = False
    ) -> Bank:
        """Embed what is missing, or if `plain` the plain views; process `rank` of `world` takes every world-th chunk.

        `run(function, jobs)` yields results as they come: `map` computes here, a cluster elsewhere.
        """
        views = "plain views" if plain else "views"
        with Progress("embedding", self.missing(rank, world, plain=plain), views, progress) as shown:
            for job, features in run(self.embed, self.jobs(rank, world, plain=plain)):
                stored = self.stored[job.part]
                (stored.store if "plain" in job.names else stored.store_augmented)(job.rows, features)
                shown.advance(job.views)
        return self

    def embed(self, job: Job) -> tuple[Job, np.ndarray]:
        """Features of one job, `(rows, slots, features)`."""
        return job, self.network.embed(self.device, *self.task(job))

    def task(self, job: Job) -> tuple[np.ndarray, tuple[str, ...], tuple[int, ...], np.ndarray | None]:
        """What the network needs to know of a job: raw images, views, seed, and which of the images (None: all).

        Views that a lazy bank adds later are drawn for the whole chunk, so that they do not depend on which rows are
        asked for first.
        """
        key = (self.seed, ("train", "test").index(job.part), job.number)
        if "plain" in job.names or not self.config.lazy:
            return self._raw(job.part, job.rows), job.names, key, None
        chunk = self.stored[job.part].chunk(job.number)
        return self._raw(job.part, chunk), job.names, key, job.rows - chunk[0]

    def ensure(self, rows: np.ndarray, *, rank: int = 0, world: int = 1, progress: bool = False) -> None:
        """Embed the weak and strong views of these training rows, where a lazy bank has not done so yet.

        The plain views must have been embedded (`build`). Several processes that ask for the same rows share them: each
        starts at another chunk and skips what is done.
        """
        if not self.config.lazy:
            return
        began = time.perf_counter()
        stored = self.stored["train"]
        missing = np.unique(stored.missing_rows(rows))
        pieces = np.split(missing, np.flatnonzero(np.diff(missing // storage.CHUNK)) + 1) if len(missing) else []
        first = rank * len(pieces) // world
        names = self.config.names[1:]  # making the plain view drew no random number
        with Progress("embedding", len(missing) * len(names), "views", progress) as shown:
            for piece in (*pieces[first:], *pieces[:first]):
                piece = stored.missing_rows(piece)
                if len(piece):
                    job, features = self.embed(Job("train", int(piece[0]) // storage.CHUNK, piece, names))
                    stored.store_augmented(piece, features)
                    shown.advance(job.views)
        self.seconds += time.perf_counter() - began

    def dataset(self) -> Dataset:
        """The bank as a dataset whose rows are slots of views, with the mean and deviation of the plain features."""
        mean, std = channel_mean_std(self.features["train"][:, 0])
        train = replace(self.source.train, x=self.features["train"])
        test = self.source.test
        rows = self.source.validation
        if test is not None:  # images for validation are embedded as training images
            test = replace(test, x=self.features["test"] if rows is None else self.features["train"][rows, :1])
        slots = (self.config.weak, self.config.strong)
        return replace(self.source, train=train, test=test, mean=mean, std=std, slots=slots, bank=self)

    # --- the network

    @cached_property
    def network(self) -> FrozenNetwork:
        """The frozen network; all processes that continue or share the work forward batches in the same way."""
        path = self.folder / FORWARD
        if read_json(path) is None:
            with storage.published(path) as temporary:
                temporary.write_text(json.dumps(self._fastest()._asdict()))
        options = ForwardOptions(**(read_json(path) or {}))
        if self.config.batch_size is not None:
            options = options._replace(batch_size=self.config.batch_size)
        engine = self.engine if self.engine != "auto" else check_choice("engine", options.engine, ENGINES)
        fast = choose_engine(self.encoder, engine, device=self.device, cache=self.cache)
        return FrozenNetwork(fast or self.encoder, self.views, options)

    def _fastest(self) -> ForwardOptions:
        """How batches go through the network. In PyTorch it is measured only where that costs a few percent at most."""
        views = self.missing()
        seconds = 0.0
        if views >= MEASURED // 100 and self.engine == "auto" and self.device.type == "cpu":
            seconds = views * seconds_per_image(self.encoder, self.plain_batch(BATCH))
        if choose_engine(self.encoder, self.engine, device=self.device, seconds=seconds, cache=self.cache):
            return ForwardOptions(BATCH, channels_last=False, engine="onnx")
        if views < MEASURED or self.config.batch_size is not None:
            return ForwardOptions.default(self.device, self.config.batch_size)
        return fastest_options(self.encoder, self.plain_batch(storage.CHUNK))

    def seconds_per_view(self, *, plain: bool = False) -> float:
        """Time of a few images of the first chunk in all their views, augmentation included, or only the plain one."""
        count = min(2 * self.network.options.batch_size, self.new_images() or storage.CHUNK)
        rows = self.stored["train"].chunk(0)[:count]
        raw = self._raw("train", rows)
        names = ("plain",) if plain else self._names("train")
        times = []
        for _ in range(2):  # the first call warms up
            began = time.perf_counter()
            self.network.embed(self.device, raw, names, (self.seed,), None)
            times.append(time.perf_counter() - began)
        return min(times) / (len(rows) * len(names))

    # --- key and files

    def _recipe_key(self) -> str:
        """All that the features of an image depend on, but the image itself."""
        shape = self.images["train"].shape[1:]
        recipe = [FORMAT, self.config.names, self.config.lazy, self.seed, storage.CHUNK, self.views.flip, shape]
        recipe += [] if self.views.recipes == NATURAL else [self.views.recipes]
        return recipe_digest(recipe, self.encoder, self.views)

    def _digests(self, part: Part) -> np.ndarray:
        """Of the pixels of every image, `(images, 2)`."""
        images = self.images[part]
        step = max(1, BLOCK // max(1, math.prod(images.shape[1:])))
        digests = np.empty((images.shape[0], 2), np.uint64)
        for start in range(0, len(digests), step):
            rows = np.arange(start, min(start + step, len(digests)))
            hashed = [hashlib.blake2b(image, digest_size=DIGEST).digest() for image in self._raw(part, rows)]
            digests[rows] = np.frombuffer(b"".join(hashed), np.uint64).reshape(-1, 2)
        return digests

    def _names(self, part: Part) -> tuple[str, ...]:
        return self.config.names if part == "train" and not self.config.lazy else ("plain",)

    def _raw(self, part: Part, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self.images[part][rows])

    def plain_batch(self, count: int) -> Tensor:
        """The plain view of the first training images, normalized."""
        raw = self._raw("train", np.arange(min(count, self.images["train"].shape[0])))
        return self.views("plain", torch.from_numpy(raw).to(self.device))


def recipe_digest(recipe: Sequence[Any], encoder: nn.Module, views: ImageViews) -> str:
    """Of a list of options, of the network and of the normalization of its images."""
    options = [getattr(encoder, name, None) for name in ("input_size", "interpolation")]
    # Its layers, not its own repr, which names the file of the weights.
    networks = getattr(encoder, "networks", [encoder])
    layers = [layer for network in networks for layer in (type(network).__name__, *network.children())]
    digest = hashlib.blake2b(repr([recipe, options, layers]).encode(), digest_size=DIGEST)
    for tensor in (views.mean, views.std, *encoder.state_dict().values()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _images_key(digests: Mapping[Part, np.ndarray]) -> str:
    """Of all images in their order."""
    digest = hashlib.blake2b(repr([(part, len(rows)) for part, rows in digests.items()]).encode(), digest_size=DIGEST)
    for rows in digests.values():
        digest.update(rows.data)
    return digest.hexdigest()
