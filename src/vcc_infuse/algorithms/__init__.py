"""Semi-supervised methods, one a file."""

from .base import Algorithm, PseudoLabelling
from .fixmatch import FixMatch
from .pseudo_label import PseudoLabel
from .supervised import FullySupervised, Supervised

__all__ = ["Algorithm", "FixMatch", "FullySupervised", "PseudoLabel", "PseudoLabelling", "Supervised"]
