"""How well each in-distribution input fits the others, to find foreign ones before a detector learns from them."""

import warnings
from typing import Any

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector, Scores
from apood.detectors.recommended import list_neighbours
from apood.detectors.shared.log_distances import compute_floored_log
from apood.support.errors import DataWarning, FitWarning, InputError
from apood.support.progress import progress_bar
from apood.tokens.documents import count_documents, find_worst, number_documents
from apood.tokens.source import TokenSource, as_source

__all__ = ["audit"]

_LEAST = 20  # documents; fewer have no usual distance
_NEIGHBOURS = 10  # more than the 3 of the default, because foreign texts of one kind are neighbours of each other
_PART = 1024  # sequences that are compared with all others at a time


def audit(X: Any) -> Scores:
    """Return how well each document fits the others; the lowest scores are those of the most foreign ones.

    A detector takes all that it learns from for in-distribution, so a few foreign texts among many make it accept more
    of their kind. This finds them. Look through the documents with the lowest scores, and remove those that do not
    belong.

    The neighbours of the default measure how far a document is on average from the ten nearest others. Its near copies
    do not count. Many foreign texts of one kind fit each other, and are harder to find. The score is minus the mean
    over these members of

        (log d - median) / (third quartile - first quartile).

    It is about 0 for an ordinary document. A long document of several windows has the score of its worst window, so it
    scores lower, the more windows it has.

    Args:
        X: in-distribution sequences: a TokenBatch, a TokenStore, a list of arrays `[tokens, D]`, or padded `(array,
            mask)`.

    Examples:
        >>> import torch
        >>> import apood
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) + torch.tensor([3.0, 0, 0, 0]) for _ in range(50)]
        >>> scores = apood.audit([*inside, torch.full((5, 4), -2.0)])
        >>> int(scores.argmin())
        50
    """
    source = as_source(X)
    if (count := count_documents(source)) < _LEAST:
        raise InputError(f"An audit compares documents with each other, and needs at least {_LEAST}, got {count}.")
    if bool((source.lengths == 0).any()):
        empty = int((source.lengths == 0).nonzero()[0])
        raise InputError(f"Sequence {empty} is empty: remove empty sequences first.")
    members = list_neighbours(k=_NEIGHBOURS, summary="summary" in source.channels)
    documents = torch.from_numpy(number_documents(source))
    unusual = torch.stack([_measure(member, source, documents) for member in members])
    scores = -unusual.mean(0).numpy()
    worst: Scores = scores[find_worst(scores, source)]
    return worst


def _measure(member: Detector, source: TokenSource, documents: Tensor) -> Tensor:
    """Return how unusual each sequence is for a member that has not seen its document, float64.

    Args:
        member: the detector to fit on all sequences.
        source: the sequences.
        documents: the number of the document of each sequence.
    """
    with warnings.catch_warnings():
        # of few sequences for a covariance, which is enough for an order
        warnings.simplefilter("ignore", DataWarning)
        warnings.simplefilter("ignore", FitWarning)
        member.fit(source)
    parts = []
    with progress_bar(len(source), "audit", "seq") as progress:
        for chosen in torch.split(torch.arange(len(source)), _PART):
            left_out = member.score_training(chosen, documents)
            assert left_out is not None
            parts.append(member.log_distances(left_out.scores))
            progress.update(len(chosen))
    logs = torch.cat(parts).double()
    known = logs > compute_floored_log(logs.new_zeros(()))  # others are copies of nearly everything else
    if not bool(known.any()):
        return torch.zeros_like(logs)
    first, median, third = logs[known].quantile(torch.tensor([0.25, 0.5, 0.75], dtype=logs.dtype))
    if third <= first:
        return torch.zeros_like(logs)
    unusual: Tensor = (logs - median) / (third - first)
    return unusual.where(known, 0.0)
