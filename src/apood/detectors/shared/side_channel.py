"""The base of detectors that score one channel beside the tokens: they learn nothing, and check its rows."""

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.fitting.optimise import Checkpoint
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["LARGEST_LOG_PROBABILITY", "SideChannelDetector", "find_sequences_with", "refuse_row_shape"]

LARGEST_LOG_PROBABILITY = 0.1
"""The bound is 0, but log-probabilities computed in bfloat16 exceed it by up to this much."""


class SideChannelDetector(Detector):
    """A detector whose score is a function of one channel; fitting it only checks the data."""

    def _check_shape(self, row: tuple[int, ...]) -> None:
        """Raise `InputError` if the rows of the channel do not have the shape that the method needs."""
        raise NotImplementedError

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        """Return which sequences have impossible, though finite, rows, and what is wrong with them."""
        raise NotImplementedError

    def _score_rows(self, rows: Ragged) -> Tensor:
        """Return scores `[sequences]` from the rows of the channel, which are float64 on the CPU."""
        raise NotImplementedError

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        """Do nothing, because `fit` has checked the data."""

    def _score(self, tokens: TokenBatch) -> Tensor:
        return self._score_rows(self._get_rows(tokens).to("cpu", torch.float64))

    def _get_rows(self, batch: TokenBatch) -> Ragged:
        (channel,) = self.requires
        return batch.channels[channel]

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        rows = self._get_rows(batch)
        self._check_shape(tuple(rows.values.shape[1:]))
        wrong, what = self._find_wrong(rows)
        if bool(wrong.any()):
            raise InputError(f"Sequence {first + int(wrong.nonzero()[0])} of {where} has {what}.")


def refuse_row_shape(channel: str, row: tuple[int, ...], wanted: tuple[int, ...], meaning: str) -> None:
    """Raise `InputError` if the rows of a channel do not have the shape `wanted`."""
    if row != wanted:
        raise InputError(f"A row of {channel} must be {meaning}, of shape {list(wanted)}, got shape {list(row)}.")


def find_sequences_with(marked: Tensor, rows: Ragged) -> Tensor:
    """Return which sequences have a marked row, `[sequences]`; `marked` has one entry per row."""
    counts = torch.cat([torch.zeros(1, dtype=torch.int64), marked.cpu().long().cumsum(0)])
    return counts[rows.offsets].diff() > 0
