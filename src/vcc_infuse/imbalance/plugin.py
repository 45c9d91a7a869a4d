"""A plug-in wraps a pseudo-labeling method: it corrects what that method is told, and may add terms to its losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import ClassVar

from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..algorithms.fixmatch import FixMatch
from ..errors import UserError
from ..types import Calibrated, Losses, Outputs, PseudoLabels, Step, Task


class Plugin(PseudoLabeling):
    """Stands between a step and the base method, which stays as it is. Plug-ins may be nested."""

    needs_strong: ClassVar[bool] = False
    """Whether it learns from a strong view, so that the base must show one."""

    def __init__(self, base: PseudoLabeling | None = None) -> None:
        super().__init__()
        self.base = FixMatch() if base is None else base
        name, plugged = type(self).__name__, type(self.base).__name__
        if not isinstance(self.base, PseudoLabeling):
            raise UserError(f"{name} corrects pseudo labels, which {plugged} has not; choose a base such as FixMatch")
        if self.needs_strong and "strong" not in self.base.views:
            raise UserError(f"{name} learns from strong views, which {plugged} has not; choose a base such as FixMatch")
        self.views, self.unlabeled_ratio, self.weight = self.base.views, self.base.unlabeled_ratio, self.base.weight

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build the base method's parts."""
        self.base.setup(model, task)

    def on_coreset_change(self, ids: Tensor) -> None:
        """Pass the core set on."""
        self.base.on_coreset_change(ids)

    def classifier(self, model: nn.Module) -> nn.Module:
        """What predicts at test time, given the averaged model."""
        return self.base.classifier(model) if isinstance(self.base, Plugin) else model

    def class_thresholds(self) -> Tensor | float | None:
        """The base method's."""
        return self.base.class_thresholds()

    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """What the base method is told instead of the calibrator's word; memories may change while training."""
        return calibrated

    def shift(self, strong: Outputs) -> Outputs:
        """What the base method is told instead of the strong view's outputs."""
        return strong

    def extra(self, step: Seen) -> dict[str, Tensor]:
        """Further loss terms, from what the step has seen."""
        return {}

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """The base method's rule, applied to the corrected trust."""
        return self.base.pseudo_label(self.correct(calibrated, step), step)

    def losses(self, step: Step) -> Iterator[Losses]:
        """The base method's losses on the corrected step; further terms where it showed strong views."""
        seen = Seen.of(step, self)
        for losses in self.base.losses(seen):
            if seen.taught:
                losses.update(self.extra(seen))
            yield losses


@dataclass
class Seen(Step):
    """A step as the base method of a plug-in sees it. `taught` remembers the outputs: labeled first, then strong."""

    outer: Step = field(kw_only=True)
    plugin: Plugin = field(kw_only=True)
    taught: list[Outputs] = field(kw_only=True, default_factory=list)

    @classmethod
    def of(cls, step: Step, plugin: Plugin) -> Seen:
        """`step`, seen through `plugin`."""
        return cls(**{f.name: getattr(step, f.name) for f in fields(Step)}, outer=step, plugin=plugin)

    def confidence(self, images: Tensor, outputs: Outputs) -> Calibrated:
        """The calibrator's word, corrected."""
        self.outer.weak = self.weak  # a base may have set it without `teach`
        return self.plugin.correct(self.outer.confidence(images, outputs), self)

    def forward_weak_strong(self, weak: Tensor, *inputs: Tensor) -> tuple[Outputs, list[Outputs]]:
        """Outputs of the weak view, of the labeled images, and shifted ones of the strong views."""
        self.weak, self.taught = self.outer.forward_weak_strong(weak, *inputs)
        labeled, *strong = self.taught
        return self.weak, [labeled, *map(self.plugin.shift, strong)]
