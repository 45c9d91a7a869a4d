"""The bank: every image embedded once by a frozen network, in one plain, a few weak and several strong views.

Features are float16 in memory-mapped files of the cache folder, under a key made from the images, the network's
weights, the views and the seed. Work is done in chunks, each from a seed of its own: a killed process continues
where it was, and several processes share the chunks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from ..utils.seeding import seed_chunk
from ..validation import check_choice, check_integer, check_range
from .augment.views import ImageViews
from .cache import cache_folder
from .dataset import Dataset, channel_mean_std

FORMAT = 1  # raise it when augmentation or layout changes, so that old banks are no longer found
CHUNK = 256
LAZY_SEEDS = 2**31  # chunks of a lazy bank's further views have seeds beyond those of the plain ones
Part = Literal["train", "test"]


@dataclass(frozen=True)
class BankConfig:
    """What a bank holds of each training image, besides its plain view.

    Args:
        weak: weakly augmented views per image.
        strong: strongly augmented views per image.
        noise: Gaussian noise added to a drawn view, in standard deviations of each feature.
        head: what is trained on the features: a "linear" layer, or an "mlp" with one hidden layer.
        lazy: embed only the plain view at first, and the others of an image when a selector keeps it.
        batch_size: images per forward of the frozen network.
    """

    weak: int = 2
    strong: int = 4
    noise: float = 0.0
    head: Literal["linear", "mlp"] = "linear"
    lazy: bool = False
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_integer("weak", self.weak)
        check_integer("strong", self.strong)
        check_range("noise", self.noise)
        check_choice("head", self.head, ("linear", "mlp"))
        check_integer("batch_size", self.batch_size)

    @property
    def names(self) -> tuple[str, ...]:
        """The view in each slot of a row."""
        return ("plain", *["weak"] * self.weak, *["strong"] * self.strong)


class Job(NamedTuple):
    """Rows of one part that are embedded together, from one seed."""

    part: Part
    number: int
    rows: np.ndarray
    names: tuple[str, ...]


class Bank:
    """Features of a dataset's images by slot: N × (1 + weak + strong) × D for training, M × 1 × D for the test set.

    Args:
        dataset: the images.
        encoder: a network that maps normalized images to features; it is used in eval mode and not changed.
        views: augments and normalizes raw images for the encoder.
        config: which views.
        seed: seed of the augmentation.
        cache: cache folder; see `cache_folder`.
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
    ) -> None:
        self.source, self.views, self.config, self.seed = dataset, views, config or BankConfig(), seed
        self.device = torch.device(device)
        self.seconds = 0.0  # spent on embedding by this process
        self.encoder = encoder.to(self.device).eval()
        self.images: dict[Part, np.ndarray] = {"train": dataset.train.x}
        if dataset.test is not None:
            self.images["test"] = dataset.test.x
        self.folder = cache_folder(cache) / "banks" / self._key()
        self.features = {part: self._opened(part) for part in self.images}

    # --- what is still to be done, and doing it

    def jobs(self, part: Part) -> list[Job]:
        """Chunks of a part that are not embedded yet; a lazy bank embeds only the plain view of them."""
        names = self.config.names if part == "train" and not self.config.lazy else ("plain",)
        rows = np.arange(len(self.images[part]))
        todo = np.flatnonzero(self._done(part)[:] == 0)
        return [Job(part, int(n), rows[n * CHUNK : (n + 1) * CHUNK], names) for n in todo]

    def build(
        self, *, rank: int = 0, world: int = 1, progress: bool = True, run: Callable[..., Iterable[Any]] = map
    ) -> Bank:
        """Embed what is missing; process `rank` of `world` takes every world-th chunk.

        `run(function, jobs)` yields results as they come: `map` computes here, a cluster elsewhere.
        """
        jobs = [job for part in self.images for job in self.jobs(part)][rank::world]
        views = sum(len(job.rows) * len(job.names) for job in jobs)
        with tqdm(total=views, unit="view", desc="embedding", disable=not (progress and views)) as bar:
            for job, features in run(self.embed, jobs):
                self.store(job, features)
                bar.update(len(job.rows) * len(job.names))
        return self

    @torch.no_grad()
    def embed(self, job: Job) -> tuple[Job, np.ndarray]:
        """Features of one chunk, rows × slots × D; the random state stays as it was."""
        slots = []
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            seed_chunk(self.seed, ("train", "test").index(job.part), job.number)
            raw = torch.from_numpy(np.array(self.images[job.part][job.rows])).to(self.device)
            for name in job.names:
                images = self.views(name, raw).contiguous(memory_format=torch.channels_last)
                parts = [self.encoder(piece).float() for piece in torch.split(images, self.config.batch_size)]
                slots.append(torch.cat(parts).clamp(-65504, 65504).half().cpu())
        return job, torch.stack(slots, 1).numpy()

    def store(self, job: Job, features: np.ndarray) -> None:
        """Write one chunk and then its mark, so that a mark is never there without its features."""
        target = self.features[job.part]
        # A lazy bank lets the plain view stand for the others until they are asked for.
        missing = target.shape[1] - features.shape[1]
        target[job.rows] = np.concatenate([features, np.repeat(features[:, :1], missing, 1)], 1)
        target.flush()
        done = self._done(job.part)
        done[job.number] = 1
        done.flush()

    def ensure(self, rows: np.ndarray, *, progress: bool = False) -> None:
        """Embed the weak and strong views of these training rows, where a lazy bank has not done so yet."""
        if not self.config.lazy:
            return
        flags = self._rows_done()
        missing = np.sort(rows[flags[rows] == 0])
        jobs = [Job("train", LAZY_SEEDS + int(piece[0]), piece, self.config.names) for piece in pieces(missing)]
        for job, features in map(self.embed, tqdm(jobs, unit="chunk", desc="embedding", disable=not progress)):
            self.features["train"][job.rows] = features
            self.features["train"].flush()
            flags[job.rows] = 1
            flags.flush()

    def dataset(self) -> Dataset:
        """The bank as a dataset whose rows are slots of views, with the mean and deviation of the plain features."""
        mean, std = channel_mean_std(self.features["train"][:, 0])
        train = replace(self.source.train, x=self.features["train"])
        test = None if self.source.test is None else replace(self.source.test, x=self.features["test"])
        slots = (self.config.weak, self.config.strong)
        return replace(self.source, train=train, test=test, mean=mean, std=std, slots=slots, bank=self)

    # --- files

    def _key(self) -> str:
        recipe = [FORMAT, self.config.names, self.config.lazy, self.seed, CHUNK, self.views.flip]
        digest = hashlib.blake2b(repr(recipe).encode(), digest_size=16)
        for tensor in (self.views.mean, self.views.std, *self.encoder.state_dict().values()):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        digest.update(repr([self.encoder, getattr(self.encoder, "input_size", None)]).encode())
        for images in self.images.values():
            digest.update(repr(images.shape).encode())
            for start in range(0, len(images), 4096):
                digest.update(np.ascontiguousarray(images[start : start + 4096]).tobytes())
        return digest.hexdigest()

    def _opened(self, part: Part) -> np.memmap:
        slots = len(self.config.names) if part == "train" else 1
        return opened(self.folder / f"{part}.npy", (len(self.images[part]), slots, self._width()), np.float16)

    def _done(self, part: Part) -> np.memmap:
        chunks = -(-len(self.images[part]) // CHUNK)
        return opened(self.folder / f"{part}-done.npy", (chunks,), np.uint8)

    def _rows_done(self) -> np.memmap:
        return opened(self.folder / "rows-done.npy", (len(self.images["train"]),), np.uint8)

    @torch.no_grad()
    def _width(self) -> int:
        raw = torch.from_numpy(np.array(self.images["train"][:1])).to(self.device)
        return int(self.encoder(self.views("plain", raw)).shape[1])


def pieces(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Rows in chunks."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def opened(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    """The array in a file, zeros if there is none yet; several processes may open it at the same time."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape).flush()
            if hasattr(os, "posix_fallocate"):  # a full disk must be an error here, not a crash on writing a page
                with open(temporary, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
            with suppress(FileExistsError):  # another process was faster, and its file is as good
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return np.lib.format.open_memmap(path, mode="r+")
