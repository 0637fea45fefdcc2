"""Batches of token ids: their sizes, their padding, and the collection of rows that are computed batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, rows_of_runs, upload

__all__ = [
    "Budget",
    "Padded",
    "RowCollector",
    "batch_by_length",
    "choose_batch_tokens",
    "estimate_generation_budget",
    "find_places",
]

_CPU_BYTES = 1 << 30
_ACTIVATIONS = 24  # numbers of the size of a state that a pass needs at once per token
_LOGIT_BYTES = 24  # per token of the vocabulary, while the next token is chosen
_SMALLEST_COPY = 1 << 16  # bytes; starting a smaller copy from a GPU takes longer than the copy


@dataclass(frozen=True)
class Padded:
    """Token ids padded to the longest sequence of a batch.

    Attributes:
        ids: `[sequences, longest]`, on a device.
        mask: 1 at tokens and 0 at padding; None if there is no padding, because models are faster without a mask.
        lengths: the number of tokens per sequence, on the CPU.
    """

    ids: Tensor
    mask: Tensor | None
    lengths: Tensor

    @classmethod
    def pad(cls, tokens: Ragged, device: torch.device, *, fill: int, left: bool = False) -> "Padded":
        """Pad on the right, where padding shifts no position and a causal model does not see it, or on the left."""
        lengths, longest = tokens.lengths, int(tokens.lengths.max())
        ids = torch.full((len(tokens), longest), fill, dtype=torch.int64)
        places = find_places(lengths, longest, first=longest - lengths if left else None)
        ids.view(-1)[places] = tokens.values.to(torch.int64)
        if bool((lengths == longest).all()):
            return cls(upload(ids, device), None, lengths)
        mask = torch.zeros_like(ids)
        mask.view(-1)[places] = 1
        return cls(upload(ids, device), upload(mask, device), lengths)

    @property
    def full_mask(self) -> Tensor:
        """The mask, all ones if there is no padding."""
        return torch.ones_like(self.ids) if self.mask is None else self.mask


def find_places(lengths: Tensor, width: int, first: Tensor | None = None) -> Tensor:
    """Return the positions of tokens in a flattened `[sequences, width]` batch.

    Row i has `lengths[i]` tokens from column `first[i]` on (0 by default). Positions are computed on the CPU, so that
    selecting rows of a tensor on a device does not wait for the device.
    """
    starts = torch.arange(len(lengths)) * width
    return rows_of_runs(starts if first is None else starts + first, lengths)


def choose_batch_tokens(device: torch.device) -> int:
    """Return how many tokens, including padding, make a good batch on the device."""
    if device.type != "cuda":
        return 2048
    # 1 MiB per token is enough for the keys and values of models with a few billion parameters.
    return min(65536, torch.cuda.get_device_properties(device).total_memory >> 20)


class Budget(NamedTuple):
    """The size of a batch.

    Attributes:
        tokens: the number of tokens per batch, including padding.
        extra: how many tokens are added to the length of each sequence, to allow for what is generated from it.
    """

    tokens: int
    extra: int


def estimate_generation_budget(model: Any, outputs: int, new_tokens: int) -> Budget:
    """Return the budget of a model that generates `outputs` outputs of at most `new_tokens` tokens per prompt at once.

    A batch is as large as memory permits, because a step of a larger batch takes hardly more time. Sizes are estimated
    from the model's configuration. On a GPU, half of the free memory is used.
    """
    config, item = model.config.get_text_config(), model.dtype.itemsize
    dim = _get_number(config, "hidden_size", 4096)
    layers = max(_get_number(config, name, 0) for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers"))
    heads = _get_number(config, "num_attention_heads", 1)
    shared = _get_number(config, "num_key_value_heads", heads) / heads
    cache = int(2 * max(layers, 1) * dim * shared * item)
    # The keys and values of a prompt are kept beside those of its outputs.
    token = _ACTIVATIONS * dim * item + (outputs + 1) * cache
    output = new_tokens * cache + _LOGIT_BYTES * _get_number(config, "vocab_size", 1 << 15)
    return Budget(max(1, _get_free_memory(model.device) // token), outputs * output // token)


def _get_free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return 1 << (free // 2).bit_length() - 1  # a power of two, so that batches are the same from run to run


def _get_number(config: Any, name: str, default: int) -> int:
    found = getattr(config, name, None)
    return found if isinstance(found, int) and found > 0 else default


def batch_by_length(lengths: Tensor, padded_tokens: int, max_sequences: int | None = None) -> Iterator[Tensor]:
    """Yield the indices of sequences of similar length, batch by batch.

    The longest sequences come first, so that a batch that is too large fails at the start. Indices within a batch
    are sorted. Sequences without tokens are left out.
    """
    order = lengths.argsort(descending=True, stable=True)
    order = order[: int((lengths > 0).sum())]
    start = 0
    while start < len(order):
        count = max(1, padded_tokens // int(lengths[order[start]]))
        count = count if max_sequences is None else min(count, max_sequences)
        yield order[start : start + count].sort().values
        start += count


class RowCollector:
    """Collects rows of sequences, such as states, whose batches are computed in any order.

    If the lengths are known in advance, rows are written to their final place at once. From a GPU they are copied to
    pinned memory in a stream of their own, while the GPU computes the next batch. Only `finish` waits for the GPU.

    Args:
        sequences: the number of sequences; those that no batch contains stay empty.
        row: the shape of a row.
        dtype: the dtype that rows are kept in.
        device: the device that rows come from.
        lengths: the number of rows per sequence, if known in advance.
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
        # Rows of short sequences stay on the GPU, where they are sorted, and leave it in one copy.
        if not on_gpu or rows * row_bytes >= _SMALLEST_COPY * sequences:
            with torch.inference_mode(False):  # tensors made in inference mode could not be trained on
                self._values = torch.empty(rows, *row, dtype=dtype, pin_memory=on_gpu)
            self._offsets = lengths.cumsum(0) - lengths
            self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def add(self, chosen: Tensor, lengths: Tensor, rows: Tensor) -> None:
        """Add the rows of the sequences `chosen`, concatenated."""
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
        # Sequences that are adjacent in both tensors are copied together.
        breaks = (places[1:] != (places + lengths)[:-1]).nonzero().flatten() + 1
        firsts = [0, *breaks.tolist()]
        starts = [*(lengths.cumsum(0) - lengths)[firsts].tolist(), len(rows)]
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):
            for place, (start, stop) in zip(places[firsts].tolist(), pairwise(starts), strict=True):
                values[place : place + stop - start].copy_(rows[start:stop], non_blocking=True)
        rows.record_stream(stream)

    def finish(self) -> Ragged:
        """Return the rows of all sequences in their order, on the CPU."""
        if self._stream is not None:
            self._stream.synchronize()
        values = self._sort_parts() if self._values is None else self._values
        return Ragged.from_lengths(values, self._lengths)

    def _sort_parts(self) -> Tensor:
        if not self._parts:
            return torch.empty(0, *self._row, dtype=self._dtype)
        rows = torch.cat([rows for _, _, rows in self._parts])
        order = torch.cat([chosen for chosen, _, _ in self._parts]).argsort()
        lengths = torch.cat([lengths for _, lengths, _ in self._parts])
        places = rows_of_runs((lengths.cumsum(0) - lengths)[order], lengths[order])
        return rows.index_select(0, upload(places, rows.device)).cpu()
