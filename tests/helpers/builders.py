"""Random data that follow from a seed, and changes to them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, TokenBatch


def random_tokens(
    lengths: Sequence[int], dim: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> TokenBatch:
    """Return sequences of standard normal tokens times `scale`."""
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(sum(lengths), dim, generator=generator, dtype=torch.float64)
    return TokenBatch.from_lengths(values.to(dtype), lengths)


def random_queries(
    heads: int, queries: int, dim: int, *, seed: int = 1, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> Tensor:
    """Return standard normal queries `[heads, queries, dim]` times `scale`."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(heads, queries, dim, generator=generator, dtype=torch.float64)).to(dtype)


def correlated_sequences(
    count: int,
    dim: int = 8,
    *,
    seed: int = 0,
    lengths: tuple[int, int] = (3, 12),
    shift: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> TokenBatch:
    """Return ragged sequences like those of an encoder: correlated tokens around an offset, one topic per sequence.

    Offset and correlations are the same for all seeds. `shift` moves the sequences out of distribution.
    """
    space = torch.Generator().manual_seed(99)
    mixing = torch.randn(dim, dim, generator=space, dtype=torch.float64) / dim**0.5 + torch.eye(dim).double()
    offset = torch.randn(dim, generator=space, dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.randn(dim, generator=space, dtype=torch.float64), dim=0)
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(lengths[0], lengths[1] + 1, (count,), generator=generator)
    topics = torch.randn(count, dim, generator=generator, dtype=torch.float64).repeat_interleave(counts, 0)
    own = torch.randn(int(counts.sum()), dim, generator=generator, dtype=torch.float64)
    values = (0.7 * topics + own) @ mixing.T + offset + shift * direction
    return TokenBatch.from_lengths(values.to(dtype), counts)


def side_channels(
    count: int, *, seed: int = 0, rows: tuple[int, int] = (1, 8), shift: float = 0.0, classes: int = 5
) -> dict[str, Ragged]:
    """Return the channels of a model, which is less sure, and has less coherent texts, the larger `shift` is."""
    generator = torch.Generator().manual_seed(seed)

    def surprise(numbers: int) -> Tensor:
        return (1 + shift) * (0.2 + torch.rand(numbers, generator=generator))

    counts = torch.randint(rows[0], rows[1] + 1, (2, count), generator=generator)
    tokens, samples = counts.sum(1).tolist()
    lengths = torch.randint(3, 13, (samples,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += 6 / (1 + shift)
    sentences = torch.randint(rows[0] + 1, rows[1] + 2, (count,), generator=generator)  # to compare with each other
    topics = 3 * torch.randn(count, 6, generator=generator).repeat_interleave(sentences, 0)
    vectors = topics + torch.randn(len(topics), 6, generator=generator)
    vectors[sentences.cumsum(0) - sentences] += 3 * shift * torch.randn(count, 6, generator=generator)  # the first ones
    words = torch.randint(3, 20, (len(topics), 1), generator=generator)
    return {
        "sentences": Ragged.from_lengths(torch.cat([words, vectors], 1), sentences),
        "token_logprobs": Ragged.from_lengths(-surprise(tokens), counts[0]),
        "sample_logprobs": Ragged.from_lengths(torch.stack([-surprise(samples) * lengths, lengths], 1), counts[1]),
        "logits": Ragged.from_lengths(logits, [1] * count),
    }


def observed_sequences(
    count: int, dim: int = 8, *, seed: int = 0, lengths: tuple[int, int] = (1, 12), shift: float = 0.0
) -> TokenBatch:
    """Return `correlated_sequences` with the channels that any method may need."""
    tokens = correlated_sequences(count, dim, seed=seed, lengths=lengths, shift=shift)
    return tokens.with_channels(**side_channels(count, seed=seed, rows=lengths, shift=shift))


def part_of(batch: TokenBatch, name: str) -> Ragged:
    """Return the tokens or the channel `name`."""
    return Ragged(batch.values, batch.offsets) if name == "tokens" else batch.channels[name]


def with_part(batch: TokenBatch, name: str, part: Ragged) -> TokenBatch:
    """Return the batch with its tokens or a channel replaced."""
    if name == "tokens":
        return replace(batch, values=part.values, offsets=part.offsets)
    return batch.with_channels(**{name: part})


def with_value(batch: TokenBatch, name: str, sequence: int, row: int, value: float) -> TokenBatch:
    """Return the batch with one number of its tokens or of a channel replaced."""
    part = part_of(batch, name)
    values = part.values.clone()
    values.view(len(values), -1)[int(part.offsets[sequence]) + row, -1] = value
    return with_part(batch, name, Ragged(values, part.offsets))


def with_dtype(batch: TokenBatch, names: Sequence[str], dtype: torch.dtype) -> TokenBatch:
    """Return the batch with the named parts (tokens or channels) in another dtype."""
    for name in names:
        batch = with_part(batch, name, part_of(batch, name).to(dtype=dtype))
    return batch


def with_empty(batch: TokenBatch, name: str, position: int) -> TokenBatch:
    """Return the batch with a sequence inserted at `position` whose part `name` is empty."""
    order = list(range(len(batch)))
    longer = batch.select([*order[:position], 0, *order[position:]])
    part = part_of(longer, name)
    lengths, keep = part.lengths.clone(), torch.ones(len(part.values), dtype=torch.bool)
    lengths[position] = 0
    keep[int(part.offsets[position]) : int(part.offsets[position + 1])] = False
    return with_part(longer, name, Ragged.from_lengths(part.values[keep], lengths))
