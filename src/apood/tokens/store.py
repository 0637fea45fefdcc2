"""Tokens on disk: the format of a store, and how it is read."""

import itertools
import json
import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apood.support.checks import suggest_name
from apood.support.errors import InputError, StoreError
from apood.support.files import read_json, sha256_of, write_json
from apood.tokens.batch import Ragged, TokenBatch, as_indices, cut_by_budget, dtype_name, empty_rows
from apood.tokens.identity import EncoderIdentity

__all__ = [
    "INDEX_FILE",
    "STORED_DTYPES",
    "TOKENS",
    "RowKind",
    "Shard",
    "ShardRecord",
    "StoreIndex",
    "TokenStore",
    "channel_prefix",
    "shard_file",
]

INDEX_FILE = "index.json"
SCHEMA = 1

STORED_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
"""What a shard can hold, with the names that safetensors gives it."""

_BY_NAME = {dtype_name(dtype): dtype for dtype in STORED_DTYPES}


TOKENS = ""
"""The prefix of the two tensors that hold the tokens: `values` and `offsets`."""


def channel_prefix(name: str) -> str:
    """The prefix of the two tensors that hold a channel: `channel.text.values` and `channel.text.offsets`."""
    return f"channel.{name}."


def shard_file(number: int) -> str:
    """The file name of shard `number`."""
    return f"shard-{number:05d}.safetensors"


@dataclass(frozen=True)
class RowKind:
    """What one row of a ragged tensor is: a dtype and a shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """The kind of the rows of `values`."""
        return cls(values.dtype, tuple(values.shape[1:]))

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def empty(self) -> Ragged:
        """No sequences of such rows."""
        return Ragged.from_lengths(torch.empty(0, *self.shape, dtype=self.dtype), [])

    def __str__(self) -> str:
        return dtype_name(self.dtype) + (f" of shape {list(self.shape)}" if self.shape else "")


@dataclass(frozen=True)
class ShardRecord:
    """What the index says of one shard."""

    file: str
    sequences: int
    tokens: int
    channel_rows: Mapping[str, int]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoreIndex:
    """The content of `index.json`: what the tokens are, and the shards that hold them in order.

    `tally` is what whoever makes the store counts on the way, about its first `tally["sequences"]` sequences; empty
    where nothing is counted. `unfinished` says that whoever makes it has not come to the end, and perhaps never will.
    """

    dim: int
    dtype: torch.dtype
    encoder: EncoderIdentity | None
    channels: Mapping[str, RowKind]
    shards: tuple[ShardRecord, ...] = ()
    tally: Mapping[str, int] = field(default_factory=dict)
    unfinished: bool = False

    @property
    def sequences(self) -> int:
        """Sequences in all shards."""
        return sum(shard.sequences for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def kinds(self) -> dict[str, RowKind]:
        """The rows of the ragged tensors in every shard, by the prefix of their names."""
        return {TOKENS: RowKind(self.dtype, (self.dim,))} | {channel_prefix(n): k for n, k in self.channels.items()}

    def write(self, folder: Path) -> None:
        """Replaces the index of `folder` in one step."""
        channels = {n: {"dtype": dtype_name(k.dtype), "shape": k.shape} for n, k in self.channels.items()}
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "dim": self.dim,
            "dtype": dtype_name(self.dtype),
            "sequences": self.sequences,
            "tokens": self.tokens,
            "encoder": self.encoder,
            "channels": channels,
            "shards": [vars(shard) for shard in self.shards],
        }
        if self.tally:
            content["tally"] = dict(self.tally)
        if self.unfinished:
            content["unfinished"] = True
        write_json(folder / INDEX_FILE, content)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The index of `folder`, refused with a sentence when it is missing, damaged or from a newer apood."""
        try:
            content = read_json(folder / INDEX_FILE)
        except (FileNotFoundError, NotADirectoryError) as error:
            what = f"there is no {INDEX_FILE} in it" if folder.is_dir() else "it is not a folder"
            raise StoreError(
                f"{folder} is no token store: {what}."
                if folder.exists()
                else f"There is no token store {str(folder)!r}: nothing is at that path."
            ) from error
        except (OSError, ValueError) as error:
            raise StoreError(f"The {INDEX_FILE} of the token store {folder} cannot be read: {error}.") from error
        try:
            if content["schema"] > SCHEMA:
                raise StoreError(
                    f"The token store {folder} was made by a newer apood: "
                    f"its schema is {content['schema']}, this version reads up to {SCHEMA}."
                )
            return cls._parse(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"The {INDEX_FILE} in {folder} is damaged or does not belong to a token store ({error!r})."
            ) from error

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Self:
        channels = {n: RowKind(_BY_NAME[c["dtype"]], tuple(c["shape"])) for n, c in content["channels"].items()}
        shards = tuple(ShardRecord(**shard) for shard in content["shards"])
        tally = {name: int(count) for name, count in content.get("tally", {}).items()}
        index = cls(
            int(content["dim"]),
            _BY_NAME[content["dtype"]],
            content["encoder"],
            channels,
            shards,
            tally,
            bool(content.get("unfinished", False)),
        )
        if [shard.file for shard in shards] != [shard_file(i) for i in range(len(shards))]:
            raise ValueError("the shards are not numbered from 0")
        if any(shard.channel_rows.keys() != channels.keys() for shard in shards):
            raise ValueError("the shards do not have the same channels")
        if (index.sequences, index.tokens) != (content["sequences"], content["tokens"]):
            raise ValueError("the totals are not the sums over the shards")
        return index


@dataclass(frozen=True)
class Layout:
    """The bytes before the data, where each tensor starts in the file, and the size of the file."""

    head: bytes
    starts: Mapping[str, int]
    nbytes: int


def lay_out(kinds: Mapping[str, RowKind], number: int, sequences: int, rows: Mapping[str, int]) -> Layout:
    """Where everything lies in a shard; the index alone determines it."""
    tensors: dict[str, tuple[int, RowKind]] = {}
    for prefix, kind in kinds.items():
        tensors[f"{prefix}offsets"] = (sequences + 1, RowKind(torch.int64, ()))
        tensors[f"{prefix}values"] = (rows[prefix], kind)
    # The number tells two shards apart that have been swapped.
    header: dict[str, Any] = {"__metadata__": {"shard": str(number)}}
    starts, position = {}, 0
    # The widest dtypes come first, as safetensors does it: every tensor is then aligned to its items.
    for name in sorted(tensors, key=lambda name: (-tensors[name][1].dtype.itemsize, name)):
        count, kind = tensors[name]
        starts[name], position = position, position + count * kind.nbytes
        header[name] = {
            "dtype": STORED_DTYPES[kind.dtype],
            "shape": [count, *kind.shape],
            "data_offsets": [starts[name], position],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return Layout(head, {name: len(head) + start for name, start in starts.items()}, len(head) + position)


def bytes_of(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The memory of a contiguous CPU tensor, because numpy knows no bfloat16."""
    array: np.ndarray[Any, np.dtype[np.uint8]] = tensor.flatten().view(torch.uint8).numpy()
    return array


class Shard:
    """One shard, mapped as long as this object lives, and checked against the index; what it returns is a copy.

    Nobody keeps a map: when the object goes, so do the pages it made resident and its file descriptor,
    and corpora far larger than memory can be read through it shard by shard.
    """

    def __init__(self, folder: Path, index: StoreIndex, number: int) -> None:
        record = index.shards[number]
        self._name = f"Shard {record.file} of the token store {folder}"
        try:
            with (folder / record.file).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise StoreError(f"{self._name} is missing.") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._name} cannot be read: {error}.") from error
        if len(self._map) != record.bytes:
            raise StoreError(
                f"{self._name} has {len(self._map)} bytes where the index records {record.bytes}: "
                "it was cut off or replaced."
            )
        self._kinds, self._sequences = index.kinds, record.sequences
        self._rows = {TOKENS: record.tokens} | {channel_prefix(n): r for n, r in record.channel_rows.items()}
        layout = lay_out(self._kinds, number, self._sequences, self._rows)
        if layout.nbytes != record.bytes or self._map[: len(layout.head)] != layout.head:
            raise StoreError(
                f"{self._name} does not hold what the index records, {record.sequences} sequences with "
                f"{record.tokens} tokens of {self._kinds[TOKENS]} as shard {number}: it was damaged or replaced."
            )
        self._starts = layout.starts

    def offsets(self, prefix: str) -> Tensor:
        """The offsets of one ragged tensor."""
        offsets = self._copy(f"{prefix}offsets", RowKind(torch.int64, ()), [(0, self._sequences + 1)])
        if offsets[0] != 0 or offsets[-1] != self._rows[prefix] or bool((offsets.diff() < 0).any()):
            raise StoreError(f"{self._name} is damaged: '{prefix}offsets' do not rise from 0 to {self._rows[prefix]}.")
        return offsets

    def read(self, prefix: str, sequences: Tensor, out: Tensor | None = None) -> Ragged:
        """The chosen sequences of one ragged tensor, numbered from the start of the shard; their rows go into `out`."""
        offsets = self.offsets(prefix)
        # Neighbours are copied in one go.
        breaks = [0, *((sequences.diff() != 1).nonzero().flatten() + 1).tolist(), len(sequences)]
        ranges = [
            (int(offsets[sequences[start]]), int(offsets[sequences[stop - 1] + 1]))
            for start, stop in itertools.pairwise(breaks)
        ]
        values = self._copy(f"{prefix}values", self._kinds[prefix], ranges, out)
        return Ragged.from_lengths(values, offsets.diff()[sequences])

    def _copy(self, name: str, kind: RowKind, ranges: Sequence[tuple[int, int]], out: Tensor | None = None) -> Tensor:
        """The rows in `ranges`, one range after the other, in `out` or in new memory."""
        rows = empty_rows(sum(b - a for a, b in ranges), kind.shape, kind.dtype) if out is None else out
        source, target = np.frombuffer(self._map, np.uint8)[self._starts[name] :], bytes_of(rows)
        done = 0
        for start, stop in ranges:
            size = (stop - start) * kind.nbytes
            target[done : done + size] = source[start * kind.nbytes : stop * kind.nbytes]
            done += size
        return rows


class TokenStore:
    """The sequences that a `TokenStoreWriter` committed to `folder`.

    Only the lengths are held in memory. What is read is copied out of the shard, which is mapped for
    that moment only; `channels` names those that are read (all by default), because a channel such as
    `logits` can be far larger than the tokens. A store may be opened while it is still written:
    it then ends with the last shard that was committed.
    """

    def __init__(self, folder: str | Path, *, channels: Collection[str] | None = None) -> None:
        self._folder = Path(folder)
        self._index = StoreIndex.read(self._folder)
        self._channels = tuple(self._index.channels) if channels is None else tuple(channels)
        if unknown := sorted(set(self._channels) - set(self._index.channels)):
            raise InputError(
                f"The token store {folder} has no channel {unknown[0]!r}"
                f"{suggest_name(unknown[0], self._index.channels)}; it has {sorted(self._index.channels)}."
            )
        lengths = [torch.empty(0, dtype=torch.int64)]
        for number in range(len(self._index.shards)):
            shard = Shard(self._folder, self._index, number)
            lengths.append(shard.offsets(TOKENS).diff())
        self._lengths = torch.cat(lengths)
        # Shard i holds the sequences from _bounds[i] up to _bounds[i + 1].
        self._bounds = torch.tensor([0, *(shard.sequences for shard in self._index.shards)]).cumsum(0)

    @property
    def folder(self) -> Path:
        """Where the store lies."""
        return self._folder

    @property
    def index(self) -> StoreIndex:
        """What its index said when it was opened."""
        return self._index

    @property
    def dim(self) -> int:
        """D, the length of a token."""
        return self._index.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""
        return self._index.dtype

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""
        return self._index.encoder

    @property
    def lengths(self) -> Tensor:
        """Tokens in each sequence, int64."""
        return self._lengths

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return self._index.tokens

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are read beside the tokens."""
        return self._channels

    def __len__(self) -> int:
        return len(self._lengths)

    def __repr__(self) -> str:
        return f"TokenStore({str(self.folder)!r}, sequences={len(self)}, tokens={self.tokens}, dim={self.dim})"

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self.select(slice(start, stop))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices` (slice, integers or booleans) in that order, with their channels."""
        chosen = as_indices(indices, len(self))
        if bool((chosen.diff() >= 0).all()):
            return self._read(chosen)
        # Every shard is visited once, in the order of the file; the asked order is made in memory.
        ascending, order = chosen.sort(stable=True)
        return self._read(ascending).select(order.argsort())

    def _read(self, ascending: Tensor) -> TokenBatch:
        lengths = self._lengths[ascending]
        # The tokens of all shards go straight to their place: a batch can be a good part of the memory there is.
        values = empty_rows(int(lengths.sum()), (self.dim,), self.dtype)
        channels = {name: [self._index.kinds[channel_prefix(name)].empty()] for name in self._channels}
        cuts = torch.searchsorted(ascending, self._bounds).tolist()
        done = 0
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if start == stop:
                continue
            shard = Shard(self._folder, self._index, number)
            sequences = ascending[start:stop] - self._bounds[number]
            rows = values[done : done + int(lengths[start:stop].sum())]
            shard.read(TOKENS, sequences, out=rows)
            done += len(rows)
            for name, parts in channels.items():
                parts.append(shard.read(channel_prefix(name), sequences))
        joined = {name: Ragged.concatenate(parts) for name, parts in channels.items()}
        return TokenBatch(values, Ragged.from_lengths(values, lengths).offsets, joined, self.encoder)

    def verify(self) -> None:
        """Recomputes the checksum of every shard; reads the whole store."""
        for record in self._index.shards:
            name = f"Shard {record.file} of the token store {self._folder}"
            try:
                found = sha256_of(self._folder / record.file)
            except OSError as error:
                raise StoreError(f"{name} cannot be read: {error}.") from error
            if found != record.sha256:
                raise StoreError(f"{name} is not the one that was written: its checksum differs from the index.")
