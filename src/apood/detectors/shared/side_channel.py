"""What the detectors share that look at one channel beside the tokens: they learn nothing, and check its rows."""

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.fitting.checkpoint import Checkpoint
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["LARGEST_LOG_PROBABILITY", "SideChannelDetector", "find_sequences_with", "refuse_row_shape"]

LARGEST_LOG_PROBABILITY = 0.1
"""It is 0, but one that was computed in bfloat16 misses it by this much."""


class SideChannelDetector(Detector):
    """A detector whose score is a function of one channel: fitting it only checks the data."""

    def _check_shape(self, row: tuple[int, ...]) -> None:
        """Refuses a channel whose rows do not have the shape that the method reads."""
        raise NotImplementedError

    def _find_wrong(self, rows: Ragged) -> tuple[Tensor, str]:
        """Which sequences have rows that cannot be, though finite, and what is wrong with them."""
        raise NotImplementedError

    def _score_rows(self, rows: Ragged) -> Tensor:
        """Scores `[sequences]` from the rows of the channel, float64 on the CPU."""
        raise NotImplementedError

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        """Nothing is left to do: `fit` has checked the data."""

    def _score(self, tokens: TokenBatch) -> Tensor:
        return self._score_rows(self._rows(tokens).to("cpu", torch.float64))

    def _rows(self, batch: TokenBatch) -> Ragged:
        (channel,) = self.requires
        return batch.channels[channel]

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        rows = self._rows(batch)
        self._check_shape(tuple(rows.values.shape[1:]))
        wrong, what = self._find_wrong(rows)
        if bool(wrong.any()):
            raise InputError(f"Sequence {first + int(wrong.nonzero()[0])} of {where} has {what}.")


def refuse_row_shape(channel: str, row: tuple[int, ...], wanted: tuple[int, ...], meaning: str) -> None:
    """Refuses a channel whose rows have another shape than `wanted`."""
    if row != wanted:
        raise InputError(f"A row of {channel} must be {meaning}, of shape {list(wanted)}, got shape {list(row)}.")


def find_sequences_with(marked: Tensor, rows: Ragged) -> Tensor:
    """Which sequences have a marked row, `[sequences]`; `marked` has an entry a row."""
    counts = torch.cat([torch.zeros(1, dtype=torch.int64), marked.cpu().long().cumsum(0)])
    return counts[rows.offsets].diff() > 0
