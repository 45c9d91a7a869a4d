"""Everything that the library exports, in a shape that shows its workings within a few steps on a few images."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

import vcc_infuse
from vcc_infuse import Calibrator, FixMatch, FlexMatch, Selector, SSLData, Trainer
from vcc_infuse.algorithms import Algorithm, PseudoLabeling
from vcc_infuse.algorithms.imbalance import Wrapper
from vcc_infuse.data.dataset import Examples
from vcc_infuse.data.split import LongTail, long_tailed
from vcc_infuse.data.ssl_data import load

ABSTRACT = (Algorithm, PseudoLabeling, Wrapper, Calibrator, Selector)
# Defaults are made for long runs. Where an option of such a name exists, it is set so that pseudo labels count,
# memories fill up and refits come within six steps.
LIVELY: dict[type, dict[str, Any]] = {
    Algorithm: dict(
        threshold=0.12,
        contrast_threshold=0.1,
        start_fraction=0.0,
        every=2,
        memory=2,
        finetune_fraction=0.2,
        momentum=0.5,
        warmup_steps=2,
    ),
    Calibrator: dict(every=2, min_per_class=1),
    Selector: dict(every=2, keep=0.5, first_interval="score"),
}
RUN: dict[str, Any] = dict(
    steps=6,
    eval_every=6,
    batch_size=4,
    unlabeled_ratio=2,
    precision="fp32",
    device="cpu",
    progress=False,
    report=False,
)


def exported(base: type) -> list[type]:
    """The classes of a kind that `vcc_infuse` exports."""
    kinds = [getattr(vcc_infuse, name) for name in vcc_infuse.__all__]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base) and kind not in ABSTRACT]


ALGORITHMS, CALIBRATORS, SELECTORS = exported(Algorithm), exported(Calibrator), exported(Selector)
WRAPPERS = [kind for kind in ALGORITHMS if issubclass(kind, Wrapper)]


def name(kind: type) -> str:
    return kind.__name__


def lively(kind: type, **given: Any) -> Any:
    """An object of a class, set to act early."""
    (base,) = (base for base in LIVELY if issubclass(kind, base))
    known = inspect.signature(kind).parameters
    if issubclass(kind, Wrapper):
        given.setdefault("base", lively(FixMatch))
    return kind(**{option: value for option, value in LIVELY[base].items() if option in known}, **given)


Case = tuple[Algorithm, Calibrator | None, Selector | None]


def cases() -> dict[str, Case]:
    """Every algorithm and wrapper, every calibrator on FlexMatch, every selector on FixMatch."""
    found: dict[str, Case] = {name(kind): (lively(kind), None, None) for kind in ALGORITHMS}
    found |= {f"FlexMatch-{name(kind)}": (lively(FlexMatch), lively(kind), None) for kind in CALIBRATORS}
    found |= {f"FixMatch-{name(kind)}": (lively(FixMatch), None, lively(kind)) for kind in SELECTORS}
    return found


def trainer(model: torch.nn.Module, case: Case, kind: type[Trainer] = Trainer, **options: Any) -> Any:
    """A trainer that takes six steps (or `steps`), whatever part of them a selector leaves."""
    options, selector = {**RUN, **options}, case[2]
    full = round(options["steps"] / selector.keep) if selector else options["steps"]
    return kind(model, *case, **{**options, "steps": full})


def few_digits(train: int = 200, test: int = 50) -> SSLData:
    """The first of the handwritten digits, from 6 labels of a class down to 2."""
    whole = load("digits")
    parts = {"train": whole.train, "test": whole.test}
    cut = {key: Examples(parts[key].x[:n], parts[key].y[:n]) for key, n in (("train", train), ("test", test))}
    tail = LongTail(6, 3, unlabeled_first=train // 16, gamma_u=2)
    split = long_tailed(cut["train"].y, 10, 0, tail, include_labeled=True)
    return SSLData(replace(whole, **cut), split)


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested containers by their path; what measures time is left out."""
    if isinstance(state, dict | list | tuple):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        below = [flat(value, f"{path}.{key}") for key, value in items if key not in ("seconds", "train_seconds")]
        return {key: value for part in below for key, value in part.items()}
    return {path: state}


def differences(one: Any, other: Any) -> list[str]:
    """Paths at which two states are not the same bit for bit (unknown numbers, NaN, are like one another)."""
    left, right = flat(one), flat(other)
    unequal = [key for key in left.keys() & right.keys() if not _same(left[key], right[key])]
    return sorted([*unequal, *(left.keys() ^ right.keys())])


def _same(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return bool(one == other) or (one != one and other != other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
