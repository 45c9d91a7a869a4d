"""A wrapper surrounds a pseudo-labeling method: it corrects the inputs of that method and may add losses."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

from torch import Tensor, nn

from ...errors import UserError
from ...types import Calibrated, Losses, Outputs, PseudoLabels, Step, Task, WeakOutputs
from ..base import PseudoLabeling
from ..fixmatch import FixMatch


class Wrapper(PseudoLabeling):
    """Wraps an unchanged base method. Wrappers may be nested.

    Args:
        base: the method to wrap; FixMatch by default.
    """

    needs_strong: ClassVar[bool] = False
    """Whether the wrapper learns from a strong view, so that the base must have one."""

    def __init__(self, base: PseudoLabeling | None = None) -> None:
        super().__init__()
        self.base = FixMatch() if base is None else base
        name = type(self).__name__
        given = type(self.base).__name__
        reply = f"but {given} has none; choose one such as FixMatch"
        if not isinstance(self.base, PseudoLabeling):
            raise UserError(f"{name} needs a base with pseudo labels, {reply}")
        if self.needs_strong and "strong" not in self.base.views:
            raise UserError(f"{name} needs a base with strong views, {reply}")
        self.views = self.base.views
        self.unlabeled_ratio = self.base.unlabeled_ratio
        self.weight = self.base.weight
        self.lazy_strong = type(self).lazy_strong and self.base.lazy_strong

    def setup(self, model: nn.Module, task: Task) -> None:
        """Set up the base method."""
        self.base.setup(model, task)

    def on_coreset_change(self, ids: Tensor) -> None:
        """Pass the change on to the base method."""
        self.base.on_coreset_change(ids)

    def classifier(self, model: nn.Module) -> nn.Module:
        """The model that predicts at test time, given the averaged model."""
        return self.base.classifier(model) if isinstance(self.base, Wrapper) else model

    def class_thresholds(self) -> Tensor | float | None:
        """The thresholds of the base method."""
        return self.base.class_thresholds()

    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Replace the output of the calibrator; memories may change only while `self.training`."""
        return calibrated

    def margin(self) -> Tensor | None:
        """What to add to the logits of strong views, as of the start of the step; nothing if None."""
        return None

    def wrapper_losses(self, step: "WrappedStep") -> dict[str, Tensor]:
        """Losses to add to those of the base method, from the outputs of this step."""
        return {}

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """The rule of the base method, applied to the corrected probabilities and confidence."""
        return self.base.pseudo_label(self.correct(calibrated, step), step)

    def losses(self, step: Step) -> Iterator[Losses]:
        """The losses of the base method on the corrected step, and those of the wrapper if strong views were used."""
        wrapped = WrappedStep.of(step, self)
        for losses in self.base.losses(wrapped):
            if wrapped.outputs:
                losses.update(self.wrapper_losses(wrapped))
            yield losses


@dataclass
class WrappedStep(Step):
    """The step that the base method receives; it keeps the outputs (`weak`; labeled, then strong) for the wrapper."""

    outer: Step = field(kw_only=True)
    wrapper: Wrapper = field(kw_only=True)
    margin: Tensor | None = field(kw_only=True)
    weak: WeakOutputs | None = field(kw_only=True, default=None)
    outputs: list[Outputs] = field(kw_only=True, default_factory=list)

    @classmethod
    def of(cls, step: Step, wrapper: Wrapper) -> Self:
        """Wrap `step` for the base of `wrapper`."""
        # The margin now: `correct` may change what it depends on before the strong views are computed.
        values = {f.name: getattr(step, f.name) for f in fields(Step)}
        return cls(**values, outer=step, wrapper=wrapper, margin=wrapper.margin())

    def confidence(self, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The corrected output of the calibrator."""
        self.weak = outputs
        return self.wrapper.correct(self.outer.confidence(images, outputs), self)

    def forward_weak_strong(self, weak: Tensor, *inputs: Tensor) -> tuple[WeakOutputs, list[Outputs]]:
        """Outputs for the weak view and the labeled images, and outputs with margin for the strong views."""
        outputs, self.outputs = self.outer.forward_weak_strong(weak, *inputs)
        return outputs, self._with_margin(*self.outputs)

    def forward_strong(self, rows: Tensor) -> list[Outputs]:
        """Outputs for the labeled images, and outputs with margin for `rows` of the strong view."""
        self.outputs = self.outer.forward_strong(rows)
        return self._with_margin(*self.outputs)

    def _with_margin(self, labeled: Outputs, *strong: Outputs) -> list[Outputs]:
        if self.margin is None:
            return [labeled, *strong]
        return [labeled, *(view._replace(logits=view.logits.float() + self.margin) for view in strong)]
