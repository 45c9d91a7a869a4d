"""Do int8 or OpenVINO embed faster than ONNX Runtime in float32, and are the features still the same?

    OMP_NUM_THREADS=1 python -m benchmarks quantized --data stl10.zip --out results/quantized

Variants take turns on real images; OpenVINO is measured if it is installed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vcc_infuse import Timm
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.onnx_engine import BATCH, OnnxNetwork, onnx_encoder, quiet
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.ssl_data import load
from vcc_infuse.utils.io import write_text

from .engines import Work, in_turns

IMAGES = 2 * BATCH
CALIBRATION = 4 * BATCH
Network = Callable[[np.ndarray], np.ndarray]


def networks(file: Path, batches: Sequence[np.ndarray]) -> dict[str, Network]:
    """The exported network as it is, in int8 both ways, and in OpenVINO if it is there."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    def sibling(name: str) -> Path:
        return file.with_name(f"{name}.onnx")

    with quiet():
        quant_pre_process(file, sibling("prepared"))
        # Of convolutions only unsigned weights can be computed in int8.
        quantize_dynamic(sibling("prepared"), sibling("dynamic"), weight_type=QuantType.QUInt8)
        options = {"quant_format": QuantFormat.QDQ, "per_channel": True}
        quantize_static(sibling("prepared"), sibling("static"), _Batches(file, batches), **options)
    found = {"ONNX Runtime, float32": _run(file)}
    found |= {f"… int8, {name}": _run(sibling(name)) for name in ("dynamic", "static")}
    try:
        import openvino
    except ImportError:
        return found
    for name, precision in (("float32", "f32"), ("bfloat16", "bf16")):
        hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision}
        found[f"OpenVINO, {name}"] = _compiled(openvino.Core().compile_model(str(file), "CPU", hints))
    return found


def _compiled(model: Any) -> Network:
    return lambda x: np.asarray(model(x)[0])


def _run(file: Path) -> Network:
    network = OnnxNetwork(file, 1)
    return lambda x: network(torch.from_numpy(x)).numpy()


class _Batches:
    """What onnxruntime calls a calibration data reader."""

    def __init__(self, file: Path, batches: Sequence[np.ndarray]) -> None:
        name = OnnxNetwork(file, 1).session.get_inputs()[0].name
        self.rest: Iterator[dict[str, np.ndarray]] = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def main(argv: Sequence[str]) -> None:
    """Measure, and write the page."""
    parser = Parser("python -m benchmarks quantized", "Compare int8 and OpenVINO with ONNX Runtime in float32.")
    parser.add_argument("--data", required=True, help="images to calibrate and compare on")
    parser.add_argument("--model", default="tf_efficientnet_lite0", help="timm's name of the network (%(default)s)")
    parser.add_argument("--size", type=integer(16), default=224, help="side of the network's input (224)")
    parser.add_argument("--rounds", type=integer(), default=5, help="turns of each (5)")
    parser.add_argument("--cache", help="cache folder")
    parser.add_argument("--out", default="results/quantized", help="writes OUT.md (results/quantized)")
    options = parser.read(argv)
    images = load(options.data, cache=options.cache, progress=True).train.x
    rows = np.random.default_rng(0).permutation(len(images))[: CALIBRATION + IMAGES]
    encoder, _ = make_encoder(Timm(options.model, "auto", options.size), images.shape[1:])
    x = prepared(encoder, np.asarray(images[np.sort(rows)]))
    with tempfile.TemporaryDirectory() as folder:
        onnx_encoder(encoder, cache=folder)
        file = next(Path(folder).rglob("*.onnx"))
        variants = networks(file, np.split(x[IMAGES:], CALIBRATION // BATCH))
        answers = {name: variant(x[:IMAGES]) for name, variant in variants.items()}
        works: dict[str, Work] = {name: partial(variant, x[:IMAGES]) for name, variant in variants.items()}
        seconds = in_turns(works, options.rounds)
    write_text(Path(f"{options.out}.md"), page(answers, seconds, f"python -m benchmarks quantized {' '.join(argv)}"))


@torch.no_grad()
def prepared(encoder: Any, images: np.ndarray) -> np.ndarray:
    """Images as the network itself sees them: normalized and resized."""
    expects = encoder.preprocessing()
    plain = ImageViews(expects.mean, expects.std)("plain", torch.from_numpy(images))
    side = (encoder.input_size, encoder.input_size)
    return torch.nn.functional.interpolate(plain, side, mode="bicubic", antialias=True).numpy()


def page(answers: dict[str, np.ndarray], seconds: dict[str, np.ndarray], command: str) -> str:
    """Speed and similarity of each, as Markdown."""
    first = next(iter(answers))
    lines = [
        "# int8 and OpenVINO for a frozen network",
        "",
        f"    OMP_NUM_THREADS=1 {command}",
        "",
        f"Bare forward of {IMAGES} images on one thread, median of interleaved rounds; cosine with the features of "
        f"{first}, the smallest and the mean. int8, static: calibrated on {CALIBRATION} other images, per channel.",
        "",
        "| engine | CPU ms per image | times as fast, CPU time | smallest cosine | mean cosine |",
        "|---|---|---|---|---|",
    ]
    for name, features in answers.items():
        ratio = np.median(seconds[first][:, 0] / seconds[name][:, 0])
        products = (features * answers[first]).sum(1)
        cosine = products / np.linalg.norm(features, axis=1) / np.linalg.norm(answers[first], axis=1)
        time = 1000 * np.median(seconds[name][:, 0]) / IMAGES
        lines.append(f"| {name} | {time:.1f} | {ratio:.2f} | {cosine.min():.5f} | {cosine.mean():.5f} |")
    return "\n".join(lines) + "\n"
