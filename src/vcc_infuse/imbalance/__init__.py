"""Methods for class imbalance: plug-ins around a pseudo-labeling method, one per file."""

from .abc import ABC
from .adsh import Adsh
from .balance import Balance
from .darp import DARP
from .daso import DASO
from .debiaspl import DebiasPL
from .plugin import Plugin

__all__ = ["ABC", "DARP", "DASO", "Adsh", "Balance", "DebiasPL", "Plugin"]
