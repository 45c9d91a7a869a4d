"""What passes between the session and the process that trains: jobs there, answers back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

GROWN = 1.25  # times as many labels overtake a run


@dataclass(frozen=True, eq=False)
class Job:
    """What a person has said, at some version.

    Attributes:
        version: of the state.
        label: class numbers, of shape (images,), −1 where there is none.
        hidden: images that are not to be suggested, of shape (images,).
        foreign: images that a person found to be of no class, of shape (images,).
        audit: images of the audit that were answered, of shape (images,).
        classes: numbers of the classes, in the order of the columns of probabilities.
        names: of these classes.
        rate: labels per minute so far.
        full: whether the default method is to be trained, too.
    """

    version: int
    label: np.ndarray
    hidden: np.ndarray
    foreign: np.ndarray
    audit: np.ndarray
    classes: tuple[int, ...]
    names: tuple[str, ...]
    rate: float = 0.0
    full: bool = False

    def overtaken_by(self, other: Job) -> bool:
        """Whether a run on these labels is no longer worth its time."""
        before = int((self.label >= 0).sum())
        changed = int(((self.label != other.label) & (self.label >= 0)).sum())
        return self.classes != other.classes or changed > 2 or int((other.label >= 0).sum()) > GROWN * before + 5


@dataclass(eq=False)
class Answer:
    """What was found out for a job.

    Attributes:
        version: of the state that it is about.
        kind: none (too few labels), quick or full.
        seconds: that it took.
        labels: how many it was trained on, without those of audit images.
        classes: numbers of the classes of the columns.
        embedded: how many images have features.
        probs: calibrated probabilities, float16 of shape (images, classes), NaN where there are no features.
        unknown_p: of shape (images,), NaN where nothing can be said.
        following: (image, reason), the most useful first.
        wrong: audit images that the model, which never learns from them, gets wrong, and how many there are.
        doubtful: (image, class given, class suggested, probability that the label is wrong).
        clusters: images of what may be a new class each, the most typical first.
        gain: the error to expect after ten more minutes with its interval.
        copies: groups of near copies, if they were looked for.
    """

    version: int
    kind: str
    seconds: float = 0.0
    labels: int = 0
    classes: tuple[int, ...] = ()
    embedded: int = 0
    probs: np.ndarray | None = None
    unknown_p: np.ndarray | None = None
    following: list[tuple[int, str]] = field(default_factory=list)
    wrong: tuple[int, int] | None = None
    doubtful: list[tuple[int, int, int, float]] = field(default_factory=list)
    clusters: list[list[int]] = field(default_factory=list)
    gain: tuple[float, float, float] | None = None
    copies: list[list[int]] | None = None
    scores: np.ndarray | None = None  # how foreign, of shape (images,)
    out_of_fold: tuple[np.ndarray, np.ndarray] | None = None  # labeled images, and what heads without them say

    def without(self, gone: tuple[int, ...], size: int) -> tuple[np.ndarray | None, np.ndarray]:
        """The probabilities with some columns set to 0, and the class that each of `size` images is put in, or −1."""
        probs = self.probs
        if probs is None:
            return None, np.full(size, -1)
        known = np.isfinite(probs[:, 0])
        if gone:
            probs = probs.copy()
            probs[:, list(gone)] = np.where(known[:, None], 0, np.nan)
        values = np.where(known[:, None], probs, 0).astype(np.float32)
        return probs, np.where(known, np.array(self.classes)[values.argmax(1)], -1)
