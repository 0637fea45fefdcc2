"""Encode a stream of records window by window, and write a resumable token store."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from apood.data.record import BadRecord, Pair, Record, Skipped, Sound, unpack_records
from apood.encoders.base.encoder import Encoder
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch, decode_texts
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

__all__ = ["EmbedCounts", "Window", "embed_to_store", "encode_windows", "limit_records"]


_WINDOW_ITEMS = 1024
_WINDOW_BYTES = 1 << 30
_WINDOW_SECONDS = 15.0  # what an interruption may cost, because a window that is not complete is lost
_FIRST_ITEMS = 64  # of a window, before it is known how long one takes
_SOUND_BYTES = 1 << 28


@dataclass(frozen=True)
class EmbedCounts:
    """What one run of `embed_to_store` did.

    Attributes:
        sequences: records encoded and written.
        tokens: their tokens.
        truncated: how many of them were cut at the encoder's limit.
        empty: how many of them have no tokens at all; fitting refuses such sequences.
        skipped: records that the store already held from an earlier run.
        bad: records that were left out because they cannot be used.
        first_bad: the first few of these.
        outputs_cut: how many of the sequences are outputs as long as `max_new_tokens` allows: cut there, but for the
            few that end with this very token.
    """

    sequences: int
    tokens: int
    truncated: int
    empty: int
    skipped: int
    bad: int = 0
    first_bad: tuple[BadRecord, ...] = ()
    outputs_cut: int = 0


def limit_records(records: Iterable[Record | BadRecord], limit: int) -> Iterator[Record | BadRecord]:
    """The records up to and including the `limit`-th that is not bad."""
    good = 0
    for record in records:
        yield record
        good += isinstance(record, Record)
        if good == limit:
            return


@dataclass(frozen=True)
class Window:
    """Consecutive records, encoded.

    Attributes:
        batch: their states.
        truncated: how many of them were cut at the encoder's limit.
        skipped: how many bad records were skipped up to its end.
    """

    batch: TokenBatch
    truncated: int
    skipped: int


def encode_windows(
    records: Iterable[Record | BadRecord], encoder: Encoder, skipped: Skipped | None = None
) -> Generator[Window]:
    """The states of `records` in order, some at a time: enough to sort them by length, few enough to fit into memory.

    While the encoder runs one window, it prepares the next in another thread.

    Bad records go to `skipped`; without it the first one is an error. What is wrong with a record, or with
    reading, is raised only after all records before it were given out; what goes wrong in the encoder, after the
    windows before.
    """
    reading = _Reading(records, skipped)
    most = max(1, min(_WINDOW_ITEMS, _WINDOW_BYTES // (encoder.max_tokens * encoder.dim * 4)))
    size = min(_FIRST_ITEMS, most)
    # A thread does what worker processes would: compiled tokenizers use all cores by themselves and hold no lock
    # (Python measured beside one keeps all of its speed), while a process has to start and to load them. Records are
    # read in the thread of the caller: another one that waits for standard input could not be interrupted.
    with ThreadPoolExecutor(1, "prepare") as pool:

        def begin() -> "tuple[Future[Any], int] | None":
            items = reading.next_items(size)
            return (pool.submit(encoder.prepare, items), reading.skipped.count) if items else None

        ahead = begin()
        while ahead is not None:
            (preparing, bad), ahead = ahead, begin()
            prepared = preparing.result()
            started = time.perf_counter()
            batch = encoder.run(prepared)
            affordable = int(_WINDOW_SECONDS * len(batch) / max(time.perf_counter() - started, 1e-9))
            size = max(1, min(2 * len(batch), affordable, most))
            yield Window(batch, prepared.cut, bad)
            del batch, prepared, preparing  # a window at rest needs its memory no longer
    if reading.error is not None:
        raise reading.error


class _Reading:
    """Takes items out of records until there are none or one is wrong; the error waits until it is asked for."""

    def __init__(self, records: Iterable[Record | BadRecord], skipped: Skipped | None) -> None:
        self.error: Exception | None = None
        self.skipped = Skipped() if skipped is None else skipped
        self._items = unpack_records(iter(records), skipped)

    def next_items(self, count: int) -> list[Any]:
        """At most `count` items, of sounds as many as fit into memory; none at the end and once something was wrong."""
        items: list[Any] = []
        sound_bytes = 0
        while self.error is None and len(items) < count and sound_bytes < _SOUND_BYTES:
            try:
                item = next(self._items, None)
            except Exception as error:
                self.error = error
                break
            if item is None:
                break
            items.append(item)
            if isinstance(item, Sound):
                sound_bytes += item.samples.nbytes
        return items


def embed_to_store(
    records: Iterable[Record | BadRecord | str],
    encoder: Encoder,
    folder: str | Path,
    *,
    resume: bool = False,
    dtype: torch.dtype = torch.float16,
    skip_bad: bool = False,
    total: int | None = None,
) -> EmbedCounts:
    """Encodes `records` and writes their states and channels to the token store `folder`, in order.

    A plain text stands for a record that holds it. While one window of records is encoded, the next is
    prepared and the one before it is written, each in a thread of its own. A bad record is an error, unless
    `skip_bad` leaves it out; whatever ends a run early, all records encoded by then are in the store. `total`
    is how many good records there are, where that is known, for the time left.

    With `resume`, the same records are given again, and those that the store already holds are skipped without
    being encoded. How many sequences were cut and how many records were bad also stands in the store's index.

    States are kept in float16 by default: half the size of float32, and more exact than bfloat16. What float16
    cannot hold, above 65504, is refused: some middle layers of causal models need bfloat16 or float32.
    """
    if total is None and isinstance(records, Sized):
        total = len(records)
    reading = (Record(r, f"text {i}") if isinstance(r, str) else r for i, r in enumerate(records))
    skipped = Skipped()
    longest: Any = encoder.identity.get("max_new_tokens") if encoder.identity.get("mode") == "output" else None
    sequences = tokens = empty = truncated = outputs_cut = 0
    finished = False
    writer = TokenStoreWriter(folder, dim=encoder.dim, dtype=dtype, encoder=encoder.identity, resume=resume)
    # The writer is closed whatever happens, which commits the open shard: only a kill loses what was encoded.
    try:
        held = writer.sequences
        before = _behind(reading, writer, folder, encoder, skipped if skip_bad else None)
        started = time.perf_counter()
        with (
            closing(encode_windows(reading, encoder, skipped if skip_bad else None)) as windows,
            progress_bar(total, "encoding", unit="rec", initial=held) as progress,
            _InBackground() as background,
        ):
            for window in windows:
                truncated += window.truncated
                tally = None if before is None else {"truncated": before + truncated, "bad": window.skipped}
                background.run(_write, writer, window.batch, tally)
                sequences += len(window.batch)
                tokens += len(window.batch.values)
                empty += int((window.batch.lengths == 0).sum())
                if longest is not None:
                    outputs_cut += int((window.batch.lengths == longest).sum())
                rate = tokens / (time.perf_counter() - started)
                progress.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
                progress.update(len(window.batch))
        if before is not None:
            writer.count(truncated=before + truncated, bad=skipped.count)
        finished = True
    finally:
        writer.close(finished=finished)
    return EmbedCounts(sequences, tokens, truncated, empty, held, skipped.count, tuple(skipped.first), outputs_cut)


def _write(writer: TokenStoreWriter, batch: TokenBatch, tally: Mapping[str, int] | None) -> None:
    writer.append(batch)
    if tally is not None:
        writer.count(**tally)


class _InBackground:
    """Runs one call at a time in another thread; what a call raises is raised by the next, or at the end.

    It comes before an error of this thread: it belongs to work that was begun earlier.
    """

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1, "write")
        self._call: Future[None] | None = None
        return self

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Waits for the call before, and begins this one."""
        if self._call is not None:
            self._call.result()
        self._call = self._pool.submit(function, *arguments)

    def __exit__(self, *_: object) -> None:
        with self._pool:
            if self._call is not None:
                self._call.result()


def _behind(
    records: Iterator[Record | BadRecord],
    writer: TokenStoreWriter,
    folder: str | Path,
    encoder: Encoder,
    skipped: Skipped | None,
) -> int | None:
    """Leaves those records behind that the store holds, and says how many of them were cut; None where nobody knows.

    A store that a killed process left may hold sequences that its tally does not cover: they are counted anew,
    which takes no more than preparing them.
    """
    held, item = writer.sequences, None
    covered = writer.tally.get("sequences", held)
    uncounted = []
    items = unpack_records(records, skipped)
    for number in range(held):
        item = next(items, None)
        if item is None:
            raise InputError(
                f"The token store {str(folder)!r} holds {format_count(held, 'sequence')} already, more than the "
                f"{format_count(number, 'record')} given: it can be resumed only with the records it was "
                f"begun with, and "
                "more of them."
            )
        if number >= covered:
            uncounted.append(item)
    if held and not _is_last_of(TokenStore(folder), item, encoder):
        raise InputError(
            f"The token store {str(folder)!r} holds {format_count(held, 'sequence')}, not the first "
            f"{format_count(held, 'record')} given: it can be resumed only with the records it was begun with."
        )
    if held and not writer.tally:
        return None
    cut: int = encoder.prepare(uncounted).cut if uncounted else 0
    return writer.tally.get("truncated", 0) + cut


def _is_last_of(store: TokenStore, item: Any, encoder: Encoder) -> bool:
    """Whether `item` is what the last sequence of the store was made of."""
    last = store.select([len(store) - 1])
    if isinstance(item, str | Pair):
        given = {"text": item} if isinstance(item, str) else {"text": item.source, "output_text": item.target}
        held = {name: decode_texts(last.channels[name])[0] for name in given if name in last.channels}
        return "text" in held and all(given[name] == text for name, text in held.items())
    # Of a sound nothing is stored but its states; they differ by rounding alone.
    again, kept = encoder.encode([item]).values.float(), last.values.float()
    return again.shape == kept.shape and bool((again - kept).norm() <= 0.05 * kept.norm())
