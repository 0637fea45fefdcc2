"""Writing of token stores, shard by shard, so that a killed process loses little."""

import contextlib
import hashlib
import json
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apood.support.cloud import CloudAddress, parse_place
from apood.support.cloud_folders import find_work_folder, keep_copy, upload_folder
from apood.support.errors import CloudError, InputError, StoreError
from apood.support.files import LOCK_FILE, atomic_file, is_temporary, lock_folder
from apood.tokens.batch import FLOAT_DTYPES, Ragged, TokenBatch, dtype_name, view_bytes
from apood.tokens.documents import find_documents
from apood.tokens.identity import EncoderIdentity, describe_other, same_encoder
from apood.tokens.store import (
    INDEX_FILE,
    STORED_DTYPES,
    TOKENS,
    RowKind,
    Shard,
    ShardRecord,
    StoreIndex,
    channel_prefix,
    lay_out,
    shard_file,
)

__all__ = ["COMMIT_SECONDS", "TokenStoreWriter", "is_free", "refuse_overflow"]

COMMIT_SECONDS = 30.0
"""The time after which a shard is committed even if it is not full."""

_SHARD_FILE = re.compile(r"shard-\d{5,}\.safetensors")
_SHARDS_AT_ONCE = 4  # checksums and disks are slower than a GPU, so shards are written in parallel


class TokenStoreWriter:
    """A writer that appends batches to the token store `folder`; used in a `with` block.

    A shard is committed by writing its file and then the index, each in one step. Leaving the block without an
    error commits the last shard. After a crash or an error the index says that the store is unfinished, and
    `resume=True` continues after the `sequences` that were committed.

    The first batch decides which channels the store has. Shards that are full depend on the sequences alone, not on
    how they were batched. The windows of a document are in one shard if they were appended in one batch, so that a
    crash cannot leave some of them. If the last commit is `commit_seconds` ago when a batch is appended, the open
    shard is committed as it is, so that a slow producer loses little when it is killed. Up to four full shards are
    written in threads while the next one fills, so that memory holds at most five. They are committed in order. An
    error in such a thread is raised by a later call, at the latest at the end of the block.

    Args:
        folder: the folder of the store: new, empty, or with `resume` that of an interrupted store. A store for the
            cloud, as in `s3://bucket/store`, is written to the user's cache, and uploaded when it is complete.
        dim: the dimension D of a token.
        dtype: the dtype to store tokens in: float16, bfloat16, float32 or float64.
        encoder: the identity of the encoder that makes the tokens, if known.
        shard_bytes: the size at which a shard is full; the document that reaches it is the last one in it.
        commit_seconds: the time after which a shard is committed even if it is not full; infinity for never.
        resume: whether to continue a store that exists already.

    Attributes:
        folder: the folder on this machine that is written to.
        sequences: the number of committed sequences, which survive a crash.
        tally: the last committed counts about the first `tally["sequences"]` sequences; may be empty.

    Examples:
        >>> import numpy as np
        >>> from apood import TokenBatch, TokenStore, TokenStoreWriter
        >>> with TokenStoreWriter("corpus", dim=8) as writer:
        ...     for length in (3, 5):
        ...         writer.append(TokenBatch.from_sequences([np.ones((length, 8), "f4")]))
        >>> TokenStore("corpus").lengths.tolist()
        [3, 5]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dim: int,
        dtype: torch.dtype = torch.float32,
        encoder: EncoderIdentity | None = None,
        shard_bytes: int = 256 * 2**20,
        commit_seconds: float = COMMIT_SECONDS,
        resume: bool = False,
    ) -> None:
        if dim < 1 or shard_bytes < 1:
            raise InputError(f"dim and shard_bytes must be at least 1, got dim={dim} and shard_bytes={shard_bytes}.")
        if not commit_seconds >= 0:
            raise InputError(f"commit_seconds must not be negative, got {commit_seconds}.")
        if dtype not in FLOAT_DTYPES:
            raise InputError(f"Tokens are stored as {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")
        wanted = StoreIndex(dim, dtype, _check_identity(encoder), {}, unfinished=True)
        place = parse_place(folder)
        self._address = place if isinstance(place, CloudAddress) else None
        self._folder = find_work_folder(place)
        if self._address is not None:
            _refuse_occupied(self._address)
        self._shard_bytes, self._commit_seconds = shard_bytes, commit_seconds
        self._committed_at = time.monotonic()
        self._open: list[dict[str, Ragged]] = []
        self._open_bytes = 0
        self._tallies: list[dict[str, int]] = []
        self._writing: deque[Future[None]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        with self._disk_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign_folder()
            self._lock: contextlib.ExitStack | None = self._take_lock()
            try:
                self._index = self._begin(wanted, resume)
                self._shards, self._appended = len(self._index.shards), self._index.sequences
            except BaseException:
                self._release()
                raise

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"The token store {self._folder} cannot be written: {error}.") from error

    def _refuse_foreign_folder(self) -> None:
        if (self._folder / INDEX_FILE).exists():
            return
        for path in sorted(self._folder.iterdir()):
            if path.name != LOCK_FILE and not is_temporary(path):
                raise StoreError(
                    f"The folder {self._folder} is not a token store and holds {path.name!r}; "
                    "a new store needs a new or empty folder."
                )

    def _take_lock(self) -> contextlib.ExitStack:
        """Keep other writers out until the returned stack is closed."""
        lock = contextlib.ExitStack()
        try:
            lock.enter_context(lock_folder(self._folder, wait=False))
        except TimeoutError as error:
            raise StoreError(f"Another writer is at work on the token store {self._folder}.") from error
        return lock

    def _begin(self, wanted: StoreIndex, resume: bool) -> StoreIndex:
        """Return the index to continue from: that of the existing store, or a new one without shards."""
        index = wanted
        if (self._folder / INDEX_FILE).exists():
            if not resume:
                raise StoreError(
                    f"There is already a token store in {self._folder}: resume it with resume=True, "
                    "or delete the folder first to overwrite it."
                )
            index = StoreIndex.read(self._folder)
            self._refuse_other(index, wanted)
            # Opening a shard raises an error if it was cut off or replaced, before more work goes into the store.
            for number in range(len(index.shards)):
                Shard(self._folder, index, number, verify=False)
        known = {shard.file for shard in index.shards}
        for path in self._folder.iterdir():
            if is_temporary(path) or (_SHARD_FILE.fullmatch(path.name) and path.name not in known):
                path.unlink()
        index.write(self._folder)
        return index

    def _refuse_other(self, index: StoreIndex, wanted: StoreIndex) -> None:
        had, has = index.encoder, wanted.encoder
        # Tokens of a known and of an unknown encoder are not mixed in a store.
        is_same = (had is None) == (has is None) and same_encoder(had, has, same_samples=True)
        for name, differs, found, asked in (
            ("dim", index.dim != wanted.dim, str(index.dim), str(wanted.dim)),
            ("dtype", index.dtype != wanted.dtype, dtype_name(index.dtype), dtype_name(wanted.dtype)),
            ("encoder", not is_same, describe_other(had, has), describe_other(has, had)),
        ):
            if differs:
                raise StoreError(
                    f"The token store {self._folder} cannot be resumed with another {name}: "
                    f"it has {found}, got {asked}."
                )

    @property
    def folder(self) -> Path:
        """The folder on this machine that is written to."""
        return self._folder

    @property
    def sequences(self) -> int:
        """The number of committed sequences: those that survive a crash now, all but those of the open shard."""
        self._settle()
        return self._index.sequences

    @property
    def tally(self) -> Mapping[str, int]:
        """The last committed counts (see `count`), about the first `tally["sequences"]` sequences; may be empty."""
        self._settle()
        return self._index.tally

    def append(self, batch: TokenBatch) -> None:
        """Add a copy of the sequences of `batch`; tokens are cast to the dtype of the store."""
        if self._lock is None:
            raise StoreError(f"This writer of the token store {self._folder} is closed and takes no more batches.")
        self._check_tokens(batch)
        channels = self._check_channels(batch)
        if not self._appended:  # later, threads add their shards to the index
            self._index = replace(self._index, channels=channels)
        ragged = {TOKENS: Ragged(batch.values, batch.offsets)}
        ragged |= {channel_prefix(name): channel for name, channel in batch.channels.items()}
        kinds = self._index.kinds
        sizes = torch.zeros(len(batch), dtype=torch.int64)
        for prefix, part in ragged.items():
            sizes += part.lengths * kinds[prefix].nbytes + part.offsets.itemsize
        ends = sizes.cumsum(0)
        stops = torch.from_numpy(np.append(find_documents(batch)[1:], len(batch)))
        start = done = 0
        while start < len(batch):
            reached = min(int(torch.searchsorted(ends, done + self._shard_bytes - self._open_bytes)), len(batch) - 1)
            stop = int(stops[torch.searchsorted(stops, reached, right=True)])
            self._open.append({p: _copy(r.select(slice(start, stop)), kinds[p].dtype) for p, r in ragged.items()})
            self._open_bytes += int(ends[stop - 1]) - done
            self._appended += stop - start
            start, done = stop, int(ends[stop - 1])
            if self._open_bytes >= self._shard_bytes:
                self._write_open()
        if self._open and time.monotonic() - self._committed_at >= self._commit_seconds:
            self._write_open()

    def count(self, **counts: int) -> None:
        """Record counts about all sequences appended so far; they are committed with the last of these."""
        self._tallies.append({"sequences": self._appended} | counts)

    def _check_tokens(self, batch: TokenBatch) -> None:
        dim, dtype = self._index.dim, self._index.dtype
        if batch.dim != dim:
            raise InputError(f"The token store {self._folder} takes tokens of D={dim}, got D={batch.dim}.")
        refuse_overflow(batch.values, dtype)

    def _check_channels(self, batch: TokenBatch) -> Mapping[str, RowKind]:
        """Return the channels of `batch`; raise InputError if they are not those of the sequences before it."""
        known = self._index.channels
        channels = {name: RowKind.of(channel.values) for name, channel in sorted(batch.channels.items())}
        for name, kind in channels.items():
            if kind.dtype not in STORED_DTYPES:
                raise InputError(f"Channel {name!r} cannot be stored as {dtype_name(kind.dtype)}.")
        if self._appended and channels != known:
            raise InputError(
                f"All sequences of the token store {self._folder} have the channels {_describe_channels(known)}, "
                f"got {_describe_channels(channels)}."
            )
        return channels

    def _write_open(self) -> None:
        """Begin to write the open shard."""
        self._settle(_SHARDS_AT_ONCE - 1)
        parts = {prefix: [part[prefix] for part in self._open] for prefix in self._index.kinds}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SHARDS_AT_ONCE, "write")
        before = self._writing[-1] if self._writing else None
        self._writing.append(self._pool.submit(self._commit, self._shards, parts, before))
        self._shards += 1
        self._open, self._open_bytes, self._committed_at = [], 0, time.monotonic()

    def _commit(self, number: int, parts: Mapping[str, list[Ragged]], before: Future[None] | None) -> None:
        with self._disk_errors():
            record = _write_shard(self._folder, self._index, number, parts)
            if before is not None:
                before.result()  # raises if the shard before it failed, because there would be a gap
            index = self._add_tally(replace(self._index, shards=(*self._index.shards, record), unfinished=True))
            index.write(self._folder)
        self._index = index

    def _settle(self, most: int = 0) -> None:
        """Wait until at most `most` shards are being written."""
        try:
            while len(self._writing) > most or (self._writing and self._writing[0].done()):
                self._writing.popleft().result()
        except BaseException:
            self._release()  # to continue would leave a gap; resuming does not
            raise

    def close(self, *, finished: bool = True) -> None:
        """Commit the open shard and release the lock; with `finished` the store is marked as complete."""
        if self._lock is not None and self._open:
            self._write_open()
        self._settle()
        index = self._add_tally(self._index)
        if finished:
            index = replace(index, unfinished=False)
        if self._lock is not None and index != self._index:
            with self._disk_errors():
                index.write(self._folder)
            self._index = index
        uploads = self._address if self._lock is not None and finished else None
        try:
            if uploads is not None:
                self._upload(uploads)
        finally:
            self._release()
        if uploads is not None:
            keep_copy(self._folder, uploads, INDEX_FILE)

    def _upload(self, address: CloudAddress) -> None:
        try:
            upload_folder(self._folder, address, INDEX_FILE)
        except CloudError as error:
            raise CloudError(
                f"{str(error).rstrip('.')}; the token store is complete in {self._folder}, and will be uploaded if its "
                "writing is resumed."
            ) from error

    def _add_tally(self, index: StoreIndex) -> StoreIndex:
        """Return the index with the last tally that covers only its own sequences."""
        known = [tally for tally in list(self._tallies) if tally["sequences"] <= index.sequences]
        return replace(index, tally=known[-1]) if known else index

    def _release(self) -> None:
        self._open = []
        if self._pool is not None:
            self._pool.shutdown()  # full shards are still committed
            self._pool = None
        self._writing.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._release()


def is_free(address: CloudAddress) -> bool:
    """Return whether a store can be written to a folder in a cloud store: at most an interrupted upload is there."""
    return all(map(_SHARD_FILE.fullmatch, address.list_names()))


def _refuse_occupied(address: CloudAddress) -> None:
    if is_free(address):
        return
    if (address / INDEX_FILE).exists():
        raise StoreError(f"There is already a token store in {address}: choose another place.")
    raise StoreError(f"{address} holds something else than a token store: choose another place.")


def refuse_overflow(values: Tensor, dtype: torch.dtype) -> None:
    """Raise InputError if finite tokens become infinite in the dtype in which a store keeps them."""
    if torch.finfo(values.dtype).max <= torch.finfo(dtype).max or not values.numel():
        return
    lowest, highest = values.aminmax()
    largest = torch.maximum(-lowest, highest)
    if largest.isfinite() and largest.to(dtype).isinf():
        raise InputError(
            f"Tokens of magnitude {float(largest):.4g} become infinite as {dtype_name(dtype)}, in which they are "
            "stored: choose a dtype with a wider range."
        )


def _write_shard(folder: Path, index: StoreIndex, number: int, ragged: Mapping[str, Sequence[Ragged]]) -> ShardRecord:
    """Write shard `number` and return its entry in the index; `ragged` has the parts of every ragged tensor.

    The parts are written one by one, so that the shard is not copied in memory. Another thread computes the checksum
    at the same time.
    """
    pieces: dict[str, list[Tensor]] = {}
    rows = {}
    for prefix, parts in ragged.items():
        lengths = torch.cat([part.lengths for part in parts])
        pieces[f"{prefix}offsets"] = [torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])]
        pieces[f"{prefix}values"] = [part.values for part in parts]
        rows[prefix] = int(lengths.sum())
    sequences = sum(map(len, ragged[TOKENS]))
    layout = lay_out(index.kinds, number, sequences, rows)
    blocks: list[bytes | memoryview] = [layout.head]
    blocks += [view_bytes(piece).data for name in layout.starts for piece in pieces[name]]
    with ThreadPoolExecutor(1, "checksum") as other_thread:
        checksum = other_thread.submit(_sha256, blocks)
        with atomic_file(folder / shard_file(number)) as temporary, temporary.open("wb") as file:
            file.writelines(blocks)
    channel_rows = {name: rows[channel_prefix(name)] for name in index.channels}
    return ShardRecord(shard_file(number), sequences, rows[TOKENS], channel_rows, layout.nbytes, checksum.result())


def _sha256(blocks: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _copy(ragged: Ragged, dtype: torch.dtype) -> Ragged:
    """Return a contiguous copy on the CPU, which the caller cannot change before it is written."""
    values = torch.empty(ragged.values.shape, dtype=dtype)
    return Ragged(values.copy_(ragged.values), ragged.offsets)


def _check_identity(encoder: EncoderIdentity | None) -> dict[str, Any] | None:
    """Return an encoder identity as it will be read back; raise InputError if it is not plain JSON."""
    if encoder is None:
        return None
    try:
        identity: dict[str, Any] = json.loads(json.dumps(dict(encoder), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"An encoder identity must be plain JSON, got {encoder} ({error}).") from error
    return identity


def _describe_channels(channels: Mapping[str, RowKind]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in sorted(channels.items())) or "none"
