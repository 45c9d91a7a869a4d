"""The paper's ablation of the reconstruction, with the network without z that it lacks."""

from ..rows import figures, method, with_vcc
from ..settings import Scale, column_name, small_or_full
from ..table import Row, Table

COLUMN = column_name("cifar100", 2500)
PAPER = figures("none 25.76 .160 .411 .168\n vae 25.26 .147 .324 .163", (COLUMN,), width=4)
FULL = "VCC-FlexMatch"


def table(scale: Scale) -> Table:
    """Differences are to VCC with its VAE."""
    rows = (
        method("FlexMatch"),
        with_vcc("FlexMatch", PAPER["vae"]),
        variant("without reconstruction", "none", PAPER["none"]),
        variant("with an MLP instead of the VAE", "mlp", {}),
    )
    columns = (small_or_full(scale),)
    figures = ("error", "ece_calibrated", "mce_calibrated", "ace_calibrated")
    return Table("ablation-vae", "VCC without its reconstruction", rows, columns, figures)


def variant(name: str, reconstruct: str, paper: dict[str, tuple[float, ...]]) -> Row:
    """VCC with another reconstruction."""
    options = {"algorithm": "FlexMatch", "calibrator": "VCC", "calibrator.reconstruct": reconstruct}
    return Row(f"{FULL} {name}", options, FULL, paper)
