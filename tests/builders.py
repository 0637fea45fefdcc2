"""Random data for the tests of the mathematics; everything follows from its seed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from apood.tokens.batch import Ragged, TokenBatch


def random_tokens(
    lengths: Sequence[int], dim: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> TokenBatch:
    """Sequences of standard normal tokens times `scale`."""
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(sum(lengths), dim, generator=generator, dtype=torch.float64)
    return TokenBatch.from_lengths(values.to(dtype), lengths)


def random_queries(
    heads: int, queries: int, dim: int, *, seed: int = 1, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> Tensor:
    """Standard normal queries `[heads, queries, dim]` times `scale`."""
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
    """Sequences as an encoder makes them: correlated tokens around an offset, a topic of their own, ragged.

    The space (offset and correlations) is the same for all seeds. `shift` moves the sequences out of it.
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
    """What a model says of sequences beside their tokens, in every channel less sure the larger `shift` is."""
    generator = torch.Generator().manual_seed(seed)

    def surprise(numbers: int) -> Tensor:
        return (1 + shift) * (0.2 + torch.rand(numbers, generator=generator))

    counts = torch.randint(rows[0], rows[1] + 1, (2, count), generator=generator)
    tokens, samples = counts.sum(1).tolist()
    lengths = torch.randint(3, 13, (samples,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += 6 / (1 + shift)
    return {
        "token_logprobs": Ragged.from_lengths(-surprise(tokens), counts[0]),
        "sample_logprobs": Ragged.from_lengths(torch.stack([-surprise(samples) * lengths, lengths], 1), counts[1]),
        "logits": Ragged.from_lengths(logits, [1] * count),
    }


def observed_sequences(
    count: int, dim: int = 8, *, seed: int = 0, lengths: tuple[int, int] = (1, 12), shift: float = 0.0
) -> TokenBatch:
    """`correlated_sequences` with everything that a method may look at: data for methods of every kind."""
    tokens = correlated_sequences(count, dim, seed=seed, lengths=lengths, shift=shift)
    return tokens.with_channels(**side_channels(count, seed=seed, rows=lengths, shift=shift))
