"""Trains one cell, on images or on a bank of embedded views."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcc_infuse.data.ssl_data import SSLData, choose_split
from vcc_infuse.run import Prepared, prepare
from vcc_infuse.utils import manifest
from vcc_infuse.utils.io import json_bytes, write_json

from .banks import bank_key, open_bank
from .cell import Cell
from .confidences import Watched
from .oracle import OracleINFUSE


def train(cell: Cell, folder: Path, data_root: str | None) -> None:
    """Start the run of a cell, or resume it. On a bank it takes seconds and leaves only its summary."""
    if cell.on_bank:
        write_summary(cell, folder, train_on_bank(cell, data_root))
        return
    run = prepare(cell.config(data_root, out=str(cell.folder(folder))))
    resumed = cell.started(folder)
    began = time.process_time()
    summary = fit(run, resume=resumed)
    if not resumed:  # the earlier part of a resumed run was computed by another process
        summary["seconds_cpu"] = time.process_time() - began
    manifest.publish(cell.folder(folder), {"summary.json": json_bytes(summary)})


def train_on_bank(cell: Cell, data_root: str | None = None) -> dict[str, Any]:
    """Train the head of one cell; returns its summary, with the seconds that all of it took."""
    key = bank_key(cell, data_root)
    assert key is not None
    dataset = open_bank(key)
    began = time.perf_counter()
    config = replace(cell.config(data_root), model=None)  # a head, not the network that embedded the images
    source = config.data
    assert not isinstance(source, SSLData)
    split = choose_split(
        dataset,
        labels=source.labels,
        long_tail=source.long_tail,
        include_labeled=source.include_labeled,
        seed=config.train_config().seed,
        all_labels=config.build("algorithm").all_labels,
    )
    summary = fit(prepare(config, SSLData(dataset, split)))
    return {**summary, "seconds": time.perf_counter() - began}


def fit(run: Prepared, *, resume: bool = False) -> dict[str, Any]:
    """Train, with the truth shown to the parts that need it: an oracle, which no user has, and what only measures."""
    trainer = run.trainer
    if isinstance(trainer.selector, OracleINFUSE):
        trainer.selector.attach(run.data.dataset)
    if isinstance(trainer.calibrator, Watched):
        trainer.calibrator.attach(run.data)
    summary = trainer.fit(run.data, config=run.config.to_yaml() if trainer.config.out else None, resume=resume)
    if isinstance(watched := trainer.state_.calibrator, Watched):
        curves = watched.curves()
        summary["parts"] = {name: {**quality, "curve": curves[name]} for name, quality in watched.quality().items()}
    trainer.close()
    return summary


def write_summary(cell: Cell, folder: Path, summary: dict[str, Any]) -> None:
    """Mark a cell as finished."""
    cell.folder(folder).mkdir(exist_ok=True)
    write_json(cell.folder(folder) / "summary.json", summary)
