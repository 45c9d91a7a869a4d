"""Selectors: which unlabelled examples to train on until the next refresh."""

from .base import Selector
from .gradmatch import GradMatch
from .infuse import INFUSE
from .pool import Pool
from .refresh import Refresher
from .retrieve import RETRIEVE
from .selection import Selection, describe_selection, save_selection
from .simple import EL2N, EarlyStop, FullShort, Random, RandomOnline

__all__ = [
    "EL2N",
    "INFUSE",
    "RETRIEVE",
    "EarlyStop",
    "FullShort",
    "GradMatch",
    "Pool",
    "Random",
    "RandomOnline",
    "Refresher",
    "Selection",
    "Selector",
    "describe_selection",
    "save_selection",
]
