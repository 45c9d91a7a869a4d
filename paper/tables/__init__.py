"""The tables: their rows, their columns at each scale, and the numbers that the paper printed."""

from collections.abc import Callable

from vcc_infuse.errors import UserError
from vcc_infuse.utils.suggest import did_you_mean

from ..scales import Scale, from_scratch, on_bank
from ..table import Table
from . import ablations, beyond, calibration, confidence, coreset, efficiency, imbalance, main, readings

TABLES: dict[str, Callable[[Scale], Table]] = {
    "main": main.table,
    "stl10": main.stl10,
    "calibration": calibration.table,
    "coreset": coreset.table,
    "efficiency": efficiency.table,
    "calibrators": calibration.calibrators,
    "ablation-scores": ablations.scores,
    "ablation-vae": ablations.vae,
    "imbalance": imbalance.table,
    "readings": readings.table,
    "confidence": confidence.table,
    "beyond-confidence": beyond.confidence,
    "beyond-error": beyond.error,
    "beyond-selection": beyond.selection,
}


ABSENT: dict[Scale, tuple[str, ...]] = {"scratch": ("stl10",)}
"""Tables that a scale does not have: a network of three convolutions learns little from a thousand photos."""


def tables(name: str, scale: Scale) -> list[Table]:
    """The table of that name, or all of them."""
    if name != "all" and name not in TABLES:
        remedy = did_you_mean(name, [*TABLES, "all"]) or f"; choose {', '.join(TABLES)} or all"
        raise UserError(f"table {name} is unknown{remedy}")
    absent = ABSENT.get(scale, ())
    if name in absent:
        raise UserError(f"table {name} does not exist at scale {scale}; choose --scale frozen")
    chosen = [make(scale) for key, make in TABLES.items() if name in ("all", key) and key not in absent]
    adapt = {"frozen": on_bank, "scratch": from_scratch}.get(scale)
    return [adapt(table) for table in chosen] if adapt else chosen
