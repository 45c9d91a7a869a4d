"""Digests of the final weights of short runs over every algorithm, plug-in, calibrator and selector.

A refactoring must not change them: record them before, compare them after.

    python tools/weights_digest.py record.json                       one process
    torchrun --nproc_per_node 2 tools/weights_digest.py two.json     two processes
    python tools/weights_digest.py --compare record.json now.json
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.every import RUN, cases, few_digits

from vcc_infuse import (
    DARP,
    INFUSE,
    MMCE,
    RETRIEVE,
    VCC,
    Adsh,
    FixMatch,
    FlexMatch,
    FreeMatch,
    GradMatch,
    RobustINFUSE,
    RobustVCC,
    SimMatch,
    SmallConv,
    SoftMatch,
    Trainer,
    WideResNet,
)

MEDIUM: dict[str, Any] = dict(steps=60, eval_every=15, batch_size=16, unlabeled_ratio=3)


def specs() -> dict[str, dict[str, Any]]:
    """Name → case and options of each run: every exported class in six steps, and longer runs with defaults."""
    fixmatch = FixMatch(threshold=0.3)
    medium = {
        "default-FixMatch": dict(case=(FixMatch(), None, None)),
        "default-FlexMatch-VCC-RobustINFUSE": dict(case=(FlexMatch(), VCC(), RobustINFUSE(keep=0.4))),
        "default-SimMatch": dict(case=(SimMatch(), None, None)),
        "default-Adsh": dict(case=(Adsh(), None, None)),
        "default-FreeMatch-RobustVCC": dict(case=(FreeMatch(), RobustVCC(), None)),
        "default-SoftMatch-MMCE": dict(case=(SoftMatch(), MMCE(), None)),
        "joint_bn-FixMatch": dict(case=(FixMatch(), None, None), joint_bn=True),
        "wrn-FlexMatch-VCC": dict(case=(FlexMatch(), VCC(), None), model=WideResNet(10, 1), steps=20),
        "robust-vcc-reconstruction": dict(case=(fixmatch, RobustVCC(inference="reconstruction", match="none"), None)),
        "infuse-best": dict(case=(fixmatch, None, INFUSE(keep=0.4, every=3))),
        "infuse-redraw": dict(case=(fixmatch, None, RobustINFUSE(keep=0.4, resample_each_pass=True, every=12))),
        "retrieve-default": dict(case=(fixmatch, None, RETRIEVE(keep=0.4, every=6))),
        "gradmatch-default": dict(case=(fixmatch, None, GradMatch(keep=0.4, every=6))),
        "darp-default": dict(case=(DARP(start_fraction=0.5), None, None)),
    }
    return {name: dict(case=case) for name, case in cases().items()} | {
        name: {**MEDIUM, **options} for name, options in medium.items()
    }


def run(folder: Path, case: Any, model: Any = None, **options: Any) -> dict[str, str] | None:
    """Train one case and digest what it saved; None on processes that save nothing."""
    torch.manual_seed(0)
    options, selector = {**RUN, **options, "report": False, "seed": 3}, case[2]
    steps = round(options["steps"] / selector.keep) if selector else options["steps"]
    trainer = Trainer(model or SmallConv(4), *copy.deepcopy(case), **{**options, "steps": steps, "out": str(folder)})
    trainer.fit(few_digits(600))
    return digests(folder / "model.safetensors") if trainer.state_.main else None


def digests(path: Path) -> dict[str, str]:
    """SHA-256 of the file, of the network's tensors, and of all tensors whatever their names."""
    tensors = load_file(path)
    model, values = hashlib.sha256(), hashlib.sha256()
    for name in sorted(name for name in tensors if name.startswith("model.")):
        model.update(name.encode() + str(tensors[name].dtype).encode() + tensors[name].contiguous().numpy().tobytes())
    stored = [str(tuple(v.shape)).encode() + v.numpy().tobytes() for k, v in tensors.items() if k != "direction"]
    for value in sorted(stored):
        values.update(value)
    file = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"file": file, "model": model.hexdigest(), "values": values.hexdigest()}


def compare(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> int:
    """Print what differs; returns the number of runs whose network differs."""
    different = 0
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            print(f"{name}: only {'after' if old is None else 'before'}")
        elif changed := [kind for kind in ("model", "values", "file") if old[kind] != new[kind]]:
            different += "model" in changed
            print(f"{name}: {', '.join(changed)} differ")
    print(f"{len(before.keys() & after.keys())} runs compared, {different} with other weights")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="compare two records instead of making one")
    parser.add_argument("files", nargs="+", type=Path, help="the record to write, or two to compare")
    options = parser.parse_args()
    if options.compare:
        return bool(compare(*(json.loads(path.read_text()) for path in options.files)))
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in specs().items():
            if (result := run(Path(folder) / name, **spec)) is not None:
                found[name] = result
    if found:
        options.files[0].write_text(json.dumps(found, indent=1) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
