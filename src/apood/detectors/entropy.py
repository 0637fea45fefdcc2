"""Entropy of the outputs that a model could generate, estimated from samples of them."""

import math
from typing import Any

import torch
from torch import Tensor

from apood.detectors.shared.side_channel import (
    LARGEST_LOG_PROBABILITY,
    SideChannelDetector,
    find_sequences_with,
    refuse_row_shape,
)
from apood.fitting.optimise import Checkpoint
from apood.pooling.algebra import Pooled, merge_sequences
from apood.support.checks import check_number
from apood.tokens.batch import Ragged
from apood.tokens.identity import SAMPLING
from apood.tokens.source import TokenSource

__all__ = ["Entropy", "pool_samples"]

_DRAWN = SAMPLING[0]  # in the identity of encoders that draw samples only


def pool_samples(samples: Tensor, temperature: float) -> Pooled:
    """Return each sample `(log P(y), tokens of y)` as one pool: value -(1/L) log P(y), log mass log P(y) / T.

    `merge_sequences` of them is the entropy of a set of samples, and `merge` gives that of a union of disjoint
    sets: samples may come in any number of chunks.
    """
    log_probability, tokens = samples.unbind(1)
    return Pooled(-log_probability / tokens, log_probability / temperature)


class Entropy(SideChannelDetector):
    """Entropy: minus the entropy of the model's output, estimated from samples of it.

        s(x) = -H, H = -Σ_s π_s (1/L_s) log P(y_s | x), with samples y_s

    Malinin & Gales 2021 (arXiv 2002.07650), sequence-level entropy by Monte Carlo, normalised by length, with
    importance weights π_s ∝ P(y_s | x)^(1/T). The channel `sample_logprobs` holds a row (log P(y_s | x), L_s)
    for each sample.

    The temperature T depends on how the samples were made. Beam search, and any sampling that keeps distinct outputs
    only, shows each output once however likely it is, so each must be weighted by its probability: T = 1, the published
    importance weights. Plain sampling shows likely outputs more often already; with weights on top, the likeliest
    output would dominate and H would be too low. There the plain mean is right: T = ∞ (`temperature=math.inf`, `--set
    temperature=inf`). A T in between smooths the weights of beams of long outputs, where one beam has nearly all the
    probability.

    The published code of AP-OOD, which has this method as a baseline, draws plain samples and takes T = 1 nevertheless.
    `temperature=1` gives the figures that it reports; they are too low as estimates of an entropy.

    Departures: one model instead of an ensemble. Nothing is learnt.

    Args:
        temperature: T of the importance weights; 1 for beams and distinct samples, infinity for plain samples. None
            stands for infinity if an encoder of apood drew the samples, which are plain, and for 1 otherwise.

    Attributes:
        temperature_: T that is used.

    Examples:
        >>> import torch
        >>> from apood import Entropy, TokenBatch
        >>> from apood.tokens.batch import Ragged
        >>> sure = [[-0.1, 2.0], [-6.0, 2.0]]  # (log-probability, number of tokens) of two beams
        >>> unsure = [[-4.0, 2.0], [-4.0, 2.0]]
        >>> beams = Ragged.from_lengths(torch.tensor(sure + unsure), [2, 2])
        >>> outputs = TokenBatch.without_tokens(sample_logprobs=beams)
        >>> Entropy().fit(outputs).score_samples(outputs).round(2)
        array([-0.06, -2.  ])
    """

    name = "entropy"
    requires = frozenset({"sample_logprobs"})

    temperature_: float

    def __init__(self, temperature: float | None = None) -> None:
        self.temperature = temperature

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        if self.temperature is not None and self.temperature != math.inf:
            check_number("temperature", self.temperature, above=0)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return temperatures from the published weights to nearly equal ones."""
        return [{"temperature": temperature} for temperature in (1.0, 10.0, 100.0)]

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        plain = source.encoder is not None and _DRAWN in source.encoder
        self.temperature_ = self.temperature if self.temperature is not None else math.inf if plain else 1.0

    def _check_shape(self, row: tuple[int, ...]) -> None:
        refuse_row_shape("sample_logprobs", row, (2,), "the log-probability of an output and its number of tokens")

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        log_probability, tokens = rows.values.unbind(1)
        wrong = (tokens < 1) | (log_probability > LARGEST_LOG_PROBABILITY * tokens)
        what = "sample_logprobs that are above 0 or belong to an output of less than 1 token"
        return find_sequences_with(wrong, rows), what

    def _score_rows(self, rows: Ragged) -> Tensor:
        return -torch.stack([merge_sequences(pool_samples(samples, self.temperature_)).value for samples in rows])
