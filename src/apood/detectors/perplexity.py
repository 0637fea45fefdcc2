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
    """Perplexity: the mean log-probability that a model gives to the tokens of its output.

        s(y) = (1/L) Σ_l log p(y_l | y_<l, x), minus the logarithm of the perplexity

    Ren et al. 2023 (arXiv 2209.15558), for the output y that a conditional language model generates for the input x.
    With a causal model it can also be the perplexity of the input: the encoder decides which tokens the
    log-probabilities in the channel `token_logprobs` belong to.

    Departures: none. Nothing is learnt.

    Examples:
        >>> import torch
        >>> from apood import Perplexity, TokenBatch
        >>> from apood.tokens.batch import Ragged
        >>> log_probabilities = Ragged.from_lengths(torch.tensor([-1.0, -3.0, -0.5]), [2, 1])
        >>> outputs = TokenBatch.without_tokens(token_logprobs=log_probabilities)
        >>> Perplexity().fit(outputs).score_samples(outputs)
        array([-2. , -0.5])
    """

    name = "perplexity"
    requires = frozenset({"token_logprobs"})

    def _check_shape(self, row: tuple[int, ...]) -> None:
        refuse_row_shape("token_logprobs", row, (), "one log-probability")

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        wrong = find_sequences_with(rows.values > LARGEST_LOG_PROBABILITY, rows)
        return wrong, "token_logprobs above 0, which no log-probability is"

    def _score_rows(self, rows: Ragged) -> Tensor:
        return torch.segment_reduce(rows.values, "mean", lengths=rows.lengths)
