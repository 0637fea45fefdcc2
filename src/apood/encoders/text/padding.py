"""Ragged token ids as padded batches on a device, and where in such a batch each token lies."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, rows_of_runs, upload

__all__ = ["Padded", "batch_tokens", "length_batches", "places"]


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


def batch_tokens(device: torch.device) -> int:
    """How many tokens, padding included, are a good batch for the device."""
    if device.type != "cuda":
        return 2048
    # A MiB a token is enough for the keys and values of models of some billion parameters.
    return min(65536, torch.cuda.get_device_properties(device).total_memory >> 20)


def length_batches(lengths: Tensor, padded_tokens: int, most: int | None = None) -> Iterator[Tensor]:
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
