"""Rows that a device computes batch by batch, brought back into the order of the items they belong to."""

from itertools import pairwise

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, rows_of_runs, upload

__all__ = ["Gathering"]

_SMALLEST_COPY = 1 << 16  # bytes; starting a smaller copy from a GPU takes longer than the copy


class Gathering:
    """Collects the rows of a window of sequences, whose batches come in any order.

    Where it is known how many there will be, rows go to their place at once: from a GPU to pinned memory, in a stream
    of their own, while it computes the next batch. Nothing waits for the GPU before `finish`.

    Args:
        sequences: how many sequences there are; those that no batch names stay empty.
        row: the shape of a row.
        dtype: what rows are kept in.
        device: where rows come from.
        lengths: how many rows each sequence has, where that is known before.
    """

    def __init__(
        self,
        sequences: int,
        row: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        lengths: Tensor | None = None,
    ) -> None:
        self._row, self._dtype = row, dtype
        self._lengths = torch.zeros(sequences, dtype=torch.int64) if lengths is None else lengths
        self._stream: torch.cuda.Stream | None = None
        self._values: Tensor | None = None
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        if lengths is None:
            return
        rows = int(lengths.sum())
        row_bytes = dtype.itemsize * torch.Size(row).numel()
        on_gpu = device.type == "cuda"
        # Rows of short sequences stay on the GPU, to be sorted there and to leave it all at once.
        if not on_gpu or rows * row_bytes >= _SMALLEST_COPY * sequences:
            with torch.inference_mode(False):  # whose tensors could not be trained on
                self._values = torch.empty(rows, *row, dtype=dtype, pin_memory=on_gpu)
            self._offsets = lengths.cumsum(0) - lengths
            self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def add(self, chosen: Tensor, lengths: Tensor, rows: Tensor) -> None:
        """Takes the rows of the sequences `chosen`, one sequence behind the other."""
        rows = rows.to(self._dtype)
        if self._values is None:
            self._parts.append((chosen, lengths, rows))
            self._lengths[chosen] = lengths
        elif self._stream is None:
            self._values.index_copy_(0, rows_of_runs(self._offsets[chosen], lengths), rows)
        else:
            self._send(self._values, self._stream, self._offsets[chosen], lengths, rows)

    @staticmethod
    def _send(values: Tensor, stream: torch.cuda.Stream, places: Tensor, lengths: Tensor, rows: Tensor) -> None:
        # Sequences that lie side by side in both travel together.
        breaks = (places[1:] != (places + lengths)[:-1]).nonzero().flatten() + 1
        firsts = [0, *breaks.tolist()]
        starts = [*(lengths.cumsum(0) - lengths)[firsts].tolist(), len(rows)]
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):
            for place, (start, stop) in zip(places[firsts].tolist(), pairwise(starts), strict=True):
                values[place : place + stop - start].copy_(rows[start:stop], non_blocking=True)
        rows.record_stream(stream)

    def finish(self) -> Ragged:
        """All sequences in their order."""
        if self._stream is not None:
            self._stream.synchronize()
        values = self._sorted() if self._values is None else self._values
        return Ragged.from_lengths(values, self._lengths)

    def _sorted(self) -> Tensor:
        if not self._parts:
            return torch.empty(0, *self._row, dtype=self._dtype)
        rows = torch.cat([rows for _, _, rows in self._parts])
        order = torch.cat([chosen for chosen, _, _ in self._parts]).argsort()
        lengths = torch.cat([lengths for _, lengths, _ in self._parts])
        places = rows_of_runs((lengths.cumsum(0) - lengths)[order], lengths[order])
        return rows.index_select(0, upload(places, rows.device)).cpu()
