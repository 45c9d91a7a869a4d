"""`vcc-infuse train`: options in, a run folder out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

from ..run import prepare, resumed_config, start
from ..run_config import RunConfig, resolve
from .findings import findings, measured_on
from .parser import TrainWords, read_train, read_words

NAMES = {
    "error": "error",
    "error_probe": "error of a linear probe",
    "error_top5": "top-5 error",
    "error_balanced": "balanced error",
    "error_head": "head classes",
    "error_medium": "medium classes",
    "error_tail": "tail classes",
    "ece": "ECE",
    "mce": "MCE",
    "ace": "ACE",
    "nll": "NLL",
    "brier": "Brier score",
    "ece_calibrated": "ECE, calibrated",
    "mce_calibrated": "MCE, calibrated",
    "ace_calibrated": "ACE, calibrated",
    "pseudo_label_coverage": "pseudo-label coverage",
    "pseudo_label_precision": "pseudo-label precision",
    "trusted_and_wrong": "trusted and wrong, of the pool",
    "trusted_error": "wrong, of the trusted",
}
PROMISES = {"trusted_and_wrong": "max_pool_error", "trusted_error": "max_trusted_error"}


def run(argv: Sequence[str]) -> None:
    """Train, then print the summary and the path of the run folder."""
    words = read_words(argv)
    if any(name in ("help", "help_all") or name.endswith(".help") for name in words):
        from .train_help import help_text

        print(help_text(words))
        return
    asked = read_train(words)
    config = config_of(asked)
    if asked.print_config:
        with redirect_stdout(sys.stderr):  # messages are not part of the configuration
            complete = prepare(config).config if config.preset == "auto" else resolve(config, config.preset)
        print(complete.to_yaml(), end="")
        return
    result = start(config, resume=asked.resume is not None, force=asked.force, dry_run=asked.dry_run)
    if result is None or not result.summary or not result.folder:  # only the first of several processes has a summary
        return
    print(summary_table(result.summary))
    print(*findings(result.summary), sep="\n")
    probe = result.summary.get("error_probe")
    error = result.summary.get("error")
    if probe is not None and error is not None and result.summary["steps"]:
        print(f"a linear probe on the same features: {100 * probe:.2f} % error")
        if error > probe:
            print("this run ends above its probe: try more labels, more --steps, or --algorithm LinearProbe")
    print(f"run folder: {result.folder}")
    if (page := result.folder / "report.html").is_file():
        print(f"report: {page}")


def config_of(asked: TrainWords) -> RunConfig:
    """The run that was asked for: the one to continue, or a new one.

    If no folder is named, it is runs/<data>-<algorithm, if named>-<number> with the first number that is free.
    """
    options = asked.options
    if asked.resume is not None:
        return resumed_config(asked.resume, options, force=asked.force, trust_code=asked.trust_code)
    stem = f"runs/{Path(options.get('data', 'digits')).stem}"
    if method := (options.get("algorithm") or {}).get("class_path"):
        stem += f"-{method.rpartition('.')[2]}"
    free = (folder for folder in (f"{stem}-{number}" for number in count(1)) if not Path(folder).exists())
    return RunConfig.from_options({**options, "out": options.get("out") or next(free)})


def two_columns(pairs: Sequence[tuple[str, str]]) -> str:
    """Names on the left, values on the right, a rule above and below."""
    left = max(len(name) for name, _ in pairs)
    right = max(len(value) for _, value in pairs)
    rule = "─" * (left + right + 2)
    return "\n".join([rule, *(f"{name:<{left}}  {value:>{right}}" for name, value in pairs), rule])


def summary_table(summary: dict[str, Any]) -> str:
    """The main metrics, rates in percent; calibrated ones only where they differ; and what they are taken on."""
    kind = measured_on(summary) or "nothing: no test images"
    pairs = [("measured on", kind)] if "evaluated_on" in summary else []
    for key, name in NAMES.items():
        value = summary.get(key)
        same = key.endswith("_calibrated") and value == summary.get(key.removesuffix("_calibrated"))
        if isinstance(value, float) and value == value and not same:
            rate = key.startswith(("error", "pseudo_label", "trusted"))
            text = f"{100 * value:.2f} %" if rate else f"{value:.4f}"
            promised = summary.get(PROMISES.get(key, ""))
            pairs.append((name, text if promised is None else f"{text} (promised: {100 * promised:g} %)"))
    return two_columns(pairs)
