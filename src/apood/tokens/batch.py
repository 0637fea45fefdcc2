"""Ragged sequences in memory: flat rows and the offsets of the sequences, without padding."""

import contextlib
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.documents import WINDOW
from apood.tokens.identity import EncoderIdentity, describe_encoder, same_encoder

__all__ = [
    "FLOAT_DTYPES",
    "FROM_TEXTS",
    "Ragged",
    "TokenBatch",
    "as_indices",
    "cut_by_budget",
    "decode_texts",
    "dtype_name",
    "empty_rows",
    "encode_texts",
    "list_run_rows",
    "pin",
    "upload",
    "view_bytes",
]

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FROM_TEXTS = "detectors take token embeddings, which TextEncoder or `apood embed` makes of texts"

_MOST_SEQUENCES = 1024  # per batch, because channels can be far larger than the tokens that a budget counts
_LEAST_HUGE = 2**22  # bytes: less memory is not worth huge pages
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of rows: sequence i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: the rows of all sequences, one sequence after the other.
        offsets: where each sequence starts, and the number of rows at the end: int64, always on the CPU.
    """

    values: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim < 1:
            raise InputError("values must have rows to cut into sequences, got a single number.")
        offsets = self.offsets
        if offsets.ndim != 1 or len(offsets) < 1 or offsets.dtype != torch.int64 or offsets.device.type != "cpu":
            raise InputError(
                f"offsets must be a one-dimensional int64 CPU tensor with one entry more than there are sequences, "
                f"got {offsets.dtype} of shape {tuple(offsets.shape)} on {offsets.device}."
            )
        rows, bounds = len(self.values), offsets.numpy()  # numpy is ten times as fast on a few numbers
        if bounds[0] != 0 or bounds[-1] != rows or (bounds[1:] < bounds[:-1]).any():
            raise InputError(
                f"offsets must rise from 0 to the number of rows ({rows}), got {bounds[0]} to {bounds[-1]}."
            )
        # The encoder is frozen, so a graph that its output still belongs to is of no use.
        object.__setattr__(self, "values", self.values.detach())

    @classmethod
    def from_lengths(cls, values: Any, lengths: Sequence[int] | Tensor) -> Self:
        """Cut `values` (torch or numpy) into consecutive sequences of the given lengths."""
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        np.cumsum(torch.as_tensor(lengths, dtype=torch.int64, device="cpu").numpy(), out=offsets.numpy()[1:])
        return cls(_as_tensor(values, "The rows of sequences"), offsets)

    @property
    def lengths(self) -> Tensor:
        """The number of rows of each sequence, int64."""
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.values, self.lengths.tolist()))

    def sequence(self, index: int) -> Tensor:
        """Return the rows of one sequence, as a view."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        index %= len(self)
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def _rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and offsets of the sequences `indices`, as a view if they are consecutive."""
        lengths = self.lengths[indices]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        if len(indices) and bool((indices.diff() == 1).all()):
            start, stop = int(self.offsets[indices[0]]), int(self.offsets[indices[-1] + 1])
            return self.values[start:stop], offsets
        rows = list_run_rows(self.offsets[:-1][indices], lengths)
        return self.values[rows.to(self.values.device)], offsets

    def select(self, indices: Any) -> Self:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""
        return type(self)(*self._rows(as_indices(indices, len(self))))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the same sequences on another device or in another dtype."""
        return replace(self, values=self.values.to(device=device, dtype=dtype))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return all sequences of all parts, in order."""
        if not parts:
            raise InputError("Nothing to concatenate: the list of batches is empty.")
        return cls.from_lengths(torch.cat([p.values for p in parts]), torch.cat([p.lengths for p in parts]))


@dataclass(frozen=True, eq=False)
class TokenBatch(Ragged):
    """The token embeddings of a batch of sequences, a token source in memory.

    Attributes:
        values: the tokens of all sequences, `[tokens, D]`.
        offsets: where each sequence starts, and the number of tokens at the end: int64, always on the CPU.
        channels: further data by name, each ragged with as many sequences as the batch: `input_ids`, `text`
            (UTF-8 bytes), `token_logprobs`, `logits`, ... The channel `window` numbers the windows of a document.
        encoder: the identity of the encoder that made the tokens, None if unknown.

    Examples:
        >>> import numpy as np
        >>> from apood import TokenBatch
        >>> batch = TokenBatch.from_sequences([np.zeros((3, 8)), np.ones((5, 8))])
        >>> len(batch), batch.dim, batch.lengths.tolist()
        (2, 8, [3, 5])
        >>> batch
        TokenBatch(sequences=2, tokens=8, dim=8, dtype=float64)
        >>> batch[1].shape
        torch.Size([5, 8])
        >>> batch.select([1, 0]).lengths.tolist()
        [5, 3]
    """

    channels: Mapping[str, Ragged] = field(default_factory=dict)
    encoder: EncoderIdentity | None = None

    def __repr__(self) -> str:
        names = f", channels={sorted(self.channels)}" if self.channels else ""
        kind = dtype_name(self.dtype)
        return f"TokenBatch(sequences={len(self)}, tokens={len(self.values)}, dim={self.dim}, dtype={kind}{names})"

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise InputError(f"Token values must have shape [tokens, D], got {tuple(self.values.shape)}.")
        if self.values.dtype not in FLOAT_DTYPES:
            raise InputError(f"Tokens must be {_float_names()}, got {dtype_name(self.values.dtype)}.")
        super().__post_init__()
        for name, channel in self.channels.items():
            if not isinstance(channel, Ragged):
                raise InputError(
                    f"Channel {name!r} must be Ragged, got {type(channel).__name__}; "
                    "Ragged.from_lengths(array, [1] * len(array)) makes one from an array with one row per sequence."
                )
            if len(channel) != len(self):
                raise InputError(f"Channel {name!r} has {len(channel)} sequences, the tokens have {len(self)}.")
        if WINDOW in self.channels:
            _check_windows(self.channels[WINDOW])

    @classmethod
    def from_sequences(cls, sequences: Iterable[Any]) -> "TokenBatch":
        """Make a batch from one 2-D array `[tokens, D]` (numpy or torch, any float dtype) per sequence."""
        tensors = [_as_tokens(sequence, f"sequence {i}") for i, sequence in enumerate(sequences)]
        if not tensors:
            raise InputError("There are no sequences: the list is empty.")
        for i, tensor in enumerate(tensors):
            if tensor.shape[1] != tensors[0].shape[1]:
                raise InputError(
                    f"All sequences must have tokens of one dimension: sequence 0 has D={tensors[0].shape[1]}, "
                    f"sequence {i} has D={tensor.shape[1]}."
                )
        values = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return cls.from_lengths(values, [len(t) for t in tensors])

    @classmethod
    def from_padded(cls, padded: Any, mask: Any = None) -> "TokenBatch":
        """Make a batch of `[sequences, longest, D]` and a mask that is 1 (or true) at real tokens; None keeps all."""
        values = _as_tensor(padded, "Padded tokens")
        if values.ndim != 3 or values.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"Padded tokens must have shape [sequences, longest, D] and be {_float_names()}, "
                f"got {dtype_name(values.dtype)} of shape {tuple(values.shape)}."
            )
        keep = _as_mask(mask, values.shape[:2]).to(values.device)
        return cls.from_lengths(values[keep], keep.sum(1).cpu())

    @classmethod
    def without_tokens(cls, **channels: Ragged) -> "TokenBatch":
        """Make a batch of channels without tokens: `TokenBatch.without_tokens(logits=Ragged(...))`."""
        if not channels:
            raise InputError("Sequences without tokens need at least one channel.")
        return cls.from_lengths(torch.empty(0, 0), [0] * len(next(iter(channels.values())))).with_channels(**channels)

    def with_channels(self, **channels: Ragged) -> "TokenBatch":
        """Return the same sequences with these channels added."""
        return replace(self, channels={**self.channels, **channels})

    @property
    def dim(self) -> int:
        """The dimension D of a token."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tokens."""
        return self.values.dtype

    @property
    def windows(self) -> Tensor | None:
        """The number of each sequence among the windows of its document; None if every sequence is a document."""
        return self.channels[WINDOW].values.long() if WINDOW in self.channels else None

    def __getitem__(self, index: Any) -> "Tensor | TokenBatch":
        return self.sequence(int(index)) if isinstance(index, int | np.integer) else self.select(index)

    def select(self, indices: Any) -> "TokenBatch":
        """Return the sequences `indices` (a slice, integers or booleans) in that order, with their channels."""
        chosen = as_indices(indices, len(self))
        channels = {name: channel.select(chosen) for name, channel in self.channels.items()}
        return TokenBatch(*self._rows(chosen), channels, self.encoder)

    def batches(self, token_budget: int) -> Iterator["TokenBatch"]:
        """Yield consecutive batches of at most `token_budget` tokens; a longer sequence is a batch of its own."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self if stop - start == len(self) else self.select(slice(start, stop))

    @classmethod
    def concatenate(cls, parts: Sequence["TokenBatch"]) -> "TokenBatch":
        """Return all sequences of all parts, in order, with the channels and the encoder that every part has."""
        if len(dims := {p.dim for p in parts}) > 1:
            raise InputError(f"Only batches of one token dimension can be concatenated, got {sorted(dims)}.")
        known = [p.encoder for p in parts if p.encoder is not None]
        for encoder in known[1:]:
            if not same_encoder(known[0], encoder):
                raise InputError(
                    f"Only batches of one encoder can be concatenated, "
                    f"got tokens from {describe_encoder(known[0])} and from {describe_encoder(encoder)}."
                )
        rows = super().concatenate(parts)
        names = set(parts[0].channels).intersection(*(p.channels for p in parts))
        channels = {name: Ragged.concatenate([p.channels[name] for p in parts]) for name in sorted(names)}
        return replace(rows, channels=channels, encoder=known[0] if len(known) == len(parts) else None)


def _check_windows(channel: Ragged) -> None:
    numbers = channel.values
    if numbers.ndim != 1 or numbers.dtype not in (torch.int32, torch.int64) or bool((channel.lengths != 1).any()):
        raise InputError(
            f"Channel {WINDOW!r} numbers the windows of documents: it must have one int32 or int64 per sequence, "
            f"got {dtype_name(numbers.dtype)} of shape {tuple(numbers.shape)} for {len(channel)} sequences."
        )
    if bool((numbers < 0).any()):
        raise InputError(f"Channel {WINDOW!r} numbers windows from 0, got {int(numbers.min())}.")


def as_indices(indices: Any, count: int) -> Tensor:
    """Return a selection among `count` sequences (a slice, integers or booleans) as int64 numbers from 0."""
    if isinstance(indices, slice):
        return torch.from_numpy(np.arange(*indices.indices(count)))
    chosen = _as_tensor(indices, "A selection of sequences").cpu()
    if chosen.dtype == torch.bool:
        if chosen.shape != (count,):
            raise InputError(
                f"A boolean selection must have one entry for each of the {count} sequences, "
                f"got shape {tuple(chosen.shape)}."
            )
        return chosen.nonzero().flatten()
    if chosen.numel() and (chosen.is_floating_point() or chosen.is_complex()):
        raise InputError(f"Sequence indices must be integers or booleans, got {dtype_name(chosen.dtype)}.")
    chosen = chosen.to(torch.int64).flatten()
    if not bool(((chosen >= -count) & (chosen < count)).all()):
        raise InputError(
            f"Sequence indices must lie in [{-count}, {count}), got {int(chosen.min())} to {int(chosen.max())}."
        )
    return chosen % max(count, 1)


def list_run_rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the row numbers of consecutive runs: run i has `lengths[i]` rows and begins at row `starts[i]`."""
    shifts = starts - (lengths.cumsum(0) - lengths)
    return torch.arange(int(lengths.sum())) + shifts.repeat_interleave(lengths)


def cut_by_budget(lengths: Tensor, token_budget: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive sequences with at most `token_budget` tokens; a longer sequence has its own range.

    A range has at most 1,024 sequences.
    """
    if token_budget < 1:
        raise InputError(f"The token budget must be at least 1, got {token_budget}.")
    start = tokens = 0
    for index, length in enumerate(lengths.tolist()):
        if index > start and (tokens + length > token_budget or index - start == _MOST_SEQUENCES):
            yield start, index
            start, tokens = index, 0
        tokens += length
    if start < len(lengths):
        yield start, len(lengths)


def encode_texts(texts: Iterable[str]) -> Ragged:
    """Return texts as a channel: the UTF-8 bytes of each; lone surrogates of broken sources are kept."""
    if isinstance(texts, str):
        raise InputError("A text channel is made of a list of texts, got a single str.")
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = bytearray(b"".join(encoded))
    values = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return Ragged.from_lengths(values, [len(e) for e in encoded])


def decode_texts(channel: Ragged) -> list[str]:
    """Return the texts of a channel that `encode_texts` made."""
    if channel.values.dtype != torch.uint8 or channel.values.ndim != 1:
        raise InputError(
            f"A text channel holds UTF-8 bytes as uint8, got {channel.values.dtype} "
            f"of shape {tuple(channel.values.shape)}."
        )
    return [sequence.cpu().numpy().tobytes().decode("utf-8", "surrogatepass") for sequence in channel]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its prefix, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _float_names() -> str:
    return ", ".join(map(dtype_name, FLOAT_DTYPES))


def _as_tensor(data: Any, what: str) -> Tensor:
    """Return array-like data as a tensor; arrays that torch does not take (read-only, big-endian) are copied."""
    if isinstance(data, Tensor):
        return data.detach()
    try:
        array = np.ascontiguousarray(data)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be an array of numbers, got {type(data).__name__} ({error}).") from error


def _as_tokens(sequence: Any, where: str) -> Tensor:
    if isinstance(sequence, str) or (isinstance(sequence, list) and sequence and isinstance(sequence[0], str)):
        raise InputError(f"Tokens at {where} must be an array of numbers, got text: {FROM_TEXTS}.")
    tensor = _as_tensor(sequence, f"Tokens at {where}")
    if tensor.ndim != 2:
        fix = "; a vector is a sequence of one token as vector[None]" if tensor.ndim == 1 else ""
        raise InputError(f"Tokens must have shape [tokens, D], got {tuple(tensor.shape)} at {where}{fix}.")
    if tensor.dtype not in FLOAT_DTYPES:
        raise InputError(f"Tokens must be {_float_names()}, got {dtype_name(tensor.dtype)} at {where}.")
    return tensor


def _as_mask(mask: Any, shape: Sequence[int]) -> Tensor:
    if mask is None:
        return torch.ones(*shape, dtype=torch.bool)
    keep = _as_tensor(mask, "The mask")
    if tuple(keep.shape) != tuple(shape):
        raise InputError(f"The mask must have shape {tuple(shape)} like the padded tokens, got {tuple(keep.shape)}.")
    if keep.dtype != torch.bool and not bool(((keep == 0) | (keep == 1)).all()):
        raise InputError(f"A mask may hold only 0 and 1 (or booleans), got values from {keep.min()} to {keep.max()}.")
    return keep == 1


def view_bytes(tensor: Tensor) -> Any:
    """Return the memory of a tensor of any dtype as uint8, without a copy if it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def empty_rows(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return uninitialised rows `[count, *shape]` on the CPU, in huge pages if there are many.

    To get small pages from the system costs several times as much as the copy into them.
    """
    size = count * math.prod(shape) * dtype.itemsize
    if size < _LEAST_HUGE or _HUGE is None:
        return torch.empty(count, *shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(_HUGE)
    return torch.frombuffer(memory, dtype=dtype).view(count, *shape)


def pin(values: Tensor, device: torch.device) -> Tensor:
    """Return values in page-locked memory if they are on the CPU and `device` is a GPU, else unchanged."""
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


def upload(numbers: Tensor, device: torch.device) -> Tensor:
    """Return numbers on `device`, without waiting for the work that the device is busy with."""
    return pin(numbers, device).to(device, non_blocking=True)
