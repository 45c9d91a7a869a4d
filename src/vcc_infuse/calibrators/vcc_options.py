"""What VCC's options may be, and what is said of one that may not."""

from __future__ import annotations

from ..errors import UserError

SCORES = ("ensemble", "temporal", "view")
_CHOICES = {
    "reconstruct": ("vae", "mlp", "none"),
    "fusion": ("corrected", "paper"),
    "output": ("scalar", "distribution"),
    "match": ("balanced", "confidence", "tempered", "target", "none"),
    "inference": ("temperature", "reconstruction", "both"),
}
_MANY = 2**31
_RANGES = {
    "copies": (1, _MANY), "dropout": (0, 0.99), "window": (1, 1000), "stale": (0, _MANY), "top": (0, _MANY),
    "queue": (1, _MANY), "min_per_class": (1, _MANY), "latent": (1, _MANY), "target_fraction": (0.001, 1),
    "warmup": (0, 1), "weight": (0, _MANY), "share": (0, 0.9),
}  # fmt: skip


def check_options(vcc: object) -> None:
    """Refuse a value out of range or unknown, by its name."""
    for name in vcc.scores:  # type: ignore[attr-defined]
        if name not in SCORES:
            raise UserError(f"scores: {name!r} is not known; choose from {', '.join(SCORES)}")
    for name, (low, high) in _RANGES.items():
        value = getattr(vcc, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name}={value!r} is out of range; give a value from {low:g} to {high:g}")
    for name, choices in _CHOICES.items():
        value = getattr(vcc, name)
        if value not in choices:
            raise UserError(f"{name}={value!r} is not known; choose from {', '.join(choices)}")
