"""Batches of token ids: their sizes, their padding, and the collection of rows that are computed batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, rows_of_runs, upload

__all__ = ["Budget", "Padded", "RowCollector", "batch_by_length", "choose_batch_tokens", "generation_budget", "places"]


@dataclass(frozen=True)
class Padded:
    """Token ids `[sequences, longest]` on a device.

    `mask` is 1 at tokens and 0 at padding, and None where there is no padding: a model computes the same without it,
    and faster. `lengths` lie on the CPU.
    """

    ids: Tensor
    mask: Tensor | None
    lengths: Tensor

    @classmethod
    def of(cls, tokens: Ragged, device: torch.device, *, fill: int, left: bool = False) -> "Padded":
        """Pads on the right, where padding shifts no position and a causal model does not see it; or on the left."""
        lengths, longest = tokens.lengths, int(tokens.lengths.max())
        ids = torch.full((len(tokens), longest), fill, dtype=torch.int64)
        at = places(lengths, longest, first=longest - lengths if left else None)
        ids.view(-1)[at] = tokens.values.to(torch.int64)
        if bool((lengths == longest).all()):
            return cls(upload(ids, device), None, lengths)
        mask = torch.zeros_like(ids)
        mask.view(-1)[at] = 1
        return cls(upload(ids, device), upload(mask, device), lengths)

    @property
    def whole_mask(self) -> Tensor:
        """The mask also where there is no padding."""
        return torch.ones_like(self.ids) if self.mask is None else self.mask


def places(lengths: Tensor, width: int, first: Tensor | None = None) -> Tensor:
    """Where tokens lie in a flattened `[sequences, width]` batch: row i has `lengths[i]` of them from `first[i]` on.

    Computed on the CPU, so that taking them out of a tensor on a device does not wait for the device.
    """
    starts = torch.arange(len(lengths)) * width
    return rows_of_runs(starts if first is None else starts + first, lengths)


def choose_batch_tokens(device: torch.device) -> int:
    """How many tokens, padding included, are a good batch for the device."""
    if device.type != "cuda":
        return 2048
    # A MiB a token is enough for the keys and values of models of some billion parameters.
    return min(65536, torch.cuda.get_device_properties(device).total_memory >> 20)


def batch_by_length(lengths: Tensor, padded_tokens: int, most: int | None = None) -> Iterator[Tensor]:
    """Sequences of similar length together, the longest first, so that too large a batch fails at the start.

    Those of a batch are in their order. Sequences without tokens are in none. No batch has more than `most` sequences.
    """
    order = lengths.argsort(descending=True, stable=True)
    order = order[: int((lengths > 0).sum())]
    start = 0
    while start < len(order):
        count = max(1, padded_tokens // int(lengths[order[start]]))
        count = count if most is None else min(count, most)
        yield order[start : start + count].sort().values
        start += count


_CPU_BYTES = 1 << 30
_ACTIVATIONS = 24  # numbers of the size of a state that a pass needs at once for each token
_LOGIT_BYTES = 24  # for each token of the vocabulary, while one of them is chosen


class Budget(NamedTuple):
    """`tokens` a batch, padding included, where every sequence counts as so many `more` tokens than it has."""

    tokens: int
    more: int


def generation_budget(model: Any, outputs: int, new_tokens: int) -> Budget:
    """For a model that generates so many outputs at once for each prompt, of at most so many tokens each.

    Sizes come from the model's configuration, so they are estimates; half of a GPU's free memory is taken as given.
    """
    config, item = model.config.get_text_config(), model.dtype.itemsize
    dim = _number(config, "hidden_size", 4096)
    layers = max(_number(config, name, 0) for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers"))
    heads = _number(config, "num_attention_heads", 1)
    shared = _number(config, "num_key_value_heads", heads) / heads
    cache = int(2 * max(layers, 1) * dim * shared * item)
    # The keys and values of a prompt are kept beside those of its outputs.
    token = _ACTIVATIONS * dim * item + (outputs + 1) * cache
    output = new_tokens * cache + _LOGIT_BYTES * _number(config, "vocab_size", 1 << 15)
    return Budget(max(1, _memory(model.device) // token), outputs * output // token)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return 1 << (free // 2).bit_length() - 1  # a power of two, so that batches are the same from run to run


def _number(config: Any, name: str, otherwise: int) -> int:
    found = getattr(config, name, None)
    return found if isinstance(found, int) and found > 0 else otherwise


_SMALLEST_COPY = 1 << 16  # bytes; starting a smaller copy from a GPU takes longer than the copy


class RowCollector:
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
