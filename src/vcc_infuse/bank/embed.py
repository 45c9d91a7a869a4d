"""From images to a bank of embedded views, ready for any method: what the preset `frozen` does."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import torch
from accelerate import PartialState

from ..augment.views import ImageViews
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..models import MLP, Backbone, Identity, Timm
from ..models.classifier import set_up
from ..utils.device import resolve_device
from .bank import Bank, BankConfig

SMALL, MEDIUM = 96, 160


def embed_data(
    data: SSLData,
    encoder: Backbone,
    config: BankConfig | None = None,
    *,
    cache: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> SSLData:
    """The same data as a bank of views embedded by `encoder`, built in the cache folder unless it is there already.

    Train a head on it with `Trainer(head(config), …, head_init="probe")`; the run is saved with the encoder and takes
    images. Several processes share the work.

    Args:
        data: images.
        encoder: a pretrained network, such as Timm("tf_efficientnet_lite0").
        config: which views; see BankConfig.
        cache: folder of the bank; see the option of `load`.
        device: where the encoder computes.
        progress: show a progress bar.
    """
    encoder, _ = make_encoder(encoder, data.dataset.shape)
    bank = open_bank(data, encoder, config, cache=cache, device=device)
    return embedded(data, bank, progress=progress)


def make_encoder(encoder: Backbone, shape: tuple[int, ...], *, seed: int = 0) -> tuple[Backbone, str | None]:
    """A copy of a network, ready to embed images of this shape (height, width, channels).

    Returns:
        The network with its weights, frozen, and where these come from; None if they are random.
    """
    if len(shape) != 3:
        raise UserError(f"a bank needs images, not examples of shape {shape}; train on vectors without one")
    encoder = copy.deepcopy(encoder)
    if isinstance(encoder, Timm) and encoder.input_size is None:
        encoder.input_size = input_size(min(shape[:2]))
    with torch.random.fork_rng([]):  # a network with random weights is the same in every process and every run
        torch.manual_seed(seed)
        set_up(encoder, (shape[2], shape[0], shape[1]))
    source = encoder.load_pretrained()
    return encoder.requires_grad_(False), source


def open_bank(
    data: SSLData,
    encoder: Backbone,
    config: BankConfig | None = None,
    *,
    cache: str | None = None,
    device: str = "auto",
    seed: int = 0,
) -> Bank:
    """The bank of the data, with whatever is embedded already.

    Args:
        data: images.
        encoder: a network from `make_encoder`.
        config: which views; see BankConfig.
        cache: folder of the bank; see the option of `load_ssl`.
        device: where the encoder computes.
        seed: seed of the augmentation.
    """
    dataset = data.dataset
    expected = encoder.preprocessing()
    mean = expected.mean if expected else dataset.mean
    std = expected.std if expected else dataset.std
    views = ImageViews(mean, std, dataset.flip, dataset.augment)
    return Bank(dataset, encoder, views, config, seed=seed, cache=cache, device=resolve_device(device))


def embedded(data: SSLData, bank: Bank, *, progress: bool = True) -> SSLData:
    """The data as the views of their bank; what is missing is embedded now, shared among the processes of a run."""
    state = PartialState(cpu=bank.device.type == "cpu")
    began = time.perf_counter()
    bank.build(rank=state.process_index, world=state.num_processes, progress=progress and state.is_main_process)
    state.wait_for_everyone()
    bank.ensure(data.split.labeled)
    bank.seconds = time.perf_counter() - began
    return replace(data, dataset=bank.dataset())


def input_size(side: int) -> int:
    """The side to which images are resized for a frozen network: what a laptop embeds at a few hundred per second."""
    return SMALL if side <= SMALL else min(side, MEDIUM)


def head(config: BankConfig | None = None) -> Backbone:
    """The layers to train on a bank, below the linear classifier."""
    return MLP((256,)) if config is not None and config.head == "mlp" else Identity()
