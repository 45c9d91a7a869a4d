"""Frozen networks through ONNX Runtime, which on CPUs is several times as fast as PyTorch (results/embed.md).

Only the network itself is replaced: resizing, normalization and whatever stands around it stay in PyTorch. It is
exported once per input size into the cache folder, under a checksum of its layers and weights.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..data.cache import cache_folder
from ..errors import UserError
from ..models import Timm
from ..utils.io import write_atomic

EXPORT_SECONDS = 15.0  # about what an export takes
WORTH = 3  # times as long the work must take for an export to pay
BATCH = 16  # images at a time
SIMILAR = 1 - 1e-5  # smallest cosine between features of both engines
Engine = Literal["auto", "torch", "onnx"]
ENGINES = ("auto", "torch", "onnx")


class CannotExport(Exception):  # noqa: N818 - a reason to stay with PyTorch, not a fault
    """Why a network runs in PyTorch."""


class OnnxNetwork(nn.Module):
    """An exported network with the interface of the module that it was: images `(batch, …)` to features."""

    def __init__(self, file: Path | bytes, threads: int) -> None:
        super().__init__()
        self.file = file
        self.threads = threads
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        content = self.file if isinstance(self.file, bytes) else self.file.read_bytes()
        return {**self.__dict__, "file": content, "_session": None}  # another machine opens its own

    @property
    def session(self) -> Any:
        """The opened network. Its threads sleep while they wait, because others make the next views."""
        if self._session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            options.inter_op_num_threads = 1
            options.log_severity_level = 3
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            source = self.file if isinstance(self.file, bytes) else str(self.file)
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return self._session

    def forward(self, x: Tensor) -> Tensor:
        """The features, a few images at a time, so that they stay in the processor's cache."""
        session = self.session
        name = session.get_inputs()[0].name
        pieces = (np.ascontiguousarray(piece.detach().float().numpy()) for piece in torch.split(x, BATCH))
        return torch.cat([torch.from_numpy(session.run(None, {name: piece})[0]) for piece in pieces])


def choose_engine(
    encoder: nn.Module, engine: Engine, *, device: torch.device, seconds: float = 0.0, cache: str | None = None
) -> nn.Module | None:
    """The network in ONNX Runtime if that is asked for or, for "auto", if it pays; None to stay with PyTorch.

    Args:
        encoder: a frozen network.
        engine: "auto", "torch" or "onnx".
        device: where it computes; ONNX Runtime is used on CPUs only.
        seconds: the work that lies ahead in PyTorch. An export must be worth its time, unless it is in the cache.
        cache: the cache folder; see `load_ssl`.
    """
    if engine == "onnx" and device.type != "cpu":
        raise UserError(f"engine onnx computes on the CPU, not on {device}; use engine auto, or device cpu")
    if engine == "torch" or device.type != "cpu" or (engine == "auto" and not timm_parts(encoder)):
        return None
    try:
        return onnx_encoder(encoder, cache=cache, only_cached=engine == "auto" and seconds < WORTH * EXPORT_SECONDS)
    except CannotExport as reason:
        if engine == "onnx":
            raise UserError(f"engine onnx cannot be used: {reason}; use engine torch") from reason
        warnings.warn(f"the frozen network runs in PyTorch, which is slower on CPUs: {reason}", stacklevel=2)
        return None


def onnx_encoder(encoder: nn.Module, *, cache: str | None = None, only_cached: bool = False) -> nn.Module | None:
    """A copy of a frozen network on the CPU whose timm parts run in ONNX Runtime.

    Args:
        encoder: a network from `make_encoder`, or a module that contains one.
        cache: the cache folder; see `load_ssl`.
        only_cached: return None where a part was never exported on this machine.

    Raises:
        CannotExport: there is no timm network in it, or it cannot be exported.
    """
    parts = timm_parts(encoder)
    if not parts:
        raise CannotExport("it contains no network of timm")
    folder = cache_folder(cache) / "engines"
    paths = [folder / f"{_checksum(part)}.onnx" for part in parts]
    if only_cached and not all(path.is_file() for path in paths):
        return None
    for part, path in zip(parts, paths, strict=True):
        if not path.is_file():
            _export(part, path)
    before = [part.net for part in parts]
    try:  # exchanged before the copy, so that no weights are copied
        for part, path in zip(parts, paths, strict=True):
            part.net = OnnxNetwork(path.read_bytes(), torch.get_num_threads())
        return copy.deepcopy(encoder).eval()
    finally:
        for part, network in zip(parts, before, strict=True):
            part.net = network


def timm_parts(encoder: nn.Module) -> list[Timm]:
    """The timm networks in a module."""
    return [module for module in encoder.modules() if isinstance(module, Timm)]


def _checksum(part: Timm) -> str:
    """Of everything that the exported file depends on."""
    digest = hashlib.blake2b(repr([torch.__version__, part.side, part.net]).encode(), digest_size=16)
    for tensor in part.net.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _export(part: Timm, path: Path) -> None:
    """Write the network for images of the size it is fed, and any number of them."""
    network = copy.deepcopy(part.net).cpu().eval()
    channels = 3 if part.gray else part.channels
    example = torch.zeros(2, channels, *part.side)
    batch = torch.export.Dim.AUTO
    try:
        with quiet(), torch.no_grad():
            exported: Any = torch.onnx.export(network, (example,), dynamo=True, dynamic_shapes=({0: batch},))
    except Exception as fault:  # the exporter's errors have no common base class
        reason = next(iter(str(fault).splitlines()), type(fault).__name__)
        raise CannotExport(f"{part.name} cannot be exported: {reason}") from fault
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda temporary: _save(exported, network, example, temporary))
    except OSError as fault:
        raise CannotExport(f"{path.parent} cannot be written ({fault.strerror})") from fault


@torch.no_grad()
def _save(exported: Any, network: nn.Module, example: Tensor, path: Path) -> None:
    """Write an exported network, unless its features are not those of the network it came from."""
    exported.save(str(path), external_data=False)
    images = torch.randn(3, *example.shape[1:], generator=torch.Generator().manual_seed(0))
    answers = OnnxNetwork(path, torch.get_num_threads())(images)
    similar = float(torch.cosine_similarity(network(images).double(), answers.double()).min())
    if not similar > SIMILAR:
        raise CannotExport(f"its features differ in ONNX Runtime (cosine {similar:.6f})")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the exporters' notes on their own progress."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
