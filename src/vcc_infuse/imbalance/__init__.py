"""Methods for class imbalance: plug-ins that wrap a pseudo-labeling method, one a file."""

from .abc import ABC
from .adsh import Adsh
from .darp import DARP
from .daso import DASO
from .debiaspl import DebiasPL
from .plugin import Plugin

__all__ = ["ABC", "DARP", "DASO", "Adsh", "DebiasPL", "Plugin"]
