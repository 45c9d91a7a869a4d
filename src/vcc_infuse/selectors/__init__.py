"""Selectors: which unlabeled examples to train on until the next refresh."""

from .base import Selector
from .controls import EarlyStop, FullShort, Random, RandomOnline
from .coreset_scheduler import CoresetScheduler
from .el2n import EL2N
from .gradmatch import GradMatch
from .infuse.selector import INFUSE
from .pool import Pool
from .retrieve import RETRIEVE
from .selection import Selection, describe_selection

__all__ = [
    "EL2N",
    "INFUSE",
    "RETRIEVE",
    "CoresetScheduler",
    "EarlyStop",
    "FullShort",
    "GradMatch",
    "Pool",
    "Random",
    "RandomOnline",
    "Selection",
    "Selector",
    "describe_selection",
]
