"""Export of a trained classifier to one file that runs without vcc_infuse: ONNX, or PyTorch's exported program.

The graph takes raw images of any size and returns probabilities, labels and calibrated confidence; that of a model on a
bank also how far an image is from the labeled ones, and the p-value of that.
"""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..bank.onnx_engine import quiet, timm_parts
from ..errors import UserError, check_choice
from ..models.backbone import Embedded
from ..pool_audit import KnownRows
from ..pool_audit.arrays import LEAST
from ..pool_audit.unknown import TIE
from ..types import Outputs
from ..utils.device import unit_features
from ..utils.io import write_atomic, write_text
from ..utils.manifest import describe
from .predictor import Predictor

__all__ = ["ExportedClassifier", "export_model"]

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
OUTPUTS = ["probabilities", "label", "confidence", "unknown", "unknown_p"]


class KnownImages(nn.Module):
    """`KnownRows.judge` as a graph: how far features (batch, width) are from the labeled images, and its p-value."""

    rows: Tensor
    means: Tensor
    own: Tensor

    def __init__(self, known: KnownRows, device: torch.device) -> None:
        super().__init__()
        self.neighbors = known.neighbors
        for name in ("rows", "means", "own"):
            self.register_buffer(name, torch.from_numpy(getattr(known, name)).float().to(device))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The distance to the labeled images, and how often one of them is as far from the others."""
        nearest = self.distances(features, self.rows).topk(self.neighbors, largest=False).values.mean(1)
        score = (nearest + self.distances(features, self.means).amin(1)) / 2
        as_far = (self.own >= score[:, None] - TIE).float().sum(1)
        return score, (1 + as_far) / (self.rows.shape[0] + 1)

    @staticmethod
    def distances(features: Tensor, others: Tensor) -> Tensor:
        """Between rows of unit length."""
        squared = 2 - 2 * (features @ others.T)
        return torch.where(squared < LEAST**2, 0, squared).sqrt()


class ExportedClassifier(nn.Module):
    """A predictor as a single module from raw examples to (probabilities, labels, confidence), perhaps with two more.

    Images are cropped around their center to the proportions of the training images and resized as Pillow does, to
    within one of 256 levels.

    Args:
        predictor: a trained classifier.

    Shapes:
        inputs: uint8 images (batch, height, width, channels) of any one size, with the channels of the training images;
            or float32 feature vectors (batch, length).
        outputs: probabilities (batch, classes), class numbers (batch,), calibrated confidence (batch,); of a model that
            was trained on a bank, also `unknown` and `unknown_p` (batch,), as `Predictor` has them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model = predictor.model
        self.calibrator = predictor.calibrator
        known = predictor.known if isinstance(self.model.backbone, Embedded) else None
        self.known = None if known is None else KnownImages(known, predictor.device)
        self.shape = predictor.shape
        self.unit_length = getattr(predictor.views, "slots", None) is not None
        self.register_buffer("mean", predictor.views.mean.to(predictor.device))
        self.register_buffer("std", predictor.views.std.to(predictor.device))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Probabilities, class numbers, calibrated confidence and perhaps distance and p-value of raw examples."""
        if len(self.shape) == 3:
            images = resize(inputs.permute(0, 3, 1, 2).float(), self.shape[0], self.shape[1])
            normalized = (images / 255 - self.mean[:, None, None]) / self.std[:, None, None]
        elif self.unit_length:
            normalized = unit_features(inputs, self.mean, self.std)
        else:
            normalized = (inputs - self.mean) / self.std
        if self.known is None:
            return self.answers(self.model(normalized))
        backbone: Any = self.model.backbone
        features = backbone.embed(normalized)
        layers = backbone.layers(features)
        return *self.answers(Outputs(self.model.head(layers), layers)), *self.known(features)

    def answers(self, outputs: Outputs) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, class numbers and calibrated confidence."""
        probs = outputs.logits.float().softmax(1)
        return probs, probs.argmax(1), self.calibrator.predict(outputs).float()


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """The largest centered crop of these proportions, resized with an antialiased bilinear filter.

    Rounded after each axis as Pillow does. Matrix products, because the resize operators of PyTorch and ONNX cannot
    begin between two pixels.
    """
    tall, wide = (torch.scalar_tensor(side, device=images.device) for side in images.shape[2:])
    part_tall = torch.minimum(tall, wide * height / width)
    part_wide = torch.minimum(wide, tall * width / height)
    across = resampling(images.shape[3], width, (wide - part_wide) / 2, part_wide)
    down = resampling(images.shape[2], height, (tall - part_tall) / 2, part_tall)
    images = torch.floor(images @ across.T + 0.5)
    return torch.floor(down @ images + 0.5)


def resampling(before: int, after: int, first: Tensor, length: Tensor) -> Tensor:
    """Weights of the triangle filter on the part [first, first + length] of an axis, of shape (after, before)."""
    scale = length / after
    centers = first + (torch.arange(after, device=first.device) + 0.5) * scale
    distances = torch.arange(before, device=first.device) + 0.5 - centers[:, None]
    weights = (1 - (distances / scale.clamp(min=1)).abs()).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def export_model(predictor: Predictor, path: str | Path, format: Literal["onnx", "torch"] | None = None) -> Path:
    """Write a predictor as one file; see `ExportedClassifier` for its inputs and outputs.

    Args:
        predictor: a trained classifier, from `Predictor.load` or `Trainer.predictor`.
        path: the file to write.
        format: "onnx", or "torch" for a program that `torch.export.load` reads; by default
            what the name of the file says (.onnx or .pt2).

    Returns:
        The path. The class names are stored as JSON: in the metadata of an ONNX model under "classes", in a PyTorch
        program as the extra file "classes.json". Runtimes do not notice a damaged weight, so that a checksum is
        written beside the file, for `sha256sum -c model.onnx.sha256`.

    >>> export_model(Predictor.load("runs/x"), "model.onnx")  # doctest: +SKIP
    """
    path = Path(path)
    kind = path_format(path) if format is None else check_choice("format", format, tuple(FORMATS))
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file")
    with quiet():
        program = exported_program(predictor)
        write = write_onnx if kind == "onnx" else write_torch
        write_atomic(path, lambda temporary: write(program, predictor, temporary))
    write_text(path.with_name(f"{path.name}.sha256"), f"{describe(path)['sha256']}  {path.name}\n")
    return path


def path_format(path: Path) -> str:
    """The format that the name of a file shows."""
    for name, suffix in FORMATS.items():
        if path.suffix == suffix:
            return name
    raise UserError(f"{path}: the name shows no format; end it in .onnx or .pt2, or set format to onnx or torch")


def exported_program(predictor: Predictor) -> ExportedProgram:
    """The graph, for any batch size and any image size."""
    module = copy.deepcopy(ExportedClassifier(predictor)).eval().requires_grad_(False)
    images = len(predictor.shape) == 3
    for network in timm_parts(module) if images else ():
        network.resize_by_products(*predictor.shape[:2])
    # Not the shape of the training images, so that no size is taken for a constant; two, because one always is.
    shape = (37, 53, predictor.shape[2]) if images else predictor.shape
    dtype = torch.uint8 if images else torch.float32
    example = torch.zeros(2, *shape, dtype=dtype, device=predictor.device)
    axes = dict.fromkeys(range(3 if images else 1), Dim.AUTO)
    with torch.no_grad():
        return torch.export.export(module, (example,), dynamic_shapes=(axes,))


def write_torch(program: ExportedProgram, predictor: Predictor, path: Path) -> None:
    """As `torch.export.load` reads it."""
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"classes.json": json.dumps(predictor.classes)})
    path.write_bytes(content.getbuffer())


def write_onnx(program: ExportedProgram, predictor: Predictor, path: Path) -> None:
    """As any ONNX runtime reads it, with the weights inside."""
    images = len(predictor.shape) == 3
    names = ["images" if images else "features"]
    outputs = OUTPUTS[: len(program.graph_signature.user_outputs)]
    exported: Any = torch.onnx.export(program, dynamo=True, input_names=names, output_names=outputs, verbose=False)
    graph = exported.model.graph
    axes = ["batch", "height", "width"] if images else ["batch"]
    readable = dict(zip(map(str, graph.inputs[0].shape), axes, strict=False))
    for value in (*graph.inputs, *graph.outputs):
        for place, size in enumerate(value.shape):
            value.shape[place] = readable.get(str(size), size)
    exported.model.metadata_props["classes"] = json.dumps(predictor.classes, ensure_ascii=False)
    exported.save(str(path), external_data=False)


def largest_difference(predictor: Predictor, path: str | Path) -> float:
    """The largest difference of an exported file from its predictor, in any answer on random examples."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, *predictor.shape)
    if len(predictor.shape) == 3:
        inputs = torch.randint(256, shape, generator=generator).to(torch.uint8)
    else:
        noise = torch.randn(shape, generator=generator)
        inputs = predictor.views.mean.cpu() + predictor.views.std.cpu() * noise
    expected = predictor.predict(inputs.numpy())
    if path_format(Path(path)) == "torch":
        outputs = torch.export.load(path).module()(inputs.to(predictor.device))
        probs, _, confidence, *further = (output.cpu() for output in outputs)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        answers = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        probs, _, confidence, *further = map(torch.from_numpy, answers)
    pairs = [(probs, expected.probs), (confidence, expected.calibrated)]
    pairs += [(further[0], expected.unknown)] if further else []  # not p, which jumps by 1 / labels
    return max(float((answer - reference).abs().max()) for answer, reference in pairs)
