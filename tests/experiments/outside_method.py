"""A detector that is not registered: it enters the benchmark as `outside_method:FirstToken`."""

from typing import Annotated, Any

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector

__all__ = ["FirstToken", "LastToken"]


class FirstToken(Detector):
    """s(Z) = -|z_1 - mean z_1|: the distance of the first token from its mean."""

    name = "first-token"

    mean_: Annotated[Tensor, "D"]

    def _fit(self, source: Any, aux: Any, checkpoint: Any) -> None:  # noqa: ARG002
        self.mean_ = torch.stack([sequence[0].double() for sequence in source.select(slice(None))]).mean(0)

    def _score(self, tokens: Any) -> Tensor:
        first = torch.stack([sequence[0].double() for sequence in tokens])
        return -(first - self.mean_).norm(dim=1)


class LastToken(FirstToken):
    """A class that forgot to give itself a name of its own."""
