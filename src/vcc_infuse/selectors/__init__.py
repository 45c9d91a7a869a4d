"""Selectors: which unlabeled examples to train on until the next refresh."""

from .base import Selector
from .baselines import EarlyStop, FullShort, Random, RandomOnline
from .el2n import EL2N
from .gradmatch import GradMatch
from .infuse import INFUSE, AlignedINFUSE, RobustINFUSE
from .retrieve import RETRIEVE
from .sampler import CoresetSampler

__all__ = ["EL2N", "INFUSE", "RETRIEVE", "AlignedINFUSE", "CoresetSampler", "EarlyStop", "FullShort", "GradMatch"]
__all__ += ["Random", "RandomOnline", "RobustINFUSE", "Selector"]
