"""TrainingProgress: steps done, time left, loss and coverage; evaluations as lines."""

from __future__ import annotations

from typing import Any

from ..utils.progress import Progress

REFRESH = 10  # steps between two looks at the figures, which make the device wait


class TrainingProgress(Progress):
    """Shows how a run goes. Off a terminal about ten evaluations are told, and what happens in every half minute."""

    def __init__(self, steps: int, start: int, shown: bool) -> None:
        super().__init__("training", steps, "steps", shown, start)
        self.told = start

    def due(self, step: int) -> bool:
        """Whether to read new figures: often enough for the bar, and where a line is due."""
        return self.line_due() if self.bar.disable else step % REFRESH == 0

    def step(self, figures: dict[str, Any] | None = None) -> None:
        """One step further."""
        self.advance(1, brief(figures) if figures else ())

    def back_to(self, step: int) -> None:
        """Some steps are taken again."""
        self.bar.n = self.count = step
        self.told = min(self.told, step)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Tell an evaluation."""
        last = step == self.total
        if not self.bar.disable or last or step - self.told >= self.total / 10 or self.line_due():
            self.say(f"step {step}/{self.total}: {', '.join(brief(figures))}")
            self.told = step


def brief(figures: dict[str, Any]) -> list[str]:
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
    return [*rates, *losses]
