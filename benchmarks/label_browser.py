"""The labeling page in Chromium: how long a key takes to the next image, and what the page needs of memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

KEYS = 60
GRIDS = 5
PAUSE = 300  # milliseconds between two keys
WATCH = """() => { window.times = [];
let pressed = null, before = null;
const shown = () => document.querySelector('#frame:not(.loading) img')?.alt;
addEventListener('keydown', () => { pressed = performance.now(); before = shown(); }, { capture: true });
new MutationObserver(() => {
  if (pressed === null || !shown() || shown() === before) return;
  window.times.push((performance.now() - pressed) / 1000);
  pressed = null;
}).observe(document.getElementById('frame'), { childList: true, attributes: true, subtree: true }); }"""
ACTS = """performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/api/act'))
  .map((entry) => entry.duration / 1000)"""


def in_chromium(port: int, cookie: str, folder: Path) -> dict[str, Any]:
    """Press keys and confirm grids; seconds of each, and megabytes."""
    from playwright.sync_api import sync_playwright

    name, value = cookie.split("=", 1)
    address = f"http://127.0.0.1:{port}"
    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(folder / "profile"), executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"],
            viewport={"width": 1920, "height": 1080},
        )  # fmt: skip
        context.add_cookies([{"name": name, "value": value, "url": address}])
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        _press(page, "Shift+G", ".tile", 60)
        page.keyboard.press("Shift+I")
        page.evaluate(WATCH)
        for number in range(KEYS):
            page.keyboard.press(str(1 + number % 9))
            page.wait_for_timeout(PAUSE)
        times = page.evaluate("window.times")
        acts = page.evaluate(ACTS)
        for _ in range(GRIDS):
            _press(page, "Shift+G", ".tile:not(.done)", 30)
            page.keyboard.press("Enter")
            page.wait_for_timeout(2 * PAUSE)
        tools = context.new_cdp_session(page)
        tools.send("Performance.enable")
        figures = {item["name"]: item["value"] for item in tools.send("Performance.getMetrics")["metrics"]}
        heap = figures["JSHeapUsedSize"] / 2**20
        memory = renderer_memory(folder / "profile")
        context.close()
    return {
        f"Chromium: from a key to the next image, median (90 %) of {len(times)}": times,
        "Chromium: answer of the server to a key, median (90 %)": acts,
        "Chromium: memory of the page's process (PSS), of its scripts": f"{memory:.0f} MB, {heap:.0f} MB",
    }


def _press(page: Any, key: str, wanted: str, seconds: float) -> None:
    """Press a key and wait until there is something to see."""
    page.keyboard.press(key)
    end = time.monotonic() + seconds
    while not page.evaluate(f"document.querySelectorAll('{wanted}').length") and time.monotonic() < end:
        page.wait_for_timeout(50)


def renderer_memory(profile: Path) -> float:
    """Megabytes of the largest process that shows a page of the Chromium with this profile."""
    parents = {}
    commands = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_text()
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    roots = {pid for pid, line in commands.items() if f"--user-data-dir={profile}" in line}

    def inside(pid: int) -> bool:
        while pid in parents and pid not in roots:
            pid = parents[pid]
        return pid in roots

    pages = [pid for pid, line in commands.items() if "--type=renderer" in line and inside(pid)]
    return max((pss(pid) for pid in pages), default=float("nan"))


def pss(process: int) -> float:
    """Megabytes of a process; what several share is counted in parts. 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
