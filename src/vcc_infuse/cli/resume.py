"""`vcc-infuse train --resume`: the options of the run to continue, and what refuses to continue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs import checkpoint
from ..runs.fingerprint import changed_options, options_of, refuse
from ..runs.folder import RunFolder
from ..utils.io import read_json
from ..utils.manifest import settle
from .finished_run import read_config
from .options import TRUST_CODE, Words

# A continued run may find its data elsewhere, use another device and show something else.
RESUMABLE = ("resume", "root", "cache", "device", "progress", "force", TRUST_CODE)


def resume_words(words: Words, folder: str) -> Words:
    """The options of the run to continue."""
    config = Path(folder) / "config.yaml"
    if not config.is_file():
        raise UserError(f"--resume {folder}: there is no config.yaml; give the folder of an earlier run (its --out)")
    settle(Path(folder))
    finished = (Path(folder) / "summary.json").is_file()
    check_options(folder, "steps" in words, "force" in words)
    if finished:
        check_extension(words.get("steps"), folder, read_config(config).get("steps"))
    if other := [name for name in words if name not in (*RESUMABLE, *(["steps"] if finished else []))]:
        remedy = f"start a new run with --config {config}"
        raise UserError(f"--resume continues a run with its own options, so --{other[0]} cannot change; {remedy}")
    return {**words, "config": str(config), "out": folder}


def check_options(folder: str, extended: bool, force: bool) -> None:
    """Refuse options that were edited since the last checkpoint, before the data are loaded."""
    before = checkpoint.read_fingerprint(RunFolder(folder).checkpoints)
    if before and not force:
        now = options_of(read_config(Path(folder) / "config.yaml"))
        steps = {"steps": now.get("steps")} if extended or before["step"] == before.get("total") else {}
        remedy = "put it back, start a new run with --config, or add --force"
        refuse(changed_options({**before["config"], **steps}, now), folder, False, remedy)


def check_extension(steps: str | None, folder: str, before: Any) -> None:
    """Refuse to continue a finished run unless it gets more steps."""
    metrics = f"its metrics are in {folder}/summary.json"
    if steps is None:
        raise UserError(f"--resume {folder}: this run is finished; {metrics}; --steps N extends it to N steps")
    if not (read_json(Path(folder) / "summary.json") or {}).get("steps"):
        raise UserError(f"--resume {folder}: this run is finished, and its method has no steps to extend; {metrics}")
    if steps.isdecimal() and isinstance(before, int) and int(steps) <= before:
        raise UserError(f"--steps {steps} must be more than the {before} of {folder}: it is the new total")
    if not RunFolder(folder).has_checkpoint():
        raise UserError(f"--resume {folder}: there is no checkpoint to extend; start from it with --init {folder}")
