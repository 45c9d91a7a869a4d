"""Checks of a trainer's settings: each fault is one line that names the option, the value and the remedy."""

from __future__ import annotations

import math
from typing import Any

from .algorithms import Algorithm
from .calibrators import Calibrator, Softmax
from .errors import UserError
from .selectors import Selector
from .track import check_tracker


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse numbers no run can be made with."""
    for name in ("steps", "epochs", "eval_every", "batch", "ratio", "bins"):
        if settings[name] < 1:
            raise UserError(f"--{name} must be at least 1, got {settings[name]}")
    for name in ("lr", "weight_decay"):
        if not (math.isfinite(settings[name]) and settings[name] >= 0):
            raise UserError(f"--{name} must be a finite number of at least 0, got {settings[name]}")
    for name in ("ema", "momentum"):
        if not 0 <= settings[name] < 1:
            raise UserError(f"--{name} must be at least 0 and below 1, got {settings[name]}")
    if not 0 <= settings["seed"] < 2**32:
        raise UserError(f"--seed must lie between 0 and 2^32 - 1, got {settings['seed']}")
    check_tracker(settings)


def check_fit(algorithm: Algorithm, calibrator: Calibrator, selector: Selector | None = None) -> None:
    """Refuse a selector where no pool is used, and a calibrator without a confidence to replace or labels to learn."""
    if selector is not None and selector.restricts and not algorithm.views:
        raise UserError(
            f"{type(algorithm).__name__} uses no unlabelled images, so --selector {type(selector).__name__} has "
            "nothing to select; leave it out or choose a semi-supervised method such as FixMatch"
        )
    # Not isinstance: MMCE reads confidence as the softmax does, yet is there to change it.
    if type(calibrator) is not Softmax and not algorithm.uses_confidence:
        method, plug_in = type(algorithm).__name__, type(calibrator).__name__
        raise UserError(
            f"{method} selects nothing by confidence, so --calibrator {plug_in} would have no effect; "
            "leave it out or choose a pseudo-label method such as FixMatch"
        )
    for view in calibrator.unlabelled_views:
        if view not in algorithm.views:
            raise UserError(
                f"--calibrator {type(calibrator).__name__} learns from {view} views of unlabelled images, which "
                f"{type(algorithm).__name__} has not; choose other --calibrator.labels or a method such as FixMatch"
            )
