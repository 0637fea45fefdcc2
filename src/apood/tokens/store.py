"""Token stores: the files of a store on disk, and how they are read.

A store is a folder of safetensors shards and an `index.json` that lists them.
"""

import hashlib
import itertools
import json
import math
import mmap
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apood.support.checks import suggest_name
from apood.support.cloud import parse_place
from apood.support.cloud_folders import fetch_folder
from apood.support.errors import InputError, StoreError
from apood.support.files import open_regular, read_json, write_json
from apood.tokens.batch import Ragged, TokenBatch, as_indices, dtype_name, empty_rows, view_bytes
from apood.tokens.documents import WINDOW
from apood.tokens.identity import EncoderIdentity
from apood.tokens.source import BaseSource

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
    "find_store",
    "lay_out",
    "shard_file",
]

INDEX_FILE = "index.json"
SCHEMA = 1

STORED_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
"""The dtypes that a shard can hold, with their names in safetensors."""

TOKENS = ""
"""The prefix of the two tensors that hold the tokens: `values` and `offsets`."""

_BY_NAME = {dtype_name(dtype): dtype for dtype in STORED_DTYPES}
_MOST = 2**48  # above the size of any file, and far below where 64-bit integers overflow

_verified: set[tuple[object, ...]] = set()
"""The shards whose checksum was right in this process: the checksum, and what changes when a file is changed."""


def channel_prefix(name: str) -> str:
    """Return the prefix of the two tensors of a channel: `channel.text.values` and `channel.text.offsets`."""
    return f"channel.{name}."


def shard_file(number: int) -> str:
    """Return the file name of shard `number`."""
    return f"shard-{number:05d}.safetensors"


@dataclass(frozen=True)
class RowKind:
    """The dtype and the shape of one row of a ragged tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Return the kind of the rows of `values`."""
        return cls(values.dtype, tuple(values.shape[1:]))

    @property
    def nbytes(self) -> int:
        """The number of bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return dtype_name(self.dtype) + (f" of shape {list(self.shape)}" if self.shape else "")


@dataclass(frozen=True)
class ShardRecord:
    """The entry of one shard in the index.

    Attributes:
        file: the name of the file.
        sequences: the number of sequences.
        tokens: the number of tokens.
        channel_rows: the number of rows of each channel.
        bytes: the size of the file.
        sha256: the checksum of the file.
    """

    file: str
    sequences: int
    tokens: int
    channel_rows: Mapping[str, int]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoreIndex:
    """The content of `index.json`.

    Attributes:
        dim: the dimension D of a token.
        dtype: the dtype of the tokens.
        encoder: the identity of the encoder, None if unknown.
        channels: the dtype and shape of the rows of each channel.
        shards: the shards, in order.
        tally: counts that the writer's user adds about the first `tally["sequences"]` sequences; may be empty.
        unfinished: whether the store is still being written or its writing was interrupted.
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
        """The number of sequences in all shards."""
        return sum(shard.sequences for shard in self.shards)

    @property
    def tokens(self) -> int:
        """The number of tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def kinds(self) -> dict[str, RowKind]:
        """The rows of the ragged tensors in every shard, by the prefix of their names."""
        return {TOKENS: RowKind(self.dtype, (self.dim,))} | {channel_prefix(n): k for n, k in self.channels.items()}

    def write(self, folder: Path) -> None:
        """Replace the index of `folder` in one step."""
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
        """Read the index of `folder`; raise StoreError if it is missing, damaged or from a newer apood."""
        try:
            content = read_json(folder / INDEX_FILE)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not folder.exists():
                raise StoreError(f"There is no token store {str(folder)!r}: nothing is at that path.") from error
            reason = f"there is no {INDEX_FILE} in it" if folder.is_dir() else "it is not a folder"
            raise StoreError(f"{folder} is not a token store: {reason}.") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"The {INDEX_FILE} of the token store {folder} cannot be read: {error}.") from error
        try:
            if content["schema"] > SCHEMA:
                raise StoreError(
                    f"The token store {folder} was made by a newer apood: "
                    f"its schema is {content['schema']}, this version reads up to {SCHEMA}."
                )
            return cls._parse(content)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"The {INDEX_FILE} in {folder} is damaged or does not belong to a token store ({error!r})."
            ) from error

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Self:
        index = cls(
            dim=content["dim"],
            dtype=_BY_NAME[content["dtype"]],
            encoder=content["encoder"],
            channels={n: RowKind(_BY_NAME[c["dtype"]], tuple(c["shape"])) for n, c in content["channels"].items()},
            shards=tuple(ShardRecord(**shard) for shard in content["shards"]),
            tally={name: int(count) for name, count in content.get("tally", {}).items()},
            unfinished=bool(content.get("unfinished", False)),
        )
        if [shard.file for shard in index.shards] != [shard_file(i) for i in range(len(index.shards))]:
            raise ValueError("the shards are not numbered from 0")
        counts: list[Any] = [index.dim, *(size for kind in index.channels.values() for size in kind.shape)]
        for shard in index.shards:
            counts += [shard.sequences, shard.tokens, shard.bytes, *shard.channel_rows.values()]
            if shard.channel_rows.keys() != index.channels.keys() or not isinstance(shard.sha256, str):
                raise ValueError("a shard has other channels or no checksum")
            if shard.channel_rows.get(WINDOW, shard.sequences) != shard.sequences:
                raise ValueError("not every sequence has a window")
        if any(type(count) is not int or not 0 <= count <= _MOST for count in counts):
            raise ValueError("a count is not a whole number of a possible size")
        if index.dim < 1 or any(kind.nbytes > _MOST for kind in index.kinds.values()):
            raise ValueError("a token is empty or a row is too large")
        if not (index.encoder is None or isinstance(index.encoder, dict)):
            raise ValueError("the encoder is not described by an object")
        if (index.sequences, index.tokens) != (content["sequences"], content["tokens"]):
            raise ValueError("the totals are not the sums over the shards")
        return index


@dataclass(frozen=True)
class _Layout:
    """The bytes before the data, the position of each tensor in the file, and the size of the file."""

    head: bytes
    starts: Mapping[str, int]
    nbytes: int


def lay_out(kinds: Mapping[str, RowKind], number: int, sequences: int, rows: Mapping[str, int]) -> _Layout:
    """Return the layout of a shard, which follows from the index alone."""
    tensors: dict[str, tuple[int, RowKind]] = {}
    for prefix, kind in kinds.items():
        tensors[f"{prefix}offsets"] = (sequences + 1, RowKind(torch.int64, ()))
        tensors[f"{prefix}values"] = (rows[prefix], kind)
    # The number reveals two shards that have been swapped.
    header: dict[str, Any] = {"__metadata__": {"shard": str(number)}}
    starts, position = {}, 0
    # The widest dtypes come first, as in safetensors, so that every tensor is aligned to its items.
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
    return _Layout(head, {name: len(head) + start for name, start in starts.items()}, len(head) + position)


class Shard:
    """One shard, checked against the index and mapped into memory for as long as this object lives.

    Its size and header are always checked, its checksum if `verify` is true and this process has not seen the same
    file with the right checksum before. What it returns is a copy. Nobody keeps a map, so the pages and the file
    descriptor go with the object, and corpora far larger than memory can be read shard by shard.
    """

    def __init__(self, folder: Path, index: StoreIndex, number: int, *, verify: bool) -> None:
        record = index.shards[number]
        self._name = f"Shard {record.file} of the token store {folder}"
        try:
            with open_regular(folder / record.file) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                # A file of another size is refused below, and might take for ever to hash.
                intact = len(self._map) != record.bytes or not verify or _has_checksum(file, record.sha256)
        except FileNotFoundError as error:
            raise StoreError(f"{self._name} is missing.") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._name} cannot be read: {error}.") from error
        if len(self._map) != record.bytes:
            raise StoreError(
                f"{self._name} has {len(self._map)} bytes, but the index records {record.bytes}: "
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
        if not intact:
            raise StoreError(f"{self._name} is not the one that was written: its checksum differs from the index.")
        self._starts = layout.starts

    def offsets(self, prefix: str) -> Tensor:
        """Return the offsets of one ragged tensor."""
        offsets = self._copy(f"{prefix}offsets", RowKind(torch.int64, ()), [(0, self._sequences + 1)])
        if offsets[0] != 0 or offsets[-1] != self._rows[prefix] or bool((offsets.diff() < 0).any()):
            raise StoreError(f"{self._name} is damaged: '{prefix}offsets' do not rise from 0 to {self._rows[prefix]}.")
        return offsets

    def read(self, prefix: str, sequences: Tensor, out: Tensor | None = None) -> Ragged:
        """Return some sequences of one ragged tensor, numbered from the start of the shard; `out` takes their rows."""
        offsets = self.offsets(prefix)
        # Neighbouring sequences are copied together.
        breaks = [0, *((sequences.diff() != 1).nonzero().flatten() + 1).tolist(), len(sequences)]
        ranges = [
            (int(offsets[sequences[start]]), int(offsets[sequences[stop - 1] + 1]))
            for start, stop in itertools.pairwise(breaks)
        ]
        values = self._copy(f"{prefix}values", self._kinds[prefix], ranges, out)
        return Ragged.from_lengths(values, offsets.diff()[sequences])

    def _copy(self, name: str, kind: RowKind, ranges: Sequence[tuple[int, int]], out: Tensor | None = None) -> Tensor:
        """Return the rows in `ranges`, one range after the other, in `out` or in new memory."""
        rows = empty_rows(sum(b - a for a, b in ranges), kind.shape, kind.dtype) if out is None else out
        source, target = np.frombuffer(self._map, np.uint8)[self._starts[name] :], view_bytes(rows)
        done = 0
        for start, stop in ranges:
            size = (stop - start) * kind.nbytes
            target[done : done + size] = source[start * kind.nbytes : stop * kind.nbytes]
            done += size
        return rows


def _has_checksum(file: BufferedReader, sha256: str) -> bool:
    """Return whether an open shard has this checksum. A file that had it is read again only after a change.

    The file is read, not the map, whose pages would all count as memory in use.
    """
    status = os.fstat(file.fileno())
    seen = (sha256, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if seen not in _verified:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return False
        _verified.add(seen)
    return True


def find_store(given: str | Path) -> Path:
    """Return the folder of a store on this machine; one in a cloud store is fetched first, and all hashes checked."""
    place = parse_place(given)
    if isinstance(place, Path):
        return place

    def list_files(folder: Path) -> Iterator[str]:
        return (shard.file for shard in StoreIndex.read(folder).shards)

    return fetch_folder(place, INDEX_FILE, list_files, lambda folder: TokenStore(folder).verify())


class TokenStore(BaseSource):
    """A token source on disk: the sequences that a `TokenStoreWriter` committed to `folder`.

    Only the lengths and the numbers of windows are held in memory; what is read is copied from shards that are mapped
    just for that moment. A store that is still being written ends with the last committed shard.

    Opening checks the size and the header of every shard. The first read from a shard in a process also computes its
    checksum, and raises a StoreError if the shard was damaged or changed.

    Args:
        folder: the folder of the store. One in a cloud store, as in `s3://bucket/store`, is read from a copy in the
            user's cache, which is fetched first.
        channels: the channels to read, all by default. A channel such as `logits` can be far larger than the tokens.
        verify: whether the first read from a shard computes its checksum. False returns what a damaged shard holds.

    Attributes:
        folder: the folder of the store, or of its copy.
        index: the content of its index when it was opened.
        dim: the dimension D of a token.
        dtype: the dtype of the tokens.
        lengths: the number of tokens of each sequence, int64.
        encoder: the identity of the encoder that made the tokens, None if unknown.
        channels: the names of the channels that are read beside the tokens.
        windows: the number of each sequence among the windows of its document; None if every sequence is a document.

    Examples:
        >>> import numpy as np
        >>> from apood import TokenBatch, TokenStore, TokenStoreWriter
        >>> with TokenStoreWriter("corpus", dim=8) as writer:
        ...     writer.append(TokenBatch.from_sequences([np.zeros((3, 8), "f4"), np.ones((5, 8), "f4")]))
        >>> store = TokenStore("corpus")
        >>> store
        TokenStore('corpus', sequences=2, tokens=8, dim=8)
        >>> [batch.lengths.tolist() for batch in store.batches(token_budget=5)]
        [[3], [5]]
    """

    def __init__(self, folder: str | Path, *, channels: Collection[str] | None = None, verify: bool = True) -> None:
        self.folder = find_store(folder)
        self._verify = verify
        self.index = StoreIndex.read(self.folder)
        known = self.index.channels
        if unknown := sorted(set(channels or ()) - set(known)):
            raise InputError(
                f"The token store {folder} has no channel {unknown[0]!r}{suggest_name(unknown[0], known)}; "
                f"it has {sorted(known)}."
            )
        nothing = torch.empty(0, dtype=torch.int64)
        lengths, numbers = [nothing], [nothing]
        for number, record in enumerate(self.index.shards):
            shard = Shard(self.folder, self.index, number, verify=False)
            lengths.append(shard.offsets(TOKENS).diff())
            if WINDOW in known:
                numbers.append(shard.read(channel_prefix(WINDOW), torch.arange(record.sequences)).values.long())
        read = known if channels is None else {*channels, *({WINDOW} & known.keys())}
        windows = torch.cat(numbers) if WINDOW in known else None
        super().__init__(
            self.index.dim, self.index.dtype, torch.cat(lengths), self.index.encoder, sorted(read), windows
        )
        # Shard i holds the sequences from _bounds[i] up to _bounds[i + 1].
        self._bounds = torch.tensor([0, *(shard.sequences for shard in self.index.shards)]).cumsum(0)

    @property
    def tokens(self) -> int:
        """The number of tokens of all sequences."""
        return self.index.tokens

    def __repr__(self) -> str:
        return f"TokenStore({str(self.folder)!r}, sequences={len(self)}, tokens={self.tokens}, dim={self.dim})"

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order, with their channels."""
        chosen = as_indices(indices, len(self))
        if bool((chosen.diff() >= 0).all()):
            return self._read(chosen)
        # Every shard is read once, in the order of the file; the sequences are put in order afterwards.
        ascending, order = chosen.sort(stable=True)
        return self._read(ascending).select(order.argsort())

    def _read(self, ascending: Tensor) -> TokenBatch:
        lengths = self.lengths[ascending]
        # The tokens of all shards are copied to their final place, because a batch can take a good part of the memory.
        values = empty_rows(int(lengths.sum()), (self.dim,), self.dtype)
        kinds = {name: self.index.channels[name] for name in self.channels}
        channels = {n: [Ragged.from_lengths(torch.empty(0, *k.shape, dtype=k.dtype), [])] for n, k in kinds.items()}
        cuts = torch.searchsorted(ascending, self._bounds).tolist()
        done = 0
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if start == stop:
                continue
            shard = Shard(self.folder, self.index, number, verify=self._verify)
            sequences = ascending[start:stop] - self._bounds[number]
            rows = values[done : done + int(lengths[start:stop].sum())]
            shard.read(TOKENS, sequences, out=rows)
            done += len(rows)
            for name, parts in channels.items():
                parts.append(shard.read(channel_prefix(name), sequences))
        joined = {name: Ragged.concatenate(parts) for name, parts in channels.items()}
        return TokenBatch(values, Ragged.from_lengths(values, lengths).offsets, joined, self.encoder)

    def verify(self) -> None:
        """Recompute the checksum of every shard, which reads the whole store; raise StoreError if one differs."""
        _verified.clear()
        for number in range(len(self.index.shards)):
            Shard(self.folder, self.index, number, verify=True)
