"""The computations of the methods as pure functions of tensors, for use without the rest of the library.

`ensemble_score`, `temporal_score` and `view_score` are the consistency scores of VCC; `normalize_scores`, `fuse` and
`interpolate` make its target confidence of them. `influence` and `support_direction` are the scores of INFUSE. The
calibrators and selectors call these same functions.
"""

from .calibrators.base import set_top_confidence
from .calibrators.mmce import mmce
from .calibrators.temperature import fit_temperature
from .calibrators.vcc.scores import (
    ensemble_score,
    entropy,
    fuse,
    interpolate,
    kl,
    normalize_scores,
    temporal_score,
    view_score,
)
from .selectors.infuse.influence import influence, support_direction

__all__ = ["ensemble_score", "entropy", "fit_temperature", "fuse", "influence", "interpolate", "kl", "mmce"]
__all__ += ["normalize_scores", "set_top_confidence", "support_direction", "temporal_score", "view_score"]
