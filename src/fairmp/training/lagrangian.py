"""Predictions that do not use groups: a penalty raised until the target holds (``group_free``)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairmp.errors import check_number
from fairmp.groups import GroupOperator
from fairmp.kernels import softmax
from fairmp.training.penalties import Penalty, Strategy


@dataclass(frozen=True)
class Lagrangian(Strategy):
    r"""A penalty whose weight is a Lagrange multiplier: fair predictions that do not use groups.

    The training loss is

    .. math::
        \mathrm{CE}(F, y) + \lambda \cdot ½\|Δ\, \mathrm{softmax}(F/τ)\|_1,

    with τ a fraction of the spread of the logits, so that the gap is nearly that of decisions.
    After each validation

    .. math::
        \lambda \leftarrow \max(0, \lambda + \rho\,(\mathrm{gap} - \mathrm{target})),

    where the gap is that of decisions on the validation nodes: the weight rises until the target is
    met. The epoch kept is the most accurate of those that meet it; if none does, that of the
    smallest gap, with a warning. Groups are needed in training only.

    Args:
        target: largest gap of decisions on the validation nodes, 0.02 for two points.
        step: ρ.
        temperature: τ relative to the standard deviation of the logits.

    Example:
        >>> Lagrangian(target=0.02).gap_target
        0.02
    """

    target: float = 0.02
    step: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        hint = "give the largest gap you accept, in [0, 1], 0.02 for 2 points"
        check_number("target", self.target, hint, low=0, high=1)
        for name in ("step", "temperature"):
            check_number(name, getattr(self, name), "give a number above 0", low=0, above=True)

    @property
    def gap_target(self) -> float:
        """The target."""
        return self.target

    def begin(self) -> Penalty:
        """Return a penalty of weight 0."""
        return _LagrangianPenalty(self)


class _LagrangianPenalty(Penalty):
    def __init__(self, setting: Lagrangian) -> None:
        self.setting, self.weight = setting, 0.0

    def __call__(self, logits: Tensor, groups: GroupOperator) -> Tensor | None:
        if not self.weight:
            return None
        centred = logits - logits.mean(1, keepdim=True)
        scale = self.setting.temperature * centred.detach().square().mean().sqrt().clamp_min(1e-6)
        return self.weight * groups.gap(softmax(centred / scale)).abs().sum() / 2

    def update(self, val_gap: float) -> None:
        """Raise the weight if the gap is above the target, lower it if it is below."""
        self.weight = max(0.0, self.weight + self.setting.step * (val_gap - self.setting.target))
