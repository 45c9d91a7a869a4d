"""From images anywhere to a sharded bank: here, on several processes, or on a Ray cluster.

Each piece of the images becomes one shard. Whoever computes only reads images and returns features; this process alone
writes. A piece whose process dies, or whose file cannot be reached, is tried again.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from ..augment.recipe import Augment
from ..augment.views import ImageViews
from ..data.images.decode import SkippedImages, threads_for
from ..data.images.store import Limits
from ..data.sources.remote import Piece, list_pieces, read_piece
from ..errors import UserError, check_choice, check_integer, option_prefix
from ..models import Backbone, Concat, Timm
from ..utils.device import resolve_device
from ..utils.io import in_words
from ..utils.progress import Progress
from .embed import WAITING, input_side, make_encoder, start_ray
from .encoder import ForwardOptions, FrozenNetwork, seconds_per_image
from .onnx_engine import BATCH, Engine, OnnxNetwork, choose_engine
from .shards import ShardRecipe, Shards, ShardWriter, network_digest, only_writer

ATTEMPTS = 3
CHUNK = 256  # images that are decoded and embedded at a time
IMAGES = 4096  # of a folder or zip that make one shard
Backend = Literal["here", "ray"]
BACKENDS: tuple[Backend, ...] = ("here", "ray")
Faults = tuple[type[BaseException], ...]
Numbered = tuple[int, Piece]  # the number of a shard, and its images


def embed_shards(
    data: str,
    out: str | os.PathLike[str],
    encoder: Timm | Concat | Frozen | None = None,
    *,
    size: int | None = None,
    mode: Literal["rgb", "gray"] = "rgb",
    weak: int = 0,
    strong: int = 0,
    augment: Augment = "natural",
    flip: bool = True,
    seed: int = 0,
    images: int = IMAGES,
    backend: Backend = "here",
    workers: int | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    limits: Limits | None = None,
    cache: str | None = None,
    progress: bool = True,
) -> Shards:
    """Embed images into a folder of shards, like `vcc-infuse embed --shards`; what is there already stays.

    Args:
        data: a folder, zip, WebDataset tar or Parquet file, or a pattern of these; a path or an address of fsspec.
        out: a folder of this machine, or one that several machines share.
        encoder: a pretrained network; EfficientNet-Lite0 if not given. Or what `network_of_run` returns: then size,
            mode, augment and flip are those of the run.
        size: side of the decoded images; that of the network's input if not given.
        mode: color mode.
        weak: weak views per image, besides the plain one.
        strong: strong views per image.
        augment: how they are made; see `load_ssl`.
        flip: whether a mirrored image keeps its class.
        seed: of the views.
        images: of a folder or zip that make one shard; a tar or Parquet file makes one by itself.
        backend: "here", or "ray" for the cluster of RAY_ADDRESS or for processes of a local one.
        workers: processes of one thread each. If not given, "here" is this process with all its threads, and "ray" uses
            all cores.
        device: where the network computes.
        engine: "torch", "onnx" or "auto".
        limits: the largest files and images that are read.
        cache: folder of networks for ONNX Runtime; see `load_ssl`.
        progress: show a progress bar.

    Returns:
        The finished bank.
    """
    check_choice("backend", backend, BACKENDS)
    check_choice("mode", mode, ("rgb", "gray"))
    check_integer("images", images)
    check_integer("workers", 1 if workers is None else workers)
    check_integer("weak", weak, 0)
    check_integer("strong", strong, 0)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the shards")
    place = resolve_device(device)
    pieces = list_pieces(data, images=images, limits=limits)
    if isinstance(encoder, Frozen):
        frozen = encoder
    else:
        frozen = frozen_network(encoder or Timm(), size=size, mode=mode, flip=flip, augment=augment, seed=seed)
    recipe = replace(frozen.recipe, weak=weak, strong=strong, seed=seed)
    with only_writer(folder):
        writer = ShardWriter(folder, recipe)
        if todo := writer.missing(pieces):
            alone = backend == "here" and workers is None
            network = fastest(frozen, place, engine, sum(piece.images for _, piece in todo) / (workers or 1), cache)
            threads = threads_for(recipe.shape[0] * recipe.shape[1]) if alone else 1
            work = Work(network if alone else _with_one_thread(network), recipe, limits, place.type, threads)
            _fill(writer, _runner(backend, work, workers), todo, progress)
        writer.save(pieces)
    shards = Shards(folder)
    if not len(shards):
        raise UserError(f"none of the images of {data} can be read; give others")
    return shards


class Frozen(NamedTuple):
    """A network that is ready, the views it is shown, and what the bank says of them."""

    encoder: Backbone
    views: ImageViews
    recipe: ShardRecipe


def frozen_network(
    network: Timm | Concat, *, size: int | None = None, mode: str = "rgb", seed: int = 0, flip: bool = True,
    augment: Augment = "natural",
) -> Frozen:  # fmt: skip
    """The network with its weights; the options are those of `embed_shards`."""
    if size is not None:
        check_integer("size", size)
    with option_prefix("model"):
        side = size or input_side(network)
        shape = (side, side, 1 if mode == "gray" else 3)
        encoder, _ = make_encoder(network, shape, seed=seed)
    expects = encoder.preprocessing()
    statistics = (expects.mean, expects.std) if expects else ((0.5,) * shape[2], (0.25,) * shape[2])
    return described(encoder, ImageViews(*statistics, flip, augment), shape, seed)


def described(encoder: Backbone, views: ImageViews, shape: tuple[int, int, int], seed: int = 0) -> Frozen:
    """A network that has its weights, with what the bank says of it."""
    model = {name: getattr(encoder, name) for name in ("name", "weights", "input_size")}
    digest = network_digest(encoder, views, shape)
    recipe = ShardRecipe(digest, model, shape, encoder.features, 0, 0, seed, views.augment, views.flip)
    return Frozen(encoder, views, recipe)


def fastest(frozen: Frozen, device: torch.device, engine: Engine, images: float, cache: str | None) -> FrozenNetwork:
    """The network in the engine that pays for so many images."""
    height, width, channels = frozen.recipe.shape
    encoder = frozen.encoder.to(device).eval()
    seconds = 0.0
    if engine == "auto" and device.type == "cpu" and images > BATCH:
        seconds = images * seconds_per_image(encoder, torch.zeros(BATCH, channels, height, width))
    fast = choose_engine(encoder, engine, device=device, seconds=seconds, cache=cache)
    options = ForwardOptions(BATCH, channels_last=False, engine="onnx") if fast else ForwardOptions.default(device)
    return FrozenNetwork(fast or encoder, frozen.views, options)


def _with_one_thread(network: FrozenNetwork) -> FrozenNetwork:
    """A copy on the CPU for processes that have a core each."""
    copied = copy.deepcopy(network).to(torch.device("cpu"))
    for part in copied.encoder.modules():
        if isinstance(part, OnnxNetwork):
            part.threads = 1
    return copied


def _fill(writer: ShardWriter, runner: Runner, todo: Sequence[Numbered], progress: bool) -> None:
    """Embed pieces and write their shards; what fails for good is named at the end, so that the rest is done."""
    failed: list[str] = []
    skipped = SkippedImages()
    try:
        with Progress("embedding", len(todo), "shards", progress) as shown:
            for (number, piece), outcome in completed(runner, todo):
                if isinstance(outcome, EmbeddedPiece):
                    writer.add(number, piece, outcome.names, outcome.features, len(outcome.skipped))
                    names = [name for name, _ in outcome.skipped]
                    skipped.add(names, dict(enumerate(why for _, why in outcome.skipped)))
                else:
                    failed.append(outcome)
                shown.advance()
    finally:
        runner.close()
        writer.save()
    skipped.report()
    if failed:
        done = f"{len(failed)} of {len(todo)} shards cannot be made"
        raise UserError(f"{done}: {failed[0]}; the same command tries again, and finished shards are kept")


# --- one piece, in whichever process


class EmbeddedPiece(NamedTuple):
    """Names and features `(images, views, features)` of the images that can be read, and why others cannot."""

    names: list[str]
    features: np.ndarray
    skipped: list[tuple[str, str]]


class Work(NamedTuple):
    """All that a process needs to embed a piece, but the piece; it can be sent to other machines."""

    network: FrozenNetwork
    recipe: ShardRecipe
    limits: Limits | None
    device: str
    threads: int


def embed_piece(work: Work, number: int, piece: Piece) -> EmbeddedPiece:
    """Read and embed the images of a piece, a few at a time; views are drawn from the seed and its number."""
    recipe = work.recipe
    device = torch.device(work.device)
    network = work.network.to(device)
    result = EmbeddedPiece([], np.empty((0, len(recipe.names), recipe.width), np.float16), [])
    parts = [result.features]
    for place, chunk in enumerate(read_piece(piece, recipe.shape, CHUNK, work.limits or Limits(), work.threads)):
        result.names.extend(chunk.names)
        result.skipped.extend(chunk.skipped)
        if len(chunk.x):
            parts.append(network.embed(device, chunk.x, recipe.names, (recipe.seed, number, place), None))
    return result._replace(features=np.concatenate(parts))


def _in_worker(work: Work, number: int, piece: Piece) -> EmbeddedPiece:
    torch.set_num_threads(work.threads)  # every core has a process of its own
    return embed_piece(work, number, piece)


# --- where pieces are computed


class Runner(Protocol):
    """Computes pieces; `room` may be on their way at a time, and after a fault of `passing` one is tried again."""

    room: int
    passing: Faults

    def submit(self, number: int, piece: Piece) -> Future[EmbeddedPiece]:
        """Begin with a piece."""

    def close(self) -> None:
        """Free what was taken."""


class Here:
    """This process, one piece after the other."""

    room: int = 1
    passing: Faults = (OSError,)

    def __init__(self, work: Work) -> None:
        self.work = work

    def submit(self, number: int, piece: Piece) -> Future[EmbeddedPiece]:
        """The finished piece."""
        future: Future[EmbeddedPiece] = Future()
        try:
            future.set_result(embed_piece(self.work, number, piece))
        except Exception as fault:  # which the future raises again for whoever asks for the result
            future.set_exception(fault)
        return future

    def close(self) -> None:
        """Nothing was taken."""


class Processes:
    """Processes of this machine. Each has a pool of its own, so that one that dies takes no other's piece with it."""

    passing: Faults = (OSError, BrokenProcessPool)

    def __init__(self, work: Work, workers: int) -> None:
        self.work = work
        self.room = workers
        self.pools: list[ProcessPoolExecutor] = []
        self.idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for _ in range(self.room):
            self.idle.put(self._start())

    def submit(self, number: int, piece: Piece) -> Future[EmbeddedPiece]:
        """On the next idle process."""
        pool = self.idle.get()
        try:
            future = pool.submit(_in_worker, self.work, number, piece)
        except BrokenProcessPool:  # it died while it had nothing to do
            pool = self._start()
            future = pool.submit(_in_worker, self.work, number, piece)
        future.add_done_callback(lambda done: self.idle.put(self._start() if _has_died(done) else pool))
        return future

    def close(self) -> None:
        """End the processes."""
        for pool in self.pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        self.pools.append(ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent))
        return self.pools[-1]


def _end_with_parent() -> None:
    """Otherwise a process waits for pieces for ever, from a parent that was killed, too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _has_died(future: Future[EmbeddedPiece]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)


class RayCluster:
    """The cluster of RAY_ADDRESS, or `workers` processes of a local one, which stays for those who started it."""

    def __init__(self, work: Work, workers: int | None) -> None:
        ray = start_ray(workers)
        lost = ray.exceptions
        self.passing: Faults = (
            OSError, lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError, lost.ObjectLostError,
            lost.RaySystemError,
        )  # fmt: skip
        gpus = int(work.device == "cuda")
        self.room = WAITING * max(1, int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1)))
        self.work = ray.put(work)  # the network travels once
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_in_worker)

    def submit(self, number: int, piece: Piece) -> Future[EmbeddedPiece]:
        """On whichever machine is free."""
        future: Future[EmbeddedPiece] = self.remote.remote(self.work, number, piece).future()
        return future

    def close(self) -> None:
        """Nothing to free."""


def _runner(backend: Backend, work: Work, workers: int | None) -> Runner:
    if backend == "ray":
        return RayCluster(work, workers)
    return Here(work) if workers is None else Processes(work, workers)


def completed(runner: Runner, todo: Sequence[Numbered]) -> Iterator[tuple[Numbered, EmbeddedPiece | str]]:
    """Every piece once: what was embedded, or why that failed for good."""
    waiting = deque((task, 1) for task in todo)
    pending: dict[Future[EmbeddedPiece], tuple[Numbered, int]] = {}
    while waiting or pending:
        while waiting and len(pending) < runner.room:
            task, attempt = waiting.popleft()
            pending[runner.submit(*task)] = (task, attempt)
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            task, attempt = pending.pop(future)
            fault = future.exception()
            if fault is None:
                yield task, future.result()
            elif isinstance(fault, UserError):
                yield task, str(getattr(fault, "cause", fault))  # of Ray's error the one that it wraps
            elif not isinstance(fault, runner.passing):
                raise fault
            elif attempt < ATTEMPTS:
                waiting.append((task, attempt + 1))
            else:
                yield task, f"{task[1].url} ({in_words(getattr(fault, 'cause', None) or fault)})"
