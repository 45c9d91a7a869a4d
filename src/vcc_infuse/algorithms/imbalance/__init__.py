"""Methods for class imbalance: wrappers around a pseudo-labeling method, one per file."""

from .abc import ABC
from .balance import Balance
from .darp import DARP
from .daso import DASO
from .debiaspl import DebiasPL
from .wrapper import Wrapper

__all__ = ["ABC", "DARP", "DASO", "Balance", "DebiasPL", "Wrapper"]
