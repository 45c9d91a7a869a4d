"""`vcc-infuse train`: options in, a run folder out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

from ..run import prepare, resumed_config, start
from ..run_config import RunConfig, resolve
from .parser import TrainWords, read_train, read_words
from .tables import summary_table
from .train_help import help_text


def run(argv: Sequence[str]) -> None:
    """Train, then print the summary and the path of the run folder."""
    words = read_words(argv)
    if (text := help_text(words)) is not None:
        print(text)
        return
    asked = read_train(words)
    config = config_of(asked)
    if asked.print_config:
        with redirect_stdout(sys.stderr):  # what is said meanwhile is no part of the configuration
            complete = prepare(config).config if config.preset == "auto" else resolve(config, config.preset)
        print(complete.to_yaml(), end="")
        return
    result = start(config, resume=asked.resume is not None, force=asked.force, dry_run=asked.dry_run)
    if result is not None and result.summary and result.folder:  # only the first of several processes has a summary
        say_result(result.summary, result.folder)


def config_of(asked: TrainWords) -> RunConfig:
    """The run that was asked for: the one to continue, or a new one, in a folder that is free if none is named."""
    if asked.resume is not None:
        return resumed_config(asked.resume, asked.options, force=asked.force, trust_code=asked.trust_code)
    folder = asked.options.get("out") or free_folder(asked.options)
    return RunConfig.from_options({**asked.options, "out": folder})


def free_folder(options: Mapping[str, Any]) -> str:
    """runs/<data>-<algorithm>-<number> with the first number that is free."""
    method = str((options.get("algorithm") or {}).get("class_path", "FixMatch")).rpartition(".")[2]
    stem = f"runs/{Path(options.get('data', 'digits')).stem}-{method}"
    return next(folder for folder in (f"{stem}-{number}" for number in count(1)) if not Path(folder).exists())


def say_result(summary: dict[str, Any], folder: Path) -> None:
    """Print the summary, how it compares with a linear probe, and where everything is."""
    print(summary_table(summary))
    probe = summary.get("error_probe")
    error = summary.get("error")
    if probe is not None and error is not None and summary["steps"]:
        print(f"a linear probe on the same features: {100 * probe:.2f} % error")
        if error > probe:
            print("this run ends above its probe: try more labels, more --steps, or --algorithm LinearProbe")
    print(f"run folder: {folder}")
    if (page := folder / "report.html").is_file():
        print(f"report: {page}")
