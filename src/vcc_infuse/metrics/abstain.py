"""Which answers to leave out: cuts of a confidence, the share that each still answers, and the error of those answers.

`confidence` and `correct` have shape (examples,). They must come from examples that were not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .classification import Values, correctness, unit

# Fixed beforehand and round, so that a cut does not hang on the confidence of a single example.
CUTS = (*(i / 100 for i in range(100)), 0.995, 0.998, 0.999)
TARGETS = (0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
ENOUGH = 2 / 3  # of the examples: what a suggested cut still answers, if any does


class Cut(NamedTuple):
    """Examples with a confidence of at least `cut`, and the error among them with its 95 % Clopper–Pearson interval.

    Attributes:
        cut: the least confidence that is answered.
        answered: the number of examples with at least that.
        coverage: their share.
        error: the share of wrong answers among them; NaN if there is none.
        error_low: the lower end of the interval.
        error_high: its upper end.
    """

    cut: float
    answered: int
    coverage: float
    error: float
    error_low: float
    error_high: float


def at_cut(confidence: Values, correct: Values, cut: float) -> Cut:
    """What remains of the answers at one cut.

    >>> at_cut([0.9, 0.8, 0.7, 0.6], [True, True, False, False], 0.7)[:4]
    (0.7, 3, 0.75, 0.3333333333333333)
    """
    scores = unit("confidence", confidence)
    right = correctness(scores, correct)
    kept = right[scores >= cut]
    answered = len(kept)
    if not answered:
        return Cut(cut, 0, 0.0, float("nan"), 0.0, 1.0)
    wrong = round(float((1 - kept).sum()))
    # The interval of Clopper and Pearson. Here, because it takes a while to import, and scipy.stats a second.
    from scipy.special import betaincinv

    low = float(betaincinv(wrong, answered - wrong + 1, 0.025)) if wrong else 0.0
    high = float(betaincinv(wrong + 1, answered - wrong, 0.975)) if wrong < answered else 1.0
    return Cut(cut, answered, answered / len(scores), wrong / answered, low, high)


def suggest_cuts(confidence: Values, correct: Values, targets: Sequence[float] = TARGETS) -> list[Cut]:
    """The lowest cut for each error in `targets`, the mildest first; empty if none helps.

    A target is left out where all answers together keep it already, and where fewer than 1 / target answers keep it:
    there a single wrong one would not show. A cut is chosen and measured on the same examples, so that `error` is a
    little too low on average, most of all where few are answered; the interval does not account for the choice.

    >>> [(cut.cut, cut.coverage, cut.error) for cut in suggest_cuts([0.9] * 10 + [0.4] * 10, [1] * 10 + [0] * 10)]
    [(0.41, 0.5, 0.0)]
    """
    scores = unit("confidence", confidence)
    right = correctness(scores, correct)
    order = scores.argsort(descending=True)
    ranked = scores[order]
    wrong = (1 - right[order]).cumsum(0)
    answered = torch.searchsorted(-ranked, -torch.tensor(CUTS, dtype=torch.float64), right=True)
    errors = torch.where(answered > 0, wrong[(answered - 1).clamp_min(0)] / answered, torch.nan)
    chosen: list[float] = []
    for target in targets:
        keeps = (errors <= target) & (answered >= 1 / target)
        if errors[0] > target and keeps.any():
            chosen.append(CUTS[int(keeps.int().argmax())])
    return [at_cut(scores, right, cut) for cut in dict.fromkeys(chosen)]


def abstain_table(confidence: Values, correct: Values) -> list[dict[str, Any]]:
    """`suggest_cuts` as rows of a file; `suggested` is the strictest that answers two thirds, else the mildest."""
    cuts = suggest_cuts(confidence, correct)
    place = max((i for i, cut in enumerate(cuts) if cut.coverage >= ENOUGH), default=0)
    return [{**cut._asdict(), "suggested": i == place} for i, cut in enumerate(cuts)]
