"""From data options to SSLData: load the source, then hide labels as asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..data.dataset import Dataset
from ..data.sources import load
from ..data.split import Split, balanced, given, long_tail
from ..data.ssl import SSLData
from ..errors import UserError


@dataclass
class LongTail:
    """Class sizes that fall geometrically.

    Args:
        first: labelled images of the largest class.
        gamma: how many times smaller the smallest class is.
        beta: share of labelled among all images kept of a class.
        unlabelled_first: unlabelled images of the largest class, instead of beta.
        gamma_u: imbalance of the unlabelled images; negative reverses the order of the classes; gamma if not given.
    """

    first: int | None = None
    gamma: float = 100.0
    beta: float | None = None
    unlabelled_first: int | None = None
    gamma_u: float | None = None


def load_ssl(
    data: str = "digits",
    labels: int | None = None,
    long_tail: LongTail | None = None,
    include_labelled: bool | None = None,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    mode: Literal["auto", "rgb", "grey"] = "auto",
    cache: str | None = None,
    flip: bool | None = None,
    seed: int = 0,
    all_labels: bool = False,
    progress: bool = True,
) -> SSLData:
    """Load images and choose which labels are shown.

    Args:
        data: a named source (see `vcc-infuse list`), or a folder or zip of class folders.
        labels: how many labels are shown in all, spread evenly over the classes.
        long_tail: instead of `labels`, class sizes that fall geometrically.
        include_labelled: whether labelled images also count as unlabelled (default: yes, but not with long_tail).
        root: where the files of a named source lie.
        download: fetch a named source that is not there yet.
        size: resize images to size×size.
        mode: colour mode; auto is grey only if all images are.
        cache: where decoded images are kept.
        flip: whether a mirrored image keeps its class (default: yes, but not for digits, svhn and svhn_train;
            a folder or zip of digits or letters needs `--flip false`).
    """
    dataset = load(data, root=root, download=download, size=size, mode=mode, cache=cache, progress=progress)
    dataset = dataset if flip is None else replace(dataset, flip=flip)
    return SSLData(dataset, choose_split(dataset, labels, long_tail, include_labelled, seed, all_labels))


def choose_split(
    dataset: Dataset,
    labels: int | None,
    tail: LongTail | None,
    include_labelled: bool | None,
    seed: int,
    all_labels: bool = False,
) -> Split:
    """The split the options ask for."""
    y, classes = dataset.train.y, dataset.classes
    if tail is not None:
        if labels is not None:
            raise UserError("--labels and --long_tail exclude each other; give one")
        if tail.first is None:
            raise UserError("--long_tail.first is missing: say how many labels the largest class has, e.g. 60")
        return long_tail(
            y, classes, seed, tail.first, tail.gamma, beta=tail.beta, unlabelled_first=tail.unlabelled_first,
            gamma_u=tail.gamma_u, include_labelled=bool(include_labelled),
        )  # fmt: skip
    if labels is None:
        if dataset.fixed or all_labels:
            return given(dataset.train.y)
        raise UserError(f"--labels is missing: say how many of {dataset.name} are shown, e.g. {4 * len(classes)}")
    return balanced(y, labels, classes, seed, include_labelled is not False)
