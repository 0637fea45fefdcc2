"""A row of a table: a method with its parameters, under the name that the paper gives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class
from apood.experiments.paper.study import Study
from apood.experiments.paper.tasks import Mode

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """One row.

    Attributes:
        label: what the table calls it.
        method: its name in the registry, or its class.
        parameters: of its constructor; they come before those that were selected.
        aux: how many AUX sequences it learns from.
        selected: whether it takes the settings of AP-OOD that were chosen on the AUX validation split.
        extra: whether the paper does not have it, so that none of its claims is about it.
    """

    label: str
    method: str | type[Detector]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    aux: int = 0
    selected: bool = False
    extra: bool = False

    @property
    def kind(self) -> type[Detector]:
        """The class of its detector."""
        return detector_class(self.method) if isinstance(self.method, str) else self.method

    def detector(self, study: Study, mode: Mode, seed: int) -> Detector:
        """The detector, not yet fitted."""
        kind = self.kind
        allowed = signature(kind).parameters
        given: dict[str, Any] = {"seed": seed} if "seed" in allowed else {}
        if "steps" in allowed and study.settings.steps is not None:
            given["steps"] = study.settings.steps
        if issubclass(kind, APOOD):
            given["recipe"] = study.recipe
        chosen = study.selected(mode, supervised=self.aux > 0) if self.selected else {}
        return kind(**{**given, **chosen, **self.parameters})
