"""Semi-supervised methods, one per file."""

from .adsh import Adsh
from .base import Algorithm, PseudoLabeling
from .baselines import FullySupervised, LabelSpreading, LinearProbe, Supervised
from .comatch import CoMatch
from .dash import Dash
from .fixmatch import FixMatch
from .flexmatch import FlexMatch
from .freematch import FreeMatch
from .imbalance import ABC, DARP, DASO, Balance, DebiasPL, Wrapper
from .mean_teacher import MeanTeacher
from .mixmatch import MixMatch
from .mpl import MPL
from .pi_model import PiModel
from .pseudo_label import PseudoLabel
from .remixmatch import ReMixMatch
from .self_training import SelfTraining
from .simmatch import SimMatch
from .softmatch import SoftMatch
from .uda import UDA
from .vat import VAT

__all__ = ["ABC", "DARP", "DASO", "MPL", "UDA", "VAT", "Adsh", "Algorithm", "Balance", "CoMatch", "Dash", "DebiasPL"]
__all__ += ["FixMatch", "FlexMatch", "FreeMatch", "FullySupervised", "LabelSpreading", "LinearProbe", "MeanTeacher"]
__all__ += ["MixMatch", "PiModel", "PseudoLabel", "PseudoLabeling", "ReMixMatch", "SimMatch", "SoftMatch", "Supervised"]
__all__ += ["SelfTraining", "Wrapper"]
