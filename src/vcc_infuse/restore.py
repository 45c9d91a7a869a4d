"""Saved tensors put back into a part, or a line that says why not."""

from __future__ import annotations

from typing import Any

from .errors import UserError

MISFIT = "loading state_dict"  # torch's words where tensors are missing or of another shape


def restore(part: Any, state: dict[str, Any], told: str) -> None:
    """Load `state`; what another version saved is the user's to know (`told`), any other fault stays what it is."""
    try:
        part.load_state_dict(state)
    except RuntimeError as fault:
        if MISFIT not in str(fault):
            raise
        raise UserError(told) from fault
