"""Explanations of scores: what each token, head and member contributes, and the nearest training sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import TokenSource, mark_kept, token_budget, trim_ends

__all__ = ["Explanation", "MemberShare", "explain_source"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """What the tokens of sequences contribute to their scores.

    Attributes:
        contributions: a number per token, float64; positive if it makes the sequence look out-of-distribution, 0 for a
            token that is left out.
        totals: what the contributions of each sequence sum to, `[N]`, float64: the distance behind the score. For a
            fusion it is the part of minus the score that comes from members that explain theirs.
        heads: the contributions of the tokens per head, `[tokens, M]`, float64; None if the method has no heads.
        neighbours: the numbers of the nearest training sequences, `[N, k]`, nearest first; None if the method has none.
        members: the members of a fusion.
    """

    contributions: Ragged
    totals: Tensor
    heads: Ragged | None = None
    neighbours: Tensor | None = None
    members: "tuple[MemberShare, ...]" = ()

    @property
    def explained(self) -> Tensor:
        """The share of what speaks against each sequence that the contributions explain, `[N]`, from 0 to 1.

        What speaks against a sequence is the sum of the positive shares of all members. The share is 1 for a single
        method, and for a sequence that no member speaks against.
        """
        return self.find_explained(range(len(self.members)))

    def find_explained(self, numbers: Sequence[int]) -> Tensor:
        """Return the share of what speaks against each sequence that some members explain, given their numbers."""
        if not self.members:
            return torch.ones_like(self.totals)
        total = torch.stack([member.share.clamp_min(0) for member in self.members]).sum(0)
        known = torch.zeros_like(total)
        for member in (self.members[number] for number in numbers):
            known += 0 if member.parts is None else member.share.clamp_min(0) * member.parts.explained
        return torch.where(total > 0, known / total, 1.0)


@dataclass(frozen=True, eq=False)
class MemberShare:
    """What one member of a fusion adds to its scores.

    Attributes:
        name: the name of the member.
        share: z_k `[N]`, float64: what the member adds to minus the score of each sequence.
        parts: the member's own explanation, whose contributions sum to its own distance; None if it has none.
        contributions: the contributions of the tokens to `share`, a number per token; None if `parts` is None.
    """

    name: str
    share: Tensor
    parts: Explanation | None = None
    contributions: Ragged | None = None


def explain_source(
    source: TokenSource,
    explain: Callable[[TokenBatch], Explanation],
    check: Callable[[TokenBatch, int], None],
    *,
    first: bool,
    last: bool,
) -> Explanation:
    """Return the explanation of all sequences, batch by batch.

    Args:
        source: the sequences; an empty one has no contributions and a total of 0.
        explain: returns the explanation of a batch without empty sequences and without sinks.
        check: raises `InputError` if a batch has values that are not allowed, given the number of its first sequence.
        first: whether the first token of each sequence is a sink, which contributes 0.
        last: whether the last token is one.
    """
    parts, number = [], 0
    for batch in source.batches(token_budget(source.dim)):
        check(batch, number)
        number += len(batch)
        given = batch.select(batch.lengths > 0)
        if len(given):
            with torch.inference_mode():
                parts.append(_explain_batch(given, explain, first=first, last=last))
    return _join(parts, source.lengths)


def _explain_batch(
    batch: TokenBatch, explain: Callable[[TokenBatch], Explanation], *, first: bool, last: bool
) -> Explanation:
    """Return the explanation of a batch, with contributions of 0 for the sinks that are left out."""
    own = explain(trim_ends(batch, first=first, last=last) if first or last else batch)
    keep = mark_kept(batch.lengths, first=first, last=last)

    def pad(rows: Ragged) -> Ragged:
        values = torch.zeros(len(keep), *rows.values.shape[1:], dtype=torch.float64)
        values[keep] = rows.values.cpu().double().nan_to_num(0.0, 0.0, 0.0)  # of a distance that overflows
        return Ragged(values, batch.offsets)

    heads = None if own.heads is None else pad(own.heads)
    return replace(own, contributions=pad(own.contributions), heads=heads)


def _join(parts: list[Explanation], lengths: Tensor) -> Explanation:
    """Return one explanation of the parts, with the empty sequences that they lack."""
    nonempty = lengths > 0
    totals = torch.zeros(len(lengths), dtype=torch.float64)
    totals[nonempty] = torch.cat([totals[:0], *(part.totals.cpu().double() for part in parts)])
    rows = torch.cat([totals[:0], *(part.contributions.values for part in parts)])
    heads = [part.heads.values for part in parts if part.heads is not None]
    found = [part.neighbours for part in parts if part.neighbours is not None]
    neighbours = torch.full((len(lengths), found[0].shape[1]), -1) if found else None
    if neighbours is not None:
        neighbours[nonempty] = torch.cat(found).cpu()
    return Explanation(
        Ragged.from_lengths(rows, lengths),
        totals,
        Ragged.from_lengths(torch.cat(heads), lengths) if heads else None,
        neighbours,
    )
