"""All questions about a pool at once: a table of images to look at, class shares, and a learning curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, check_range
from .arrays import blocks, check_features, check_labels, distances, unit
from .curve import LearningCurve, learning_curve
from .doubtful import find_doubtful_labels
from .duplicates import conflicting_labels, find_duplicates
from .ridge import fit_ridge, leave_one_out
from .shares import ClassShares, estimate_shares
from .suggest import choose_strategy, suggest_labels
from .unknown import ALPHA, KnownRows, Unknown, block_for, foreign_clusters, known_share

DOUBT = 0.5  # probability of a wrong label from which on it is listed


class Issue(NamedTuple):
    """One line of the table.

    Attributes:
        file: name of the image.
        issue: unknown, duplicate, doubtful_label or next_to_label.
        score: distance to the labels, cosine to the copy, probability of a wrong label, or use of a label; higher
            comes first.
        group: images with the same one belong together; empty if it has none.
        suggestion: what to do.
    """

    file: str
    issue: str
    score: float
    group: str
    suggestion: str


class NextLabel(NamedTuple):
    """An image to label next.

    Attributes:
        file: name of the image.
        reason: why it helps.
        score: see `Suggestions.scores`.
        nearest_class: of the labeled image that is most similar; empty without labels.
    """

    file: str
    reason: str
    score: float
    nearest_class: str


@dataclass(frozen=True)
class AuditedImages:
    """What is known of all images of a run.

    Attributes:
        features: of unit length, of shape (images, width).
        labels: class numbers as a person gave them, of shape (images,); −1 where there is none to be seen.
        parts: labeled, pool, test, validation or other, of shape (images,).
        names: of the images.
        classes: names of the classes.
        probs: predictions, of shape (images, classes); by default those of a ridge head on the labels.
        hashes: what `perceptual_hashes` returned; by default features alone find copies.
        pixels: arrays (images, height, width, channels), one after the other in the order of the rows, if images shall
            be shown.
    """

    features: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    names: Sequence[str]
    classes: Sequence[str]
    probs: np.ndarray | None = None
    hashes: np.ndarray | None = None
    pixels: Sequence[np.ndarray] = ()

    def __post_init__(self) -> None:
        check_features("features", self.features)
        check_labels("labels", self.labels, len(self.features), low=-1, classes=len(self.classes))
        if not len(self.rows("labeled")):
            raise UserError("no image is labeled; label some (what to label first: vcc-infuse suggest --data)")

    def rows(self, *parts: str) -> np.ndarray:
        """Row numbers of these parts."""
        return np.flatnonzero(np.isin(self.parts, parts))

    def picture(self, row: int) -> np.ndarray:
        """The pixels of one image."""
        for part in self.pixels:
            if row < len(part):
                return np.asarray(part[row])
            row -= len(part)
        raise IndexError(f"{row} images more than there are pixels of")

    def labeled(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of the labeled images."""
        rows = self.rows("labeled")
        return unit(self.features[rows]), np.asarray(self.labels[rows], np.int64)

    def nearest_classes(self, rows: np.ndarray) -> list[str]:
        """For each of these rows, the class of the labeled image that is most similar."""
        known, labels = self.labeled()
        found: list[str] = []
        for part in blocks(len(rows), block_for(len(known))):
            nearest = labels[distances(unit(self.features[rows[part]]), known).argmin(1)]
            found += [str(self.classes[label]) for label in nearest]
        return found


@dataclass(frozen=True)
class Audit:
    """What is to be looked at.

    Attributes:
        issues: the table, by issue and the most urgent first.
        shares: class shares of the pool; None without a pool.
        curve: how the error falls with labels.
        images: what was looked at.
        alpha: p-value up to which an image counts as unknown.
        foreign_share: the part of the pool that seems to be of no class, as far as the labels tell.
    """

    issues: tuple[Issue, ...]
    shares: ClassShares | None
    curve: LearningCurve
    images: AuditedImages
    alpha: float
    foreign_share: float = 0.0

    def of(self, issue: str) -> list[Issue]:
        """The lines of one issue."""
        return [line for line in self.issues if line.issue == issue]

    def summary(self) -> list[str]:
        """A few lines for the screen."""
        parts = Counter(map(str, self.images.parts))
        counts = [f"{parts[part]:,} {part}" for part in ("labeled", "pool", "validation", "test") if parts[part]]
        return [f"{len(self.images.parts):,} images: {', '.join(counts)}", *self._found(), *self._outlook()]

    def _found(self) -> list[str]:
        judged = len(self.images.rows("pool", "test", "validation"))
        labels = len(self.images.rows("labeled"))
        unknown = f"unknown: {len(self.of('unknown')):,} of {judged:,} (p ≤ {self.alpha:g}; chance alone would "
        unknown += f"give up to {self.alpha * judged:,.0f})"
        if 1 / (labels + 1) > self.alpha:
            unknown = f"unknown: {labels} labels are too few for p ≤ {self.alpha:g}; it takes {1 / self.alpha - 1:.0f}"
        if self.foreign_share:
            unknown += f"; about {self.foreign_share:.0%} of the pool seem to be of no class"
        copies = self.of("duplicate")
        return [
            unknown,
            f"duplicates: {len(copies):,} images in {len({line.group for line in copies}):,} groups",
            f"doubtful labels: {len(self.of('doubtful_label')):,} of {labels:,}",
            f"next to label: {len(self.of('next_to_label')):,}",
        ]

    def _outlook(self) -> list[str]:
        lines = []
        if self.shares is not None:
            columns = (self.images.classes, self.shares.shares, self.shares.low, self.shares.high, self.shares.labeled)
            texts = [
                f"{name} {share:.0%} ({low:.0%} to {high:.0%}; {given:.0%} of the labels)"
                for name, share, low, high, given in zip(*columns, strict=True)
            ]
            lines.append(f"class shares of the pool: {', '.join(texts)}")
        return [*lines, self.curve.describe()]


def audit_images(images: AuditedImages, *, alpha: float = ALPHA, count: int = 20) -> Audit:
    """Look for unknown images, copies and doubtful labels, suggest what to label next, and look ahead.

    Args:
        images: features, labels and names.
        alpha: an image with a p-value up to this counts as unknown.
        count: of images to label next.
    """
    check_range("unknown", alpha, 0, 1)
    known, labels = images.labeled()
    pool = images.rows("pool")
    others = images.rows("pool", "test", "validation")
    base = KnownRows.of(known, labels)
    unknown = base.judge(images.features[others])
    probs = fit_ridge(known, labels, len(images.classes)).probs(images.features[pool])
    found = [*_unknown(images, others, unknown, alpha), *_duplicates(images), *_doubtful(images)]
    if len(pool) and count:
        useful = next_labels(images, count, others[unknown.p <= alpha])
        found += [Issue(line.file, "next_to_label", line.score, "", line.reason) for line in useful]
    curve = learning_curve(known, labels, classes=len(images.classes))
    foreign = 1 - known_share(unknown.score[np.isin(others, pool)], probs.argmax(1), base.own, labels)
    return Audit(tuple(found), _shares(images, probs), curve, images, alpha, foreign)


def next_labels(images: AuditedImages, count: int, foreign: Any = None) -> list[NextLabel]:
    """What to label next among the pool.

    With few labels an image may be far from all of them because its kind was never labeled, which is a reason to label
    it. Once a classifier is asked, `foreign` rows are left out; by default those with p ≤ 0.05.
    """
    train = images.rows("labeled", "pool")
    rows = images.features[train]
    labels = np.where(images.parts[train] == "labeled", images.labels[train], -1)
    probs = None if images.probs is None else images.probs[train]
    options: dict[str, Any] = {"count": count, "probs": probs, "classes": len(images.classes), "names": images.classes}
    candidates = np.flatnonzero(labels < 0)
    if choose_strategy(labels, "auto", len(images.classes), probs) == "margin":
        if foreign is None:
            pool = images.rows("pool")
            foreign = pool[KnownRows.of(*images.labeled()).judge(images.features[pool]).p <= ALPHA]
        known = candidates[~np.isin(train[candidates], foreign)]
        candidates = known if len(known) else candidates
    chosen = suggest_labels(rows, labels, candidates=candidates, **options)
    places = train[chosen.rows]
    names = [images.names[row] for row in places.tolist()]
    columns = zip(names, chosen.reasons, chosen.scores.tolist(), images.nearest_classes(places), strict=True)
    return [NextLabel(*column) for column in columns]


def _unknown(images: AuditedImages, rows: np.ndarray, unknown: Unknown, alpha: float) -> list[Issue]:
    clusters = foreign_clusters(images.features[rows], unknown, alpha=alpha) if len(rows) else []
    group = {int(place): f"foreign {number}" for number, item in enumerate(clusters, 1) for place in item.rows}
    places = np.flatnonzero(unknown.p <= alpha)
    places = places[np.argsort(-unknown.score[places], kind="stable")]
    lines = []
    for place, nearest in zip(places.tolist(), images.nearest_classes(rows[places]), strict=True):
        new = "a new class, or leave it out" if place in group else "leave it out"
        text = f"of no class (p = {unknown.p[place]:.3f}, nearest is {nearest})? {new}"
        name = images.names[rows[place]]
        lines.append(Issue(name, "unknown", float(unknown.score[place]), group.get(place, ""), text))
    return lines


def _duplicates(images: AuditedImages) -> list[Issue]:
    copies = find_duplicates(images.features, hashes=images.hashes)
    conflict = set(conflicting_labels(copies, images.labels).tolist())
    lines = []
    for number, rows in enumerate(copies.groups(), 1):
        for row in rows.tolist():
            text = _about_copy(images, row, int(copies.partner[row]), row in conflict)
            lines.append(Issue(images.names[row], "duplicate", float(copies.similarity[row]), f"copies {number}", text))
    return lines


def _about_copy(images: AuditedImages, row: int, partner: int, conflict: bool) -> str:
    """What to do about an image and the most similar other one; `conflict` says that labels in the group differ."""
    trained = [images.parts[place] in ("labeled", "pool") for place in (row, partner)]
    labels = [int(images.labels[place]) for place in (row, partner)]
    copy = f"copy of {images.names[partner]}"
    if min(labels) >= 0 and labels[0] != labels[1]:
        return f"{copy}, labeled {images.classes[labels[0]]} here and {images.classes[labels[1]]} there: correct one"
    if trained[0] != trained[1]:
        return f"{copy}: keep it in one of training and test"
    return f"{copy}: labels of the group differ, correct them" if conflict else f"{copy}: keep one"


def _doubtful(images: AuditedImages) -> list[Issue]:
    known, labels = images.labeled()
    rows = images.rows("labeled")
    doubts = find_doubtful_labels(known, labels, classes=len(images.classes))
    lines = []
    for place in doubts.ranking().tolist():
        if doubts.p_wrong[place] >= DOUBT and doubts.suggested[place] != labels[place]:
            given, better = (images.classes[number] for number in (labels[place], doubts.suggested[place]))
            text = f"labeled {given}, looks like {better}: check it"
            lines.append(Issue(images.names[rows[place]], "doubtful_label", float(doubts.p_wrong[place]), "", text))
    return lines


def _shares(images: AuditedImages, probs: np.ndarray) -> ClassShares | None:
    """Class shares of the pool, given the probabilities of a head on the labels; None without a pool."""
    if not len(probs):
        return None
    known, labels = images.labeled()
    return estimate_shares(probs, leave_one_out(known, labels, len(images.classes)).probs(), labels)
