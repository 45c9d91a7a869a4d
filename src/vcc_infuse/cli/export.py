"""`vcc-infuse export RUN -o model.onnx`: a trained run as one file that needs no vcc_infuse."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..inference.export import FORMATS, export_model, largest_difference, path_format
from ..inference.predictor import Predictor
from .finished_run import add_common, check_output, run_parser
from .parser import one_of

LARGE = 1e-3
ABOUT = """Write a trained run as one file. It takes raw images (uint8, N×H×W×C, any size) or feature vectors, and
returns probabilities, label (a class number) and calibrated confidence. The class names are in its metadata."""


def run(argv: Sequence[str]) -> int:
    """Write the file and compare it with the run; the status is 1 if they differ."""
    parser = run_parser("export", ABOUT)
    parser.add_argument("--format", **one_of(*FORMATS), help="onnx, or torch for torch.export (by the file's name)")
    add_common(parser, "file to write, .onnx or .pt2 (RUN/model.onnx)", images=False)
    options = parser.read(argv)
    suffix = FORMATS[options.format or "onnx"]
    path = Path(options.output or Path(options.run) / f"model{suffix}")
    if options.format and path.suffix != suffix:
        raise UserError(f"--format {options.format} and -o {path} do not fit; end the name in {suffix}")
    path_format(path)
    check_output(str(path), options.overwrite, options.run)
    predictor = Predictor.load(options.run, options.device, options.trust_code)
    export_model(predictor, path)
    difference = largest_difference(predictor, path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, differs from the run by at most {difference:.1e}")
    if difference > LARGE:
        print(f"vcc-infuse: {path} does not give the probabilities of the run; please report this", file=sys.stderr)
    return int(difference > LARGE)
