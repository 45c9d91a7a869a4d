"""The tables: their rows, their columns at each scale, and the numbers that the paper printed."""

from collections.abc import Callable

from vcc_infuse.errors import UserError
from vcc_infuse.utils.suggest import did_you_mean

from ..scales import Scale, on_bank
from ..table import Table
from . import ablations, beyond, calibration, confidence, coreset, efficiency, imbalance, main

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
    "confidence": confidence.table,
    "beyond-confidence": beyond.confidence,
    "beyond-error": beyond.error,
    "beyond-selection": beyond.selection,
}


def tables(name: str, scale: Scale) -> list[Table]:
    """The table of that name, or all of them."""
    if name != "all" and name not in TABLES:
        remedy = did_you_mean(name, [*TABLES, "all"]) or f"; choose {', '.join(TABLES)} or all"
        raise UserError(f"table {name} is unknown{remedy}")
    chosen = [make(scale) for key, make in TABLES.items() if name in ("all", key)]
    return [on_bank(table) for table in chosen] if scale == "frozen" else chosen
