"""Sinks: first or last tokens that are nearly the same in all sequences and say nothing about them.

Causal language models park attention on the first token. The mean over layers of a BERT encoder has such a token at its
beginning, the encoder of T5 at its end. A sink adds nothing to a mean but noise, and takes all the attention of every
query that is similar to it. Every method that pools tokens leaves sinks out, by the same rule.

The channel `summary` has a fixed rule of its own: its encoder leaves out the first token of the inputs of a causal
model, and no other. It is a mean that is made before any detector has seen data, one text at a time, so nothing can be
measured by then.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from apood.pooling import Preprocessing
from apood.tokens.batch import TokenBatch, upload
from apood.tokens.loader import Resident
from apood.tokens.source import TokenSource, Trimmed

__all__ = ["Sinks", "draw_probe", "find_sinks", "leave_out", "mark_nonfinite_ends"]

_PROBE_SEQUENCES, _PROBE_ELEMENTS = 256, 2**24  # most sequences and numbers that a property is measured on
_SPREAD = 0.1  # a token is a sink if its variance is below this share of the variance of the other tokens
_LONG = 0.5  # share of the sequences that must keep another token


class Sinks(NamedTuple):
    """Which ends of the sequences are sinks.

    Attributes:
        first: whether the first token is one.
        last: whether the last token is one.
    """

    first: bool = False
    last: bool = False


def find_sinks(source: TokenSource) -> Sinks:
    """Return which ends of the sequences hardly vary between sequences, compared with all other tokens.

    Directions are compared, because lengths may vary freely.
    """
    tokens = draw_probe(source, torch.Generator().manual_seed(0))
    if len(tokens) < 2:
        return Sinks()
    z = Preprocessing(unit=True).apply(tokens.values.float())

    def is_constant(places: Tensor) -> bool:
        other = torch.ones(len(z), dtype=torch.bool)
        other[places] = False
        own, others = (z[upload(rows, z.device)].var(0).sum() for rows in (places, other.nonzero().flatten()))
        return bool(own < _SPREAD * others)

    def have(least: int) -> bool:
        return float((tokens.lengths >= least).double().mean()) >= _LONG

    first = have(2) and is_constant(tokens.offsets[:-1])
    return Sinks(first, have(2 + first) and is_constant(tokens.offsets[1:][tokens.lengths > 0] - 1))


def leave_out(sinks: Sinks, source: TokenSource) -> TokenSource:
    """Return the source without the sinks of each sequence."""
    if not any(sinks):
        return source
    return source.trim(**sinks._asdict()) if isinstance(source, Resident) else Trimmed(source, **sinks._asdict())


def mark_nonfinite_ends(tokens: TokenBatch) -> Tensor:
    """Return 0 per sequence, or NaN if its first or last token is not finite."""
    if len(tokens) == 1:
        ends = tokens.values[:: max(1, len(tokens.values) - 1)]
        return (ends * 0).sum()[None]
    first, last = (upload(places, tokens.values.device) for places in (tokens.offsets[:-1], tokens.offsets[1:] - 1))
    return ((tokens.values[first] * 0) + (tokens.values[last] * 0)).sum(1)


def draw_probe(source: TokenSource, generator: torch.Generator) -> TokenBatch:
    """Return some random sequences: fewer if they are long, but at least one."""
    chosen = torch.randperm(len(source), generator=generator)[:_PROBE_SEQUENCES]
    fits = source.lengths[chosen].cumsum(0) * source.dim <= _PROBE_ELEMENTS
    fits[0] = True
    return source.select(chosen[fits].sort().values)
