"""Progress: a bar with rate, remaining time, loss and coverage on a terminal; a few lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm


class Progress:
    """Shows how a run goes. Off-terminal output stays at about ten lines a run."""

    def __init__(self, steps: int, start: int, shown: bool, refresh: int = 10) -> None:
        self.steps, self.shown, self.refresh = steps, shown, refresh
        self.terminal = sys.stderr.isatty()
        bar = shown and self.terminal
        self.bar = tqdm(total=steps, initial=start, disable=not bar, unit="step", dynamic_ncols=True)
        self.said = start

    def due(self, step: int) -> bool:
        """Whether the bar should show new figures: seldom enough not to make the device wait."""
        return not self.bar.disable and step % self.refresh == 0

    def advance(self, figures: dict[str, Any] | None = None) -> None:
        """One step further."""
        self.bar.update()
        if figures:
            self.bar.set_postfix_str(brief(figures), refresh=False)

    def back_to(self, step: int) -> None:
        """Some steps are taken again."""
        self.bar.n = step
        self.said = min(self.said, step)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Tell an evaluation."""
        line = f"step {step}/{self.steps}: {brief(figures)}"
        if not self.bar.disable:
            self.bar.write(line)
        elif self.shown and (step == self.steps or step - self.said >= self.steps / 10):
            print(line, flush=True)
            self.said = step

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()


def brief(figures: dict[str, Any]) -> str:
    """The figures worth a glance, rates in percent."""
    losses = [f"{name.removeprefix('loss_')} {v:.3f}" for name, v in figures.items() if name.startswith("loss_")]
    error = "validation error" if figures.get("evaluated_on") == "validation" else "error"
    rates = [
        f"{label} {100 * figures[name]:.1f} %"
        for name, label in (
            ("error", error),
            ("ece", "ECE"),
            ("pseudo_label_coverage", "coverage"),
            ("pseudo_label_precision", "precision"),
        )
        if isinstance(figures.get(name), float) and figures[name] == figures[name]
    ]
    return ", ".join([*rates, *losses])
