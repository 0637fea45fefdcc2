"""Rows that a device computes batch by batch, brought back into the order of the items they belong to."""

import torch
from torch import Tensor

from apood.tokens.batch import Ragged

__all__ = ["Gathering"]


class Gathering:
    """Collects the rows of a window of sequences, whose batches come in any order.

    The rows of a batch travel to pinned memory while the device is at the next batch, and only then to their place.

    Args:
        sequences: how many sequences there are; those that no batch names stay empty.
        row: the shape of a row.
        dtype: what rows are kept in.
        lengths: how many rows each sequence has, where that is known before: rows then go to their place at once.
    """

    def __init__(self, sequences: int, row: tuple[int, ...], dtype: torch.dtype, lengths: Tensor | None = None) -> None:
        self._lengths = torch.zeros(sequences, dtype=torch.int64) if lengths is None else lengths
        self._row, self._dtype = row, dtype
        self._values = None if lengths is None else self._empty()
        self._offsets = self._lengths.cumsum(0) - self._lengths
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        self._travelling: tuple[Tensor, Tensor, Tensor, torch.cuda.Event] | None = None

    def add(self, chosen: Tensor, lengths: Tensor, rows: Tensor) -> None:
        """Takes the rows of the sequences `chosen`, one sequence behind the other."""
        if rows.device.type == "cuda":
            host = torch.empty(rows.shape, dtype=self._dtype, pin_memory=True)
            host.copy_(rows.to(self._dtype), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(torch.cuda.current_stream(rows.device))
            self._arrive()
            self._travelling = (chosen, lengths, host, done)
        else:
            self._place(chosen, lengths, rows.to(self._dtype))

    def finish(self) -> Ragged:
        """All sequences in their order."""
        self._arrive()
        if self._values is None:
            self._values = self._empty()
            self._offsets = self._lengths.cumsum(0) - self._lengths
            for part in self._parts:
                self._place(*part)
        return Ragged.from_lengths(self._values, self._lengths)

    def _empty(self) -> Tensor:
        # Outside inference mode, whose tensors could not be trained on.
        with torch.inference_mode(False):
            return torch.empty(int(self._lengths.sum()), *self._row, dtype=self._dtype)

    def _arrive(self) -> None:
        if self._travelling is not None:
            chosen, lengths, rows, done = self._travelling
            done.synchronize()
            self._place(chosen, lengths, rows)
            self._travelling = None

    def _place(self, chosen: Tensor, lengths: Tensor, rows: Tensor) -> None:
        if self._values is None:
            self._parts.append((chosen, lengths, rows))
            self._lengths[chosen] = lengths
            return
        starts = self._offsets[chosen] - (lengths.cumsum(0) - lengths)
        self._values.index_copy_(0, torch.arange(len(rows)) + starts.repeat_interleave(lengths), rows)
