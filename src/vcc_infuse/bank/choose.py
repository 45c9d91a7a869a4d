"""Which frozen network, and at which size: decided on the labels, within the minutes that embedding may take.

Every candidate embeds the labeled images once, and a cross-validated linear probe says what its features are worth.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..augment.views import ImageViews
from ..data.ssl_data import SSLData
from ..errors import UserError, check_range
from ..models import Concat, Timm
from ..models.concat import SEPARATOR, networks_of
from ..models.linear_probe import cross_validate
from ..models.pretrained import names_at_hand
from ..utils.device import resolve_device, unit_features
from .bank import BankConfig
from .embed import check_images, make_encoder
from .encoder import ForwardOptions, FrozenNetwork
from .onnx_engine import BATCH, Engine, choose_engine

SIDES = (96, 160, 224)  # besides the native one, and only those clearly below it
BELOW = 0.8
MOST_NETWORKS = 4  # of those at hand: more would take longer to compare than they gain
MOST_LABELS = 500
SAMPLE = 128  # images, labeled or not, from which on the statistics of the features hardly change
TIMED = 8  # images on which a network is timed
HOPELESS = 5.0  # times too slow in PyTorch
SHARE = 0.1  # of the time of embedding that the comparison may take,
SECONDS = 5.0  # or so long, if that is more
ONLY = "the only candidate"
MARGIN = 2.5  # standard errors of the difference up to which a candidate counts as good as the best


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network, or several side by side, at one size.

    Args:
        encoder: the network with its size, not built yet.
        minutes: expected for embedding all views of all images.
        losses: log loss of each label under a probe that did not see it; None if not measured.
        error: share of the labels that such a probe mistakes; None if not measured.
    """

    encoder: Timm | Concat
    minutes: float
    losses: np.ndarray | None = None
    error: float | None = None

    def __str__(self) -> str:
        network = f"{self.encoder.name} at {self.encoder.input_size} px: "
        if self.error is None or self.losses is None:
            return f"{network}not compared, {self.minutes:.1f} min"
        uncertainty = np.sqrt(self.error * (1 - self.error) / len(self.losses))
        loss = f"log loss {self.losses.mean():.2f}, error {100 * self.error:.1f} ± {100 * uncertainty:.1f} %"
        return f"{network}{loss}, {self.minutes:.1f} min"


class EncoderChoice(NamedTuple):
    """The chosen network, why, and what it was compared with.

    Args:
        encoder: the network with its size, not built yet.
        reason: why it was chosen, in one line.
        candidates: all that were looked at, the cheapest first.
        seconds: that the comparison took.
    """

    encoder: Timm | Concat
    reason: str
    candidates: tuple[Candidate, ...]
    seconds: float

    def lines(self) -> list[str]:
        """The table of candidates and the choice, for the screen."""
        chosen = f"chosen: {self.encoder.name} at {self.encoder.input_size} px, {self.reason}"
        if len(self.candidates) < 2:
            return [] if self.reason == ONLY else [chosen]
        head = f"networks compared on the labels in {self.seconds:.0f} s (cross-validated probe, minutes of embedding):"
        return [head, *(f"  {candidate}" for candidate in self.candidates), chosen]


def choose_encoder(
    data: SSLData,
    networks: Sequence[Timm | Concat] | None = None,
    *,
    minutes: float = 10.0,
    bank: BankConfig | None = None,
    cache: str | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    processes: int = 1,
    seed: int = 0,
) -> EncoderChoice:
    """Compare pretrained networks and sizes on the labels, and choose one that embeds the images within `minutes`.

    Args:
        data: images and some labels.
        networks: what to compare; one with an `input_size` only at that size. If not given, the networks whose weights
            are on this machine, and pairs of them.
        minutes: how long embedding may take.
        bank: which views are going to be embedded.
        cache: folder of exported networks; see the option of `load_ssl`.
        device: where the networks compute.
        engine: "torch", "onnx", or "auto" for the faster one.
        processes: how many share the embedding.
        seed: seed of the folds and of the sample.

    Returns:
        The choice. Among candidates that fit into the minutes, it is the largest of those whose log loss is within 2.5
        standard errors of the best; the fastest if none fits.

    Example:
        >>> choice = choose_encoder(data, minutes=5)  # doctest: +SKIP
        >>> embedded = embed_data(data, choice.encoder)  # doctest: +SKIP
    """
    check_range("minutes", minutes, open_low=True)
    check_images(data.dataset.shape)
    began = time.perf_counter()
    options = [option for network in networks or networks_at_hand() for option in at_sizes(network)]
    if len(options) == 1:
        return EncoderChoice(options[0], ONLY, (), 0.0)
    work = Work(bank or BankConfig(), resolve_device(device), engine, cache, processes)
    trial = Trial(data, work, minutes, seed)
    candidates = trial.compare(trial.time(options))
    best, reason = decide(candidates, minutes)
    ordered = tuple(sorted(candidates, key=lambda candidate: candidate.minutes))
    return EncoderChoice(best.encoder, reason, ordered, time.perf_counter() - began)


def networks_at_hand() -> list[Timm | Concat]:
    """Networks whose weights are on this machine, and pairs of them; the default network if there are none."""
    names = names_at_hand()[:MOST_NETWORKS] or [Timm().name]
    pairs = (SEPARATOR.join(pair) for pair in combinations(names, 2))
    return [*map(Timm, names), *map(Concat, pairs)]


def at_sizes(network: Timm | Concat) -> list[Timm | Concat]:
    """The network at each size to compare: the one that it has, else a few up to the native one."""
    if network.input_size is not None:
        return [network]
    sizes: list[int | str] = []
    if isinstance(network, Timm):
        sizes += _sides(network)
    else:
        # From the native size down, so that every network is at its own when the others are.
        levels = zip(*(reversed(_sides(member)) for member in network.members), strict=False)
        sizes += [SEPARATOR.join(map(str, level)) for level in levels][::-1]
    return [at_size(network, size) for size in sizes]


def _sides(network: Timm) -> list[int]:
    native = network.native_size()
    return [*(side for side in SIDES if side <= BELOW * native), native]


def at_size(network: Timm | Concat, size: int | str) -> Timm | Concat:
    """The network at another size; not for one that is built."""
    resized = copy.deepcopy(network)
    resized.input_size = size
    return resized


def decide(candidates: Sequence[Candidate], minutes: float, margin: float = MARGIN) -> tuple[Candidate, str]:
    """The choice among candidates, and why: the largest that fits and is not clearly worse than the best."""
    fitting = sorted((c for c in candidates if c.minutes <= minutes), key=lambda candidate: candidate.minutes)
    if not fitting:
        cheapest = min(candidates, key=lambda candidate: candidate.minutes)
        return cheapest, f"the fastest, because none embeds all images within {minutes:g} minutes"
    limit = "" if len(fitting) == len(candidates) else f" of those that take at most {minutes:g} minutes"
    compared = [(c, c.losses) for c in fitting if c.losses is not None]
    if not compared:
        return fitting[-1], f"the largest{limit}: there are too few labels to compare"
    best, least = min(compared, key=lambda pair: float(pair[1].mean()))
    close = [c for c, losses in compared if _difference(losses, least) <= margin]
    chosen = close[-1]
    if chosen is best:
        return best, f"the lowest log loss{limit}"
    return chosen, f"the largest{limit} that the labels cannot tell from the lowest log loss"


def _difference(losses: np.ndarray, least: np.ndarray) -> float:
    """How much worse than the best, in standard errors of the difference of pairs."""
    difference = losses - least
    error = difference.std() / np.sqrt(len(difference))
    return float(difference.mean() / error) if error > 0 else 0.0


def trial_rows(data: SSLData, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to compare on and their labels: labeled ones, class by class in turn, then a sample of the others (−1)."""
    rng = np.random.default_rng(seed)
    labeled = rng.permutation(data.split.labeled)
    y = data.dataset.train.y[labeled]
    turn = np.zeros(len(y), np.int64)
    for label in np.unique(y):
        turn[y == label] = np.arange((y == label).sum())
    order = np.lexsort((y, turn))[:MOST_LABELS]
    others = np.setdiff1d(data.split.pool, data.split.labeled)
    sample = rng.permutation(others)[: max(0, SAMPLE - len(order))]
    rows = np.concatenate([labeled[order], sample])
    return rows, np.concatenate([y[order], np.full(len(sample), -1)])


def affordable(seconds: float, longest: float) -> int:
    """How many images may be embedded by all candidates together, at `seconds` each, if embedding takes `longest`."""
    return int(max(SECONDS, SHARE * longest) / max(seconds, 1e-9))


class Work(NamedTuple):
    """What is going to be embedded, and how."""

    bank: BankConfig
    device: torch.device
    engine: Engine
    cache: str | None
    processes: int


class Trial:
    """The images that candidates are compared on, and every network of theirs, built, timed and asked once."""

    def __init__(self, data: SSLData, work: Work, minutes: float, seed: int) -> None:
        self.dataset = data.dataset
        self.work = work
        self.device = work.device
        self.limit = minutes
        self.seed = seed
        self.rows, self.labels = trial_rows(data, seed)
        names = ("plain",) if work.bank.lazy else work.bank.names
        tests = 0 if self.dataset.test is None or self.dataset.validation is not None else len(self.dataset.test)
        self.views = (len(self.dataset.train) * len(names) + tests) / work.processes
        self.augmenting = self._seconds_of_views(names)
        self.loaded: dict[tuple[str, str], Timm | UserError] = {}
        self.built: dict[str, FrozenNetwork] = {}
        self.seconds: dict[str, float] = {}

    def time(self, options: Sequence[Timm | Concat]) -> list[Candidate]:
        """The minutes of each candidate. Those at sizes above one that takes too long are left out.

        So are networks that cannot be loaded or cannot take a size, unless none can.
        """
        candidates: list[Candidate] = []
        too_slow: set[str] = set()
        faults: list[UserError] = []
        for option in options:
            if option.name in too_slow:
                continue
            try:
                seconds = sum(self._seconds(network) for network in networks_of(option))
            except UserError as fault:
                faults.append(fault)
                continue
            # The same network at a larger size is the larger candidate, also if a busy machine measured it as faster.
            smaller = [one.minutes for one in candidates if one.encoder.name == option.name]
            candidates.append(Candidate(option, max([self._minutes(seconds), *smaller])))
            if candidates[-1].minutes > self.limit:
                too_slow.add(option.name)
        if not candidates:
            raise faults[0]
        return candidates

    def compare(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with the answers of their probes; without, where they take too long or labels are too few."""
        fitting = [candidate for candidate in candidates if candidate.minutes <= self.limit]
        parts = {_key(network) for candidate in fitting for network in networks_of(candidate.encoder)}
        longest = 60 * max((candidate.minutes for candidate in fitting), default=0.0)
        count = affordable(sum(self.seconds[key] for key in parts), longest)
        y = torch.from_numpy(self.labels[:count])
        counts = np.bincount(y[y >= 0], minlength=len(self.dataset.classes))
        if len(fitting) < 2 or counts.min() < 2:
            return list(candidates)
        features = {key: self._embed(self.built[key], self.rows[:count]) for key in parts}
        return [self._probed(one, features, y) if one in fitting else one for one in candidates]

    def _minutes(self, seconds: float) -> float:
        return self.views * (seconds + self.augmenting) / 60

    def _probed(self, candidate: Candidate, features: dict[str, Tensor], y: Tensor) -> Candidate:
        joined = torch.cat([features[_key(network)] for network in networks_of(candidate.encoder)], 1).float()
        std = joined.std(0, correction=0)
        # A feature that hardly varies among a few images must not outweigh the others.
        std = std.clamp(min=max(0.1 * float(std.square().mean().sqrt()), 1e-6))
        rows = unit_features(joined, joined.mean(0), std)[y >= 0]
        answers = cross_validate(rows, y[y >= 0], len(self.dataset.classes), self.seed)
        if answers is None:
            return candidate
        return replace(candidate, losses=answers.losses, error=float(answers.wrong.mean()))

    def _seconds(self, network: Timm) -> float:
        """Per image, without augmentation."""
        key = _key(network)
        if key not in self.seconds:
            slow = self._build(network)
            seconds = self._time(slow)
            self.built[key] = slow
            # No engine makes up for more than that, and an export takes a while.
            if self._minutes(seconds) < HOPELESS * self.limit:
                self.built[key] = self._faster(slow, self.views * seconds)
            self.seconds[key] = seconds if self.built[key] is slow else self._time(self.built[key])
        return self.seconds[key]

    def _time(self, network: FrozenNetwork) -> float:
        """Per image, by the better of two turns."""
        rows = self.rows[:TIMED]
        self._embed(network, rows[:1])  # warms up
        times = []
        for _ in range(2):
            began = time.perf_counter()
            self._embed(network, rows)
            times.append(time.perf_counter() - began)
        return min(times) / len(rows)

    def _build(self, network: Timm) -> FrozenNetwork:
        encoder = copy.copy(self._load(network))
        if encoder.side_matters():
            encoder = cast(Timm, make_encoder(network, self.dataset.shape)[0])
        encoder.resize(cast(int, network.input_size))
        expects = encoder.preprocessing() or self.dataset
        views = ImageViews(expects.mean, expects.std, self.dataset.flip, self.dataset.augment)
        return FrozenNetwork(encoder.to(self.device), views, ForwardOptions.default(self.device))

    def _faster(self, network: FrozenNetwork, seconds: float) -> FrozenNetwork:
        """The network as the bank is going to use it, if `seconds` of work in PyTorch lie ahead."""
        work = self.work
        fast = choose_engine(network.encoder, work.engine, device=self.device, seconds=seconds, cache=work.cache)
        if fast is None:
            return network
        return FrozenNetwork(fast, network.views, ForwardOptions(BATCH, channels_last=False, engine="onnx"))

    def _load(self, network: Timm) -> Timm:
        """The network at its native size, with its weights; looked for once, even if in vain."""
        key = (network.name, network.weights)
        if key not in self.loaded:
            try:
                native = at_size(network, network.native_size())
                self.loaded[key] = cast(Timm, make_encoder(native, self.dataset.shape)[0])
            except UserError as fault:
                self.loaded[key] = fault
        if isinstance(loaded := self.loaded[key], UserError):
            raise loaded
        return loaded

    def _embed(self, network: FrozenNetwork, rows: np.ndarray) -> Tensor:
        """Features of the plain views of training images."""
        raw = np.ascontiguousarray(self.dataset.train.x[rows])
        return torch.from_numpy(network.embed(self.device, raw, ("plain",), (self.seed,), None)[:, 0])

    def _seconds_of_views(self, names: Sequence[str]) -> float:
        """The time of augmentation per view."""
        raw = torch.from_numpy(np.ascontiguousarray(self.dataset.train.x[self.rows[:TIMED]])).to(self.device)
        views = ImageViews(self.dataset.mean, self.dataset.std, self.dataset.flip, self.dataset.augment)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            views("plain", raw)
            began = time.perf_counter()
            for name in names:
                views(name, raw)
        return (time.perf_counter() - began) / (len(raw) * len(names))


def _key(network: Timm) -> str:
    return repr(network.get_params())
