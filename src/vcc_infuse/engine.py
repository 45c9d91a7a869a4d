"""The device, the precision and the processes of a run, through accelerate."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from .errors import UserError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def resolve_precision(precision: str, device: torch.device) -> str:
    """`auto` is bf16 where the hardware computes in it, float32 elsewhere."""
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision} is unknown; choose one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        return "bf16" if _fast_bf16(device) else "fp32"
    if precision == "fp16" and device.type == "cpu":
        raise UserError("--precision fp16 needs a GPU; use bf16, fp32 or auto on this machine")
    return precision


def _fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def make_accelerator(
    precision: str = "auto", cpu: bool = False, tracker: str | None = None, folder: str | None = None
) -> Accelerator:
    """A fresh Accelerator: its precision is process-wide, yet a second run in one process must be free to set it.

    Without a folder nothing is tracked.
    """
    # Told nothing, accelerate joins no group of processes where there is no GPU: each would believe itself alone.
    cpu = cpu or not torch.accelerator.is_available()
    AcceleratorState._reset_state(reset_partial_state=False)
    device = Accelerator(cpu=cpu, mixed_precision="no").device
    chosen = resolve_precision(precision, device)
    AcceleratorState._reset_state(reset_partial_state=False)
    mixed, log_with = "no" if chosen == "fp32" else chosen, tracker if folder else None
    return Accelerator(cpu=cpu, mixed_precision=mixed, log_with=log_with, project_dir=folder)
