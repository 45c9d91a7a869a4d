"""`vcc-infuse label PHOTOS`: a page on which a person labels photos while a model learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..label import LabelOptions, Network, PoolSource, serve
from ..utils.io import read_yaml
from .parser import Parser, add_device, add_limits, integer, limits_of, number

ABOUT = """Label photos in the browser while a model learns from the labels and suggests more. The page is served on
this machine only. Everything is kept in a folder beside the photos; the command can be ended and started again at any
time."""


def run(argv: Sequence[str]) -> None:
    """Serve the page until Ctrl-C."""
    parser = Parser("vcc-infuse label", ABOUT)
    parser.add_argument("photos", metavar="PHOTOS", help="a folder or zip of images, or the folder of a finished run")
    parser.add_argument("--label_file", help="labels to begin with: CSV, TSV, JSON lines, Label Studio or COCO")
    parser.add_argument("--out", help="folder of the session (beside the photos)")
    parser.add_argument("--port", type=integer(), default=0, help="of the page (a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--label-studio", action="store_true", help="serve Label Studio's ML backend, too")
    parser.add_argument("--most_wrong", type=number(0, 1), default=0.05, metavar="SHARE",
                        help="confirm a class as a whole if at most this share of it is wrong (0.05)")  # fmt: skip
    parser.add_argument("--model.name", default=Network.name, help=f"a network of timm ({Network.name})")
    parser.add_argument("--model.weights", default="auto", metavar="WEIGHTS", help="as for `embed` (auto)")
    parser.add_argument("--model.input_size", type=integer(), metavar="SIDE", help="side of its images")
    parser.add_argument("--follow-links", action="store_true", help="read files outside of PHOTOS that links point to")
    parser.add_argument("--seed", type=integer(0), default=0, help="of everything that is drawn (0)")
    add_device(parser)
    add_limits(parser)
    options = parser.read(argv)
    given = vars(options)
    photos, label_file = _photos_of(options.photos, options.label_file)
    network = Network(
        given["model.name"], given["model.weights"], given["model.input_size"], options.device, options.engine
    )
    session = LabelOptions(
        out=options.out, label_file=label_file, network=network,
        seed=options.seed, most_wrong=options.most_wrong, label_studio=options.label_studio,
    )  # fmt: skip
    source = PoolSource(photos, limits_of(options), options.follow_links)
    serve(source, session, port=options.port, browser=not options.no_browser)


def _photos_of(path: str, label_file: str | None) -> tuple[str, str | None]:
    """The photos and labels of a finished run; the path itself if it is none."""
    config = Path(path) / "config.yaml"
    if not config.is_file():
        return path, label_file
    stored = read_yaml(config)
    photos = str(stored.get("data"))
    if not Path(photos).exists():
        raise UserError(
            f"{path} was trained on {photos}, which is not a folder or zip on this machine; give the photos"
        )
    before = stored.get("label_file")
    return photos, label_file or (str(before) if before else None)
