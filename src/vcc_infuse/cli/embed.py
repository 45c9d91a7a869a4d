"""`vcc-infuse embed --data IMAGES`: a pretrained network embeds every image once, in several views."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import cast

from accelerate import PartialState

from ..bank.bank import Bank, BankConfig
from ..bank.earlier import list_banks, prune
from ..bank.embed import input_side, make_encoder, open_bank, over_ray
from ..bank.sharding import IMAGES, embed_shards
from ..data.cache import cache_folder
from ..data.split import from_given_labels
from ..data.ssl_data import SSLData, load, network_size
from ..errors import UserError, option_prefix
from ..inference.predictor import Predictor
from ..inference.shards import network_of_run
from ..models import Concat, Timm
from ..models.concat import network_class
from ..training.interrupt import Interrupted
from ..utils.device import resolve_device
from ..utils.progress import duration
from .parser import Parser, add_device, add_limits, integer, limits_of, one_of

OF_A_RUN = ("--model.name", "--model.weights", "--model.input_size", "--size", "--mode", "--flip", "--augment")
ABOUT = """Embed every image by a frozen pretrained network, in one plain, a few weak and several strong views. Training
with --preset frozen and the same options finds the bank in the cache and takes seconds. An interrupted command
continues where it was. After photos were added, moved or removed, only new ones are embedded."""
PROCESSES = """Several processes: `torchrun --nproc_per_node 2 -m vcc_infuse embed ...` shares the work; --backend ray
spreads it over the cluster of RAY_ADDRESS, or over the cores of this machine."""


def run(argv: Sequence[str]) -> None:
    """Build the bank and print where it is, its size and the rate."""
    options = read(argv)
    if options.prune is not None:
        remove_unused(options)
        return
    if options.shards is not None:
        write_shards(options)
        return
    device = resolve_device(options.device)
    state = PartialState(cpu=device.type == "cpu")
    if options.backend == "ray" and state.num_processes > 1:
        raise UserError("--backend ray starts processes of its own; run it without torchrun")
    bank = make_bank(options)
    missing = bank.missing()
    if state.is_main_process:
        announce(bank, missing, state.num_processes)
    state.wait_for_everyone()
    began = time.perf_counter()
    try:
        if options.backend == "ray":
            bank.build(run=over_ray(bank, options.workers))
        else:
            bank.build(rank=state.process_index, world=state.num_processes, progress=state.is_main_process)
    except KeyboardInterrupt as stop:
        raise Interrupted("interrupted; finished chunks are kept, and the same command continues", 2) from stop
    state.wait_for_everyone()
    if state.is_main_process:
        finish(bank, missing, time.perf_counter() - began)
    state.destroy_process_group()


def read(argv: Sequence[str]) -> Namespace:
    """The options, checked."""
    parser = Parser("vcc-infuse embed", ABOUT, PROCESSES)
    pruning = any(word.partition("=")[0] == "--prune" for word in argv)
    parser.add_argument("--data", required=not pruning, help="a named source, or a folder or zip of images; with "
                        "--shards also .tar and .parquet files, patterns, and addresses such as s3://…")  # fmt: skip
    parser.add_argument("--shards", metavar="BANK", help="write a sharded bank to this folder, not to the cache: of "
                        "any number of images, by default in their plain view; see docs/cluster.md")  # fmt: skip
    parser.add_argument("--like", metavar="RUN", help="with --shards: network, size, colors and views of a finished "
                        "run with --preset frozen")  # fmt: skip
    parser.add_argument("--shard_images", type=integer(), default=IMAGES, metavar="N",
                        help="images of a folder or zip that make one shard (%(default)s)")  # fmt: skip
    parser.add_argument("--root", help="folder with the files of a named source")
    parser.add_argument("--download", action="store_true", help="download missing files of a named source")
    parser.add_argument("--size", type=integer(), help="resize images to size×size when they are decoded (to the "
                        "network's input, if their sizes differ or are larger)")  # fmt: skip
    parser.add_argument("--mode", **one_of("auto", "rgb", "gray"), default="auto", help="color mode (auto)")
    parser.add_argument("--intensity", **one_of("auto", "full", "percentile"), default="auto",
                        help="which values of 16-bit and float images become black and white (auto)")  # fmt: skip
    parser.add_argument("--label_file", help="table with the labels of images in any folders")
    parser.add_argument("--flip", **one_of("true", "false"), help="whether a mirrored image keeps its class")
    parser.add_argument("--augment", default="natural", help="how weak and strong views are made; see docs/augment.md")
    parser.add_argument("--model.name", default="tf_efficientnet_lite0", help="a network of timm (%(default)s)")
    parser.add_argument("--model.weights", default="auto", metavar="WEIGHTS",
                        help="auto, timm, a torchvision name, a file, or none for random weights (auto)")  # fmt: skip
    parser.add_argument("--model.input_size", type=side, metavar="SIDE",
                        help="side of the views that the network is shown (that of its training)")  # fmt: skip
    parser.add_argument("--bank.weak", type=integer(), metavar="N", help="weak views per image (2; 0 in shards)")
    parser.add_argument("--bank.strong", type=integer(), metavar="N", help="strong views per image (4; 0 in shards)")
    parser.add_argument("--bank.lazy", action="store_true",
                        help="only the plain views now, the others when a selector keeps an image")  # fmt: skip
    parser.add_argument("--bank.batch_size", type=integer(), metavar="N",
                        help="images per forward; the fastest is measured if not given")  # fmt: skip
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of the augmentation (0)")
    parser.add_argument("--cache", help="folder of the bank and of decoded images")
    add_device(parser)
    add_limits(parser)
    parser.add_argument("--prune", type=integer(0), metavar="DAYS",
                        help="embed nothing; remove the banks that were not opened for this many days")  # fmt: skip
    parser.add_argument("--backend", **one_of("here", "ray"), default="here", help="where to compute (here)")
    parser.add_argument("--workers", type=integer(), help="processes of a local Ray cluster (all cores); with --shards "
                        "also without Ray (only this one)")  # fmt: skip
    options = parser.read(argv)
    given = [word.partition("=")[0] for word in argv]
    for name in OF_A_RUN if options.like is not None else ():
        if name in given:
            raise UserError(f"--like takes {name} from {options.like}; leave {name} out")
    if options.like is not None and options.shards is None:
        raise UserError("--like is for --shards; `vcc-infuse train --config RUN/config.yaml` makes a bank of its own")
    return options


def side(text: str) -> int | str:
    """The `type` of an option that takes a number of pixels, or one per network as in 224+260."""
    return text if "+" in text else integer()(text)


def network_of(options: Namespace) -> Timm | Concat:
    """The network that the options name, without its weights."""
    arguments = {name: vars(options)[f"model.{name}"] for name in ("name", "weights", "input_size")}
    with option_prefix("model"):
        return cast(Timm | Concat, network_class(Timm, arguments)(**arguments))


def write_shards(options: Namespace) -> None:
    """Embed into a folder of shards and print what it holds."""
    for name in ("root", "label_file", "bank.lazy", "bank.batch_size", "download"):
        if vars(options)[name]:
            raise UserError(f"--{name} has no meaning with --shards; leave it out")
    began = time.perf_counter()
    network = network_of(options) if options.like is None else network_of_run(Predictor.load(options.like, "cpu"))
    try:
        shards = embed_shards(
            options.data, options.shards, network, size=options.size,
            mode="gray" if options.mode == "gray" else "rgb", weak=vars(options)["bank.weak"] or 0,
            strong=vars(options)["bank.strong"] or 0, augment=options.augment, flip=options.flip != "false",
            seed=options.seed, images=options.shard_images, backend=options.backend, workers=options.workers,
            device=options.device, engine=options.engine, limits=limits_of(options), cache=options.cache,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise Interrupted("interrupted; finished shards are kept, and the same command continues", 2) from stop
    megabytes = sum(part.bytes for part in shards.parts) / 1e6
    skipped = sum(part.skipped for part in shards.parts)
    left_out = f", {skipped:,} could not be read" if skipped else ""
    took = duration(time.perf_counter() - began)
    print(f"{len(shards):,} images in {len(shards.parts):,} shards of {megabytes:,.1f} MB{left_out}; {took}")


def make_bank(options: Namespace) -> Bank:
    """The bank, with what is embedded already."""
    chosen = vars(options)
    network = network_of(options)
    limits = limits_of(options)
    size = options.size
    if size is None:  # as `train` does
        with option_prefix("model"):
            side = input_side(network)
        size = network_size(options.data, side, cache=options.cache, limits=limits, progress=True)
    dataset = load(
        options.data, root=options.root, download=options.download, size=size, mode=options.mode,
        cache=options.cache, progress=True, label_file=options.label_file, intensity=options.intensity, limits=limits,
    )  # fmt: skip
    dataset = dataset.augmented(options.augment, None if options.flip is None else options.flip == "true")
    given = {name: chosen[f"bank.{name}"] for name in ("weak", "strong", "lazy", "batch_size")}
    config = BankConfig(**{name: value for name, value in given.items() if value is not None})
    data = SSLData(dataset, from_given_labels(dataset.train.y))
    with option_prefix("model"):
        encoder, _ = make_encoder(network, dataset.shape, seed=options.seed)
    return open_bank(
        data, encoder, config, cache=options.cache, device=options.device, engine=options.engine, seed=options.seed
    )


def announce(bank: Bank, missing: int, world: int) -> None:
    """Say how much there is to do, about how long it takes, and the space on the disk."""
    images = sum(images.shape[0] for images in bank.images.values())
    if not missing:
        taken = f"; {bank.taken:,} of them were taken over from an earlier bank" if bank.taken else ""
        print(f"all views of {images:,} images are embedded already{taken}")
        return
    seconds = missing * bank.seconds_per_view() / world
    print(f"{images:,} images, {bank.about()}: {missing:,} views to embed, about {duration(seconds)}", flush=True)
    if seconds > 3600:
        print("fewer views (--bank.weak, --bank.strong) or a smaller --model.input_size take less", file=sys.stderr)


def remove_unused(options: Namespace) -> None:
    """Remove the banks that nobody has opened lately, and say what is left."""
    cache = cache_folder(options.cache)
    removed = prune(cache, options.prune)
    left = list_banks(cache)
    sizes = [f"{len(banks):,} banks of {sum(bank.megabytes for bank in banks):,.1f} MB" for banks in (removed, left)]
    print(f"removed {sizes[0]} that were not opened for {options.prune} days; {sizes[1]} are left in {cache / 'banks'}")


def finish(bank: Bank, views: int, seconds: float) -> None:
    """Say where the bank is."""
    if left := bank.missing():
        raise UserError(f"{left:,} views are not embedded; run the same command again")
    if views:
        print(f"embedded {views:,} views in {duration(seconds)}: {views / seconds:,.0f} per second")
    print(f"bank: {bank.folder} ({bank.megabytes:,.1f} MB)")
    others = [other.megabytes for other in list_banks(bank.folder.parents[2]) if other.path != bank.folder]
    if others:
        count = "1 other bank takes" if len(others) == 1 else f"{len(others):,} other banks take"
        print(f"{count} {sum(others):,.1f} MB; --prune DAYS removes those that nobody opens")
