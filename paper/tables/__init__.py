"""One short file per table: its rows, its columns at each scale, and the numbers that the paper printed."""

from collections.abc import Callable

from vcc_infuse.errors import UserError
from vcc_infuse.utils.suggest import did_you_mean

from ..frozen import on_bank
from ..scales import Scale
from ..table import Table
from . import (
    ablation_scores,
    ablation_vae,
    beyond,
    calibration,
    calibrators,
    confidence,
    coreset,
    efficiency,
    imbalance,
    main,
    stl10,
)

TABLES: dict[str, Callable[[Scale], Table]] = {
    "main": main.table,
    "stl10": stl10.table,
    "calibration": calibration.table,
    "coreset": coreset.table,
    "efficiency": efficiency.table,
    "calibrators": calibrators.table,
    "ablation-scores": ablation_scores.table,
    "ablation-vae": ablation_vae.table,
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
    made = [make(scale) for key, make in TABLES.items() if name in ("all", key)]
    return list(map(on_bank, made)) if scale == "frozen" else made
