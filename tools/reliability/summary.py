"""Write results/reliability.md from the JSON files of the other scripts in this folder.

    python tools/reliability/summary.py

Every number is that of a file; a goal that was not reached stands beside what was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vcc_infuse.utils.io import write_text

RESULTS = Path(__file__).parents[2] / "results"
Found = dict[str, Any]
HEAD = """# Reliability

Made by `python tools/reliability/summary.py` from `results/reliability/*.json`, which hold the commands, and the counts
by kind. A goal in brackets was not reached in the time at hand; the scripts take a larger `--count` or `--cases`.

| what is tried | cases (goal) | result |
|---|---|---|
"""


def kills(found: Found) -> tuple[str, int, int, str]:
    """Training killed at random moments."""
    done = f"{found['identical']} of {found['runs']} runs bit-identical, {found['tracebacks']} tracebacks"
    wait = found.get("longest_wait_of_the_other_process_s")
    done += f"; the others of several processes, once they had met, ended after {wait:.1f} s at most" if wait else ""
    return "`kill -9` of training at random moments, one to three processes", found["kills"], 100, done


def kills_default(found: Found) -> tuple[str, int, int, str]:
    """The default method, killed."""
    what, count, _, done = kills(found)
    return (
        what.replace("training", "runs of the default method, embedding and cross-validation included,"),
        count,
        40,
        done,
    )


def kill_services(found: Found) -> tuple[str, int, int, str]:
    """The labeling server and workers of shards, killed."""
    rows = (f"{name} {row['kills']} ({row['faults']} faults)" for name, row in found["table"].items())
    planned = found.get("planned", 0)
    left = f"; {len(found['cases'])} of {planned} cases were done" if len(found["cases"]) < planned else ""
    done = f"{found['answers']:,} answers given; kills: {', '.join(rows)}{left}"
    return "`kill -9` of the labeling server, its processes, and workers of `embed --shards`", found["kills"], 90, done


def soak_label(found: Found) -> tuple[str, int, int, str]:
    """Many requests to one server."""
    grown = ", ".join(f"{name} {100 * found['growth'][name]:.1f} %" for name in ("processes_mb", "threads", "files"))
    done = (
        f"server {100 * found['growth']['server_mb']:.1f} % ({found['server_bytes_per_answer']:,} bytes per answer), "
    )
    return "requests to one labeling server: growth", found["requests"], 100_000, done + grown


def damage(found: Found) -> tuple[str, int, int, str]:
    """Files damaged at random."""
    text = "{detected} detected, {harmless} harmless, {SILENT} silent, {traceback} tracebacks, {hang} hangs"
    if found.get("mended"):
        text += "; {mended} of them were silent or tracebacks at first and were tried again after they were mended"
    alone = found["exported_without_checksum"]
    text += f"; of {sum(alone.values())} damages to an exported model whose checksum file was taken away, "
    text += f"{alone.get('refused', 0)} were refused, {alone.get('same', 0)} changed no answer, "
    text += f"{alone.get('OTHER', 0)} gave other answers without a word"
    return "bits flipped and files cut, in every kind of file", found["damages"], 1000, text.format(**found)


def arguments(found: Found) -> tuple[str, int, int, str]:
    """Generated argument lists and files."""
    text = "{tracebacks} tracebacks, {hangs} hangs, {written_outside} files written outside"
    return (
        "generated arguments of all commands, configurations and run folders",
        found["cases"],
        10000,
        text.format(**found),
    )


def hostile(found: Found) -> tuple[str, int, int, str]:
    """Files made to do harm."""
    text = (
        "{executed} executed, {outside} reached outside, {traceback} tracebacks, up to {peak_mb_above_normal} MB more"
    )
    return "hostile files, folders, models and configurations", found["cases"], 200, text.format(**found)


def broken_images(found: Found) -> tuple[str, int, int, str]:
    """A folder with broken images."""
    text = f"exit status {found['exit_status']}, {found['listed']} of {found['broken']} broken ones listed"
    return "images, one in a hundred broken", found["images"], 1, text


def soak(found: Found) -> tuple[str, int, int, str]:
    """Many small steps."""
    return "small steps in one process", found["steps"], 20000, f"memory grew by {100 * found['growth']:.2f} %"


PARTS: dict[str, Callable[[Found], tuple[str, int, int, str]]] = {
    "kills": kills, "kills_default": kills_default, "damage": damage, "arguments": arguments, "hostile": hostile,
    "broken_images": broken_images, "soak": soak, "kill_services": kill_services, "soak_label": soak_label,
}  # fmt: skip


def rows() -> Iterator[str]:
    """One line per file that is there."""
    for name, describe in PARTS.items():
        path = RESULTS / "reliability" / f"{name}.json"
        if path.is_file():
            what, count, goal, result = describe(json.loads(path.read_text("utf-8")))
            missed = f" ({goal:,})" if count < goal else ""
            yield f"| {what} (`{name}.json`) | {count:,}{missed} | {result} |\n"


if __name__ == "__main__":
    write_text(RESULTS / "reliability.md", HEAD + "".join(rows()))
