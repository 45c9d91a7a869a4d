"""From images to a bank of embedded views, ready for any method: what the preset `frozen` does."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..augment.views import ImageViews
from ..data.ssl_data import SSLData
from ..errors import OptionError, UserError
from ..models import MLP, Backbone, Concat, Identity, Timm
from ..models.classifier import set_up
from ..models.concat import networks_of
from ..utils.device import resolve_device
from .bank import Bank, BankConfig, Job
from .encoder import FrozenNetwork
from .onnx_engine import Engine

WAITING = 2  # tasks per processor of a cluster that are on their way at a time, so that memory stays bounded


def embed_data(
    data: SSLData,
    encoder: Backbone,
    config: BankConfig | None = None,
    *,
    cache: str | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    progress: bool = True,
) -> SSLData:
    """The same data as a bank of views embedded by `encoder`, which is built in the cache folder if it is not there.

    Train a head on it with `Trainer(head(config), …, head_init="probe")`; the run is saved with the encoder and takes
    images. Several processes share the work.

    Args:
        data: images.
        encoder: a pretrained network, such as Timm("tf_efficientnet_lite0").
        config: which views; see BankConfig.
        cache: folder of the bank; see the option of `load_ssl`.
        device: where the encoder computes.
        engine: "torch", "onnx" (ONNX Runtime, on CPUs), or "auto" for the faster one.
        progress: show a progress bar.

    Returns:
        Data whose rows are slots of views, `(images, 1 + weak + strong, features)`.
    """
    encoder, _ = make_encoder(encoder, data.dataset.shape)
    bank = open_bank(data, encoder, config, cache=cache, device=device, engine=engine)
    bank.embed_all(data.split.labeled, progress=progress)
    return replace(data, dataset=bank.dataset())


def check_images(shape: tuple[int, ...]) -> None:
    """Refuse examples that no network for images can see."""
    if len(shape) != 3:
        raise UserError(f"a bank needs images, not examples of shape {shape}; train on vectors without one")


def make_encoder(encoder: Backbone, shape: tuple[int, ...], *, seed: int = 0) -> tuple[Backbone, str | None]:
    """A frozen copy of a network, built for images of `shape` (height, width, channels), and the source of its weights.

    Random weights, whose source is None, follow from `seed`, so that they are the same in every process and every run.
    """
    check_images(shape)
    height, width, channels = shape
    encoder = copy.deepcopy(encoder)
    for network in networks_of(encoder):
        network.input_size = network.input_size or network.native_size()
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        set_up(encoder, (channels, height, width))
    source = encoder.load_pretrained()
    return encoder.requires_grad_(False), source


def input_side(encoder: Timm | Concat) -> int:
    """Side of the images that the network is shown: the one that was given, else that of its training.

    Of several networks the largest.
    """
    return max(network.input_size or network.native_size() for network in networks_of(encoder))


def open_bank(
    data: SSLData,
    encoder: Backbone,
    config: BankConfig | None = None,
    *,
    cache: str | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    seed: int = 0,
) -> Bank:
    """The bank of the data for a network from `make_encoder`, with whatever is embedded already."""
    dataset = data.dataset
    expects = encoder.preprocessing() or dataset
    views = ImageViews(expects.mean, expects.std, dataset.flip, dataset.augment)
    return Bank(dataset, encoder, views, config, seed=seed, cache=cache, device=resolve_device(device), engine=engine)


def head(config: BankConfig | None = None) -> Backbone:
    """The layers to train on a bank, below the linear classifier."""
    return MLP((256,)) if config is not None and config.head == "mlp" else Identity()


# --- on a Ray cluster: raw images go out, features come back, and only the driver writes


def start_ray(workers: int | None = None) -> Any:
    """The module ray, connected to the cluster of RAY_ADDRESS, or to a new one of `workers` local processes."""
    try:
        import ray
    except ImportError as error:
        remedy = "install it with: pip install 'vcc-infuse[ray]'"
        raise OptionError("backend", "ray", "needs a package that is missing (ray)", remedy) from error
    if not ray.is_initialized():
        cores = None if os.environ.get("RAY_ADDRESS") else workers
        ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False)
    return ray


def over_ray(bank: Bank, workers: int | None = None) -> Callable[..., Iterator[tuple[Job, np.ndarray]]]:
    """The `run` of `Bank.build` on the cluster of RAY_ADDRESS, or on `workers` processes of this machine."""
    ray = start_ray(workers)
    gpus = 1 if bank.device.type == "cuda" else 0
    kind = "GPU" if gpus else "CPU"
    network = ray.put(copy.deepcopy(bank.network).to(torch.device("cpu")))
    remote = ray.remote(num_cpus=1, num_gpus=gpus)(_embed)

    def run(_: object, jobs: Iterable[Job]) -> Iterator[tuple[Job, np.ndarray]]:
        slots = max(1, int(ray.cluster_resources().get(kind, 1)))
        pending: dict[Any, Job] = {}
        for job in chain(jobs, [None]):
            if job is not None:
                pending[remote.remote(network, torch.device(bank.device.type), *bank.task(job))] = job
            while pending and (job is None or len(pending) >= WAITING * slots):
                (ready, *_), _ = ray.wait(list(pending), num_returns=1)
                yield pending.pop(ready), ray.get(ready)

    return run


def _embed(network: FrozenNetwork, device: torch.device, *task: Any) -> np.ndarray:
    return network.to(device).embed(device, *task)
