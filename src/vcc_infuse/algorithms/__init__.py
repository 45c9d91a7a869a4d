"""Semi-supervised methods, one per file."""

from .base import Algorithm, PseudoLabeling
from .closed_form import LabelSpreading, LinearProbe
from .comatch import CoMatch
from .dash import Dash
from .fixmatch import FixMatch
from .flexmatch import FlexMatch
from .freematch import FreeMatch
from .mean_teacher import MeanTeacher
from .mixmatch import MixMatch
from .mpl import MPL
from .pi_model import PiModel
from .pseudo_label import PseudoLabel
from .remixmatch import ReMixMatch
from .simmatch import SimMatch
from .softmatch import SoftMatch
from .supervised import FullySupervised, Supervised
from .uda import UDA
from .vat import VAT

__all__ = [
    "MPL",
    "UDA",
    "VAT",
    "Algorithm",
    "CoMatch",
    "Dash",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "FullySupervised",
    "LabelSpreading",
    "LinearProbe",
    "MeanTeacher",
    "MixMatch",
    "PiModel",
    "PseudoLabel",
    "PseudoLabeling",
    "ReMixMatch",
    "SimMatch",
    "SoftMatch",
    "Supervised",
]
