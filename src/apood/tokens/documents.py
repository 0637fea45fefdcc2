"""Documents: what a user gives and gets one decision for. A long one is several sequences, its windows."""

from collections.abc import Sized
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["WINDOW", "count_documents", "find_documents", "find_worst", "make_document_mask", "number_documents"]

WINDOW = "window"
"""The channel with the number of each sequence among the windows of its document, from 0: one integer per sequence.

Numbers within a document need no change if sources are joined, cut or reordered document by document.
"""


class _Windowed(Sized, Protocol):
    @property
    def windows(self) -> Tensor | None: ...


def find_documents(source: _Windowed) -> npt.NDArray[np.int64]:
    """Return the number of the first sequence of each document, in ascending order.

    A document is a run of windows that are numbered one after the other. Without numbers, every sequence is one.
    """
    if source.windows is None:
        return np.arange(len(source))
    numbers = source.windows.numpy()
    begins = numbers == 0
    begins[:1] = True
    begins[1:] |= numbers[1:] != numbers[:-1] + 1  # the windows before it were left out
    return np.flatnonzero(begins)


def count_documents(source: _Windowed) -> int:
    """Return the number of documents."""
    return len(source) if source.windows is None else len(find_documents(source))


def number_documents(source: _Windowed) -> npt.NDArray[np.int64]:
    """Return the number of the document that each sequence belongs to."""
    starts = find_documents(source)
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=len(source)))


def find_worst(scores: npt.NDArray[np.float64], source: _Windowed) -> npt.NDArray[np.int64]:
    """Return the sequence with the lowest score of each document, the first of equals."""
    if source.windows is None:
        return np.arange(len(source))
    starts, numbers = find_documents(source), number_documents(source)
    lowest = np.flatnonzero(scores == np.minimum.reduceat(scores, starts)[numbers])
    return lowest[np.unique(numbers[lowest], return_index=True)[1]]


def make_document_mask(source: _Windowed, documents: Any) -> Tensor:
    """Return which sequences belong to the documents of these numbers."""
    chosen = np.zeros(count_documents(source), dtype=np.bool_)
    chosen[documents] = True
    return torch.from_numpy(chosen[number_documents(source)])
