"""Detectors on the logits of a classifier: maximum softmax probability and energy."""

from typing import Any

import torch
from torch import Tensor

from apood.detectors.shared.side_channel import SideChannelDetector
from apood.support.checks import check_number
from apood.support.errors import InputError
from apood.tokens.batch import Ragged

__all__ = ["MSP", "Energy"]


class _OnLogits(SideChannelDetector):
    """The base of both: one row of logits per sequence, divided by a temperature."""

    requires = frozenset({"logits"})

    _least_classes = 1

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_number("temperature", self.temperature, above=0)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the published temperature, and softer ones."""
        return [{"temperature": temperature} for temperature in (1.0, 10.0, 100.0, 1000.0)]

    def _check_shape(self, row: tuple[int, ...]) -> None:
        if len(row) != 1 or row[0] < self._least_classes:
            raise InputError(
                f"{self.name} takes a row of logits of at least {self._least_classes} classes, "
                f"got rows of shape {list(row)}."
            )

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        return rows.lengths > 1, f"more than one row of logits; {self.name} takes exactly one"


class MSP(_OnLogits):
    """Maximum softmax probability: the logarithm of the probability of a classifier's likeliest class.

        s(x) = log max_c softmax(l / T)_c

    Hendrycks & Gimpel 2017 (arXiv 1610.02136), with l the logits that a classifier gives x, in the channel
    `logits`.

    Departures: the logarithm of the probability, computed from the odds against the class. The order of the sequences
    is the same, but the probability itself rounds to 1 for all sequences that the model is sure about.

    Args:
        temperature: T; 1 as published.

    Examples:
        >>> import torch
        >>> from apood import MSP, TokenBatch
        >>> from apood.tokens.batch import Ragged
        >>> logits = Ragged.from_lengths(torch.tensor([[4.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), [1, 1])
        >>> classified = TokenBatch.without_tokens(logits=logits)
        >>> MSP().fit(classified).score_samples(classified).round(3)
        array([-0.036, -1.099])
    """

    name = "msp"

    _least_classes = 2

    def _score_rows(self, rows: Ragged) -> Tensor:
        logits = rows.values / self.temperature
        best, place = logits.max(1, keepdim=True)
        others = logits.scatter(1, place, -torch.inf).logsumexp(1)
        return -torch.nn.functional.softplus(others - best.squeeze(1))


class Energy(_OnLogits):
    """Energy: minus the free energy of a classifier's logits.

        s(x) = T log Σ_c exp(l_c / T)

    Liu et al. 2020 (arXiv 2010.03759), with l the logits that a classifier gives x, in the channel `logits`.

    Departures: none. Nothing is learnt.

    Args:
        temperature: T; 1 as published.

    Examples:
        >>> import torch
        >>> from apood import Energy, TokenBatch
        >>> from apood.tokens.batch import Ragged
        >>> logits = Ragged.from_lengths(torch.tensor([[4.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), [1, 1])
        >>> classified = TokenBatch.without_tokens(logits=logits)
        >>> Energy().fit(classified).score_samples(classified).round(3)
        array([4.036, 2.099])
    """

    name = "energy"

    def _score_rows(self, rows: Ragged) -> Tensor:
        return self.temperature * (rows.values / self.temperature).logsumexp(1)
