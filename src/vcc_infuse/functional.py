"""The computations of the methods as pure functions of tensors, for use without the rest of the library.

`ensemble_score`, `temporal_score` and `view_score` are the consistency scores of VCC; `normalize_scores`, `fuse` and
`interpolate` make its target confidence of them. The calibrators call these same functions.
"""

from .calibrators.base import set_top_confidence
from .calibrators.mmce import mmce
from .calibrators.temperature import fit_temperature
from .calibrators.vcc.fusion import fuse, interpolate, normalize_scores
from .calibrators.vcc.scores import ensemble_score, entropy, kl, temporal_score, view_score

__all__ = [
    "ensemble_score",
    "entropy",
    "fit_temperature",
    "fuse",
    "interpolate",
    "kl",
    "mmce",
    "normalize_scores",
    "set_top_confidence",
    "temporal_score",
    "view_score",
]
