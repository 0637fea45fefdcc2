"""Perplexity of a generated output, or of the input under a causal model."""

import torch
from torch import Tensor

from apood.detectors.shared.side_channel import (
    LARGEST_LOG_PROBABILITY,
    SideChannelDetector,
    find_sequences_with,
    refuse_row_shape,
)
from apood.tokens.batch import Ragged

__all__ = ["Perplexity"]


class Perplexity(SideChannelDetector):
    """s(y) = (1/L) Σ_l log p(y_l | y_<l, x): minus the logarithm of the model's perplexity.

    Ren et al. 2023 (arXiv 2209.15558), for the output y that a conditional language model generates for
    the input x. Of a causal model it may as well be the perplexity of the input: which tokens the
    log-probabilities in the channel `token_logprobs` belong to is the encoder's business.

    Departures: none. Nothing is learnt.
    """

    name = "perplexity"
    requires = frozenset({"token_logprobs"})

    def _check_shape(self, row: tuple[int, ...]) -> None:
        refuse_row_shape("token_logprobs", row, (), "one log-probability")

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        return find_sequences_with(
            rows.values > LARGEST_LOG_PROBABILITY, rows
        ), "token_logprobs above 0, which no log-probability is"

    def _score_rows(self, rows: Ragged) -> Tensor:
        return torch.segment_reduce(rows.values, "mean", lengths=rows.lengths)
