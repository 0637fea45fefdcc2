"""Encode a stream of records in portions, and write a resumable token store."""

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from apood.data.record import BadRecord, Pair, Record, Skipped, Sound, keep_good, make_bad_record, refuse_or_skip
from apood.encoders.base.encoder import Encoder
from apood.encoders.text.windows import MOST_WINDOWS
from apood.support.background import BackgroundCalls
from apood.support.checks import format_count
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.support.threads import ThreadRace
from apood.tokens.batch import TokenBatch, decode_texts
from apood.tokens.documents import count_documents, find_documents, make_document_mask
from apood.tokens.store import StoreIndex, TokenStore
from apood.tokens.writer import COMMIT_SECONDS, TokenStoreWriter

__all__ = [
    "EmbedCounts",
    "Portion",
    "cut_portions",
    "embed_to_store",
    "encode_cut",
    "encode_portions",
    "follow_encoder",
    "limit_records",
]

_PORTION_SEQUENCES = 1024
_PORTION_BYTES = 1 << 30
_PORTION_SECONDS = COMMIT_SECONDS / 2  # an interruption may cost this much, because an incomplete portion is lost
_FIRST_SEQUENCES = 16  # sequences of the first portion, before it is known how long one takes
_PREPARED_AGAIN = 256  # records of an earlier run that are prepared at once, to find out how many were refused
_INPUT_BYTES = 1 << 28  # of the sounds of a portion, or of its texts while they become token ids
_CHARACTER_BYTES = 50  # of a text while it becomes token ids
_NEWER_CHANNELS = {"summary", "sentences"}  # that stores which were begun before may lack
_TOKEN_BYTES = 2  # of a text in UTF-8: English has about 4.5 per token, code and Chinese 3, and single bytes are rare


@dataclass(frozen=True)
class EmbedCounts:
    """What one run of `embed_to_store` did.

    Attributes:
        records: the number of records that were encoded and written.
        sequences: the number of their sequences: one per record, or one per window of a long text.
        tokens: the number of their tokens.
        long: how many of the records have several windows.
        truncated: how many of the records were cut at the encoder's limit.
        empty: how many of the sequences have no tokens; fitting refuses such sequences.
        skipped: the number of records that the store held already, from an earlier run.
        bad: the number of records that were left out because they cannot be used.
        first_bad: the first few of the bad records.
        outputs_cut: how many of the sequences are outputs of `max_new_tokens` tokens. These were cut, except for the
            few that end with exactly this token.
    """

    records: int
    sequences: int
    tokens: int
    long: int
    truncated: int
    empty: int
    skipped: int
    bad: int = 0
    first_bad: tuple[BadRecord, ...] = ()
    outputs_cut: int = 0


@dataclass(frozen=True)
class Portion:
    """Consecutive records, encoded.

    Attributes:
        batch: the states and channels of the records: one document per record that was not refused.
        records: the records.
        refused: the records that the encoder refused, by their positions among the records.
        cut: the documents that were cut at the encoder's limit, by their positions in the batch.
        skipped: how many bad records were skipped so far, without those that the encoder refused.
    """

    batch: TokenBatch
    records: Sequence[Record]
    refused: Mapping[int, BadRecord]
    cut: frozenset[int]
    skipped: int


def limit_records(records: Iterable[Record | BadRecord], limit: int) -> Iterator[Record | BadRecord]:
    """Yield the records up to and including the `limit`-th good one."""
    good = 0
    for record in records:
        yield record
        good += isinstance(record, Record)
        if good == limit:
            return


def encode_portions(
    records: Iterable[Record | BadRecord],
    encoder: Encoder,
    skipped: Skipped | None = None,
    *,
    seconds: float = _PORTION_SECONDS,
    ready: Callable[[], bool] = lambda: True,
) -> Generator[Portion]:
    """Yield the states of `records` in order, in portions.

    A portion is large enough to batch sequences of similar length, small enough for memory, and takes about `seconds`
    at most, except for the first one. While the encoder runs one portion, it prepares the next one in another thread.
    `ready` says whether the next record can be read without waiting. If not, the records before it are encoded first.

    Bad records are added to `skipped`; if it is None, the first one raises an error. An error in reading a record is
    raised after all records before it were yielded, an error in the encoder after all portions before it. Records that
    the encoder refuses are left to the caller.
    """
    reader = _RecordReader(records, encoder, skipped)
    most = _limit_sequences(encoder, _PORTION_SEQUENCES)
    size = min(_FIRST_SEQUENCES, most)
    race = ThreadRace(on_cpu=resolve_device().type == "cpu")
    # A thread is enough: compiled tokenizers use all cores and release Python's lock, while a process would have to
    # start and load them. Records are read in the caller's thread, because another thread that waits for standard
    # input could not be interrupted.
    with ThreadPoolExecutor(1, "prepare") as pool:

        def start_next() -> "tuple[Future[Any], list[Record], int, int] | None":
            found = reader.read(size, ready)
            if not found:
                return None
            return pool.submit(encoder.prepare, [record.item for record in found]), found, reader.bad, size

        ahead = start_next()
        while ahead is not None:
            (preparing, found, bad, before), ahead = ahead, start_next() if ready() else None
            prepared = preparing.result()
            started = time.perf_counter()
            with race.piece(len(found)):
                batch = encoder.run(prepared)
            if len(batch):  # a portion of refused records does not tell how long others take
                affordable = int(seconds * len(batch) / max(time.perf_counter() - started, 1e-9))
                size = max(1, min(2 * before, affordable, most))
            yield Portion(batch, found, _describe_refused(found, prepared.refused), prepared.cut, bad)
            del batch, prepared, preparing, found  # free the memory of this portion before the next one
            if ahead is None:
                ahead = start_next()
    if reader.error is not None:
        raise reader.error


def cut_portions(records: Sequence[Record], encoder: Encoder) -> Iterator[Sequence[Record]]:
    """Yield the records in portions for `encode_cut`, whose sizes depend on the records and the encoder alone."""
    most = _limit_sequences(encoder, _PORTION_SEQUENCES)
    start = sequences = size = 0
    for stop, record in enumerate(records):
        own, own_size = _estimate_sequences(record, encoder), _estimate_bytes(record)
        if start < stop and (sequences + own > most or size + own_size > _INPUT_BYTES):
            yield records[start:stop]
            start, sequences, size = stop, 0, 0
        sequences, size = sequences + own, size + own_size
    if start < len(records):
        yield records[start:]


def encode_cut(portions: Iterator[Sequence[Record]], encoder: Encoder) -> Generator[Portion]:
    """Yield the given portions, encoded. While the encoder runs one, another thread reads and prepares the next one.

    Unlike `encode_portions`, nothing depends on time, and the number of threads stays as it is. So the states are the
    same bit by bit on every machine of the same kind.
    """

    def prepare_next() -> tuple[Sequence[Record], Any] | None:
        found = next(portions, None)
        return None if found is None else (found, encoder.prepare([record.item for record in found]))

    with ThreadPoolExecutor(1, "prepare") as pool:
        ahead = pool.submit(prepare_next)
        while (following := ahead.result()) is not None:
            ahead = pool.submit(prepare_next)
            found, prepared = following
            batch = encoder.run(prepared)
            yield Portion(batch, found, _describe_refused(found, prepared.refused), prepared.cut, 0)
            del batch, prepared, following, found  # free the memory of this portion before the next one


def follow_encoder(encoder: Encoder) -> BackgroundCalls:
    """Return a `BackgroundCalls` that works on a portion, for example scores it, while the encoder runs the next one.

    A model on a GPU leaves the processor to these calls. A model on the processor needs it itself, so two threads would
    only slow each other down. Each call is then run at once, before the next portion.
    """
    on_gpu = encoder.device.type == "cuda"
    return BackgroundCalls(on_gpu=on_gpu, at_once=not on_gpu)


def _limit_sequences(encoder: Encoder, most: int) -> int:
    """Return how many sequences a portion may have: `most`, or fewer if long ones would not fit into memory."""
    return max(1, min(most, _PORTION_BYTES // (encoder.max_tokens * encoder.dim * 4)))


def _estimate_sequences(record: Record, encoder: Encoder) -> int:
    """Return about how many windows a text has, from its bytes.

    That is rather too many than too few, but for a tokeniser of single bytes, which makes up to twice as many.
    """
    text = record.item
    if encoder.identity.get("on_long") != "windows" or not isinstance(text, str):
        return 1
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return 1 + min(size // (_TOKEN_BYTES * encoder.max_tokens), MOST_WINDOWS)


def _estimate_bytes(record: Record) -> int:
    """Return about how much memory a record needs before the model runs."""
    if isinstance(record.item, Sound):
        return record.item.samples.nbytes
    texts = record.item if isinstance(record.item, Pair) else [record.item]
    return _CHARACTER_BYTES * sum(len(text) for text in texts if isinstance(text, str))


def _describe_refused(records: Sequence[Record], refused: Mapping[int, str]) -> dict[int, BadRecord]:
    return {index: make_bad_record(records[index].place, problem) for index, problem in refused.items()}


class _RecordReader:
    """Reads good records until the end or the first error, which it keeps instead of raising it.

    The attribute `bad` is the number of bad records so far.
    """

    def __init__(self, records: Iterable[Record | BadRecord], encoder: Encoder, skipped: Skipped | None) -> None:
        self.error: Exception | None = None
        self.bad = 0
        self._good = keep_good(self._count_bad(records), skipped)
        self._encoder = encoder

    def read(self, count: int, ready: Callable[[], bool]) -> list[Record]:
        """Return records of at most `count` sequences, or one; none at the end or after an error.

        The first record is waited for, others only if they are `ready`.
        """
        found: list[Record] = []
        sequences = size = 0
        while self.error is None and sequences < count and size < _INPUT_BYTES and (not found or ready()):
            try:
                record = next(self._good, None)
            except Exception as error:
                self.error = error
                break
            if record is None:
                break
            found.append(record)
            sequences += _estimate_sequences(record, self._encoder)
            size += _estimate_bytes(record)
        return found

    def _count_bad(self, records: Iterable[Record | BadRecord]) -> Iterator[Record | BadRecord]:
        for record in records:
            self.bad += isinstance(record, BadRecord)
            yield record


def embed_to_store(
    records: Iterable[Record | BadRecord | str],
    encoder: Encoder,
    folder: str | Path,
    *,
    resume: bool = False,
    dtype: torch.dtype = torch.float16,
    skip_bad: bool = False,
    total: int | None = None,
    commit_seconds: float = COMMIT_SECONDS,
) -> EmbedCounts:
    """Encode `records` and write their states and channels to the token store `folder`, in order.

    While one portion of records is encoded, the next one is prepared and the previous one is written, each in its own
    thread. Whatever ends a run early, all records that were encoded by then are in the store, except that a killed
    process loses what it encoded since the last commit. The store's index also counts the sequences that were cut and
    the bad records.

    Args:
        records: the records, or plain texts.
        encoder: the encoder.
        folder: the folder of the token store.
        resume: continue a store. Give the same records again: those that the store holds are skipped, not encoded. A
            store from before there was a `summary` or `sentences` goes on without it.
        dtype: the dtype of the stored states. float16 has half the size of float32, and is more precise than bfloat16,
            but values above 65504, which occur in some middle layers of causal models, are refused.
        skip_bad: leave out bad records, and long texts that the encoder refuses, instead of raising an error.
        total: the number of good records, if known, to estimate the remaining time.
        commit_seconds: how often encoded records are committed, at least (see `TokenStoreWriter`).
    """
    if total is None and isinstance(records, Sized):
        total = len(records)
    iterator = (Record(r, f"text {i}") if isinstance(r, str) else r for i, r in enumerate(records))
    skipped = Skipped()
    longest: Any = encoder.identity.get("max_new_tokens") if encoder.identity.get("mode") == "output" else None
    total_records = sequences = tokens = long = empty = truncated = outputs_cut = 0
    finished = False
    writer = TokenStoreWriter(
        folder,
        dim=encoder.dim,
        dtype=dtype,
        encoder=encoder.identity,
        commit_seconds=commit_seconds,
        resume=resume,
    )
    portion_seconds = min(_PORTION_SECONDS, commit_seconds / 2)
    # Closing the writer commits the open shard, whatever happens. Only a kill loses sequences that were encoded.
    try:
        held = _skip_held(iterator, writer, encoder, skipped if skip_bad else None)
        lacking = _NEWER_CHANNELS - StoreIndex.read(writer.folder).channels.keys() if held.records else set()
        refused = 0
        started = time.perf_counter()
        with (
            closing(
                encode_portions(iterator, encoder, skipped if skip_bad else None, seconds=portion_seconds)
            ) as portions,
            progress_bar(total, "encoding", unit="rec", initial=held.records, forecast=True) as progress,
            BackgroundCalls() as background,
        ):
            for portion in portions:
                batch, first_refused = portion.batch, next(iter(portion.refused), None)
                if first_refused is not None and not skip_bad:  # all records before it are kept
                    batch = batch.select(make_document_mask(batch, slice(first_refused)))
                truncated += len(portion.cut)
                refused += len(portion.refused)
                tally = None
                if held.truncated is not None and (skip_bad or not portion.refused):
                    bad = held.bad + portion.skipped + refused
                    tally = {"truncated": held.truncated + truncated, "bad": bad}
                background.start(_write, writer, _leave_out(lacking, batch), tally)
                total_records += count_documents(batch)
                sequences += len(batch)
                tokens += len(batch.values)
                long += 0 if batch.windows is None else int((batch.windows == 1).sum())
                empty += int((batch.lengths == 0).sum())
                if longest is not None:
                    outputs_cut += int((batch.lengths == longest).sum())
                for record in portion.refused.values():
                    refuse_or_skip(record, skipped if skip_bad else None)
                rate = tokens / (time.perf_counter() - started)
                progress.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
                progress.update(len(portion.records))
        if held.truncated is not None:
            writer.count(truncated=held.truncated + truncated, bad=skipped.count)
        finished = True
    finally:
        writer.close(finished=finished)
    return EmbedCounts(
        records=total_records,
        sequences=sequences,
        tokens=tokens,
        long=long,
        truncated=truncated,
        empty=empty,
        skipped=held.records,
        bad=skipped.count,
        first_bad=tuple(skipped.first),
        outputs_cut=outputs_cut,
    )


def _leave_out(names: Set[str], batch: TokenBatch) -> TokenBatch:
    return replace(batch, channels={name: rows for name, rows in batch.channels.items() if name not in names})


def _write(writer: TokenStoreWriter, batch: TokenBatch, tally: Mapping[str, int] | None) -> None:
    writer.append(batch)
    if tally is not None:
        writer.count(**tally)


class _Held(NamedTuple):
    """The number of records that a store held before, how many were cut (None if unknown), and how many were bad."""

    records: int
    truncated: int | None
    bad: int


def _skip_held(
    records: Iterator[Record | BadRecord],
    writer: TokenStoreWriter,
    encoder: Encoder,
    skipped: Skipped | None,
) -> _Held:
    """Skip the records that the store holds, and those between them that cannot be used.

    The store of a killed process may hold sequences that its tally does not cover. They are prepared again to count
    how many were cut. If the encoder refuses long texts, all are prepared again to find those that were refused.
    """
    if not writer.sequences:
        return _Held(0, 0, 0)
    store = TokenStore(writer.folder)
    held, covered = count_documents(store), writer.tally.get("sequences", writer.sequences)
    refuses = encoder.identity.get("on_long") is not None
    good = keep_good(records, skipped)
    done = cut = bad = 0
    last: Any = None
    while done < held:
        some = list(itertools.islice(good, min(held - done, _PREPARED_AGAIN)))
        if not some:
            raise InputError(
                f"The token store {str(writer.folder)!r} already holds {format_count(held, 'record')}, more than the "
                f"{format_count(done, 'record')} given: resume it with the records that it was started with, or more."
            )
        again = some if refuses else some[max(covered - done, 0) :]
        prepared = encoder.prepare([record.item for record in again]) if again else None
        refused = {} if prepared is None else _describe_refused(again, prepared.refused)
        for record in refused.values():
            refuse_or_skip(record, skipped)
        cut += 0 if prepared is None else len(prepared.cut)
        bad += len(refused)
        done += len(some) - len(refused)
        last = next((r.item for n, r in reversed([*enumerate(some)]) if n not in refused), last)
    if not _is_last_document(store, last, encoder):
        raise InputError(
            f"The token store {str(writer.folder)!r} holds {format_count(held, 'record')}, but not the first "
            f"{format_count(held, 'record')} given: resume it with the records that it was started with."
        )
    bad = bad if skipped is None else skipped.count
    if refuses:
        return _Held(held, cut, bad)
    return _Held(held, writer.tally.get("truncated", 0) + cut if writer.tally else None, bad)


def _is_last_document(store: TokenStore, item: Any, encoder: Encoder) -> bool:
    """Return whether the last document of the store is that of `item`."""
    first = store.select(find_documents(store)[-1:])
    if isinstance(item, str | Pair):
        given = {"text": item} if isinstance(item, str) else {"text": item.source, "output_text": item.target}
        held = {name: decode_texts(first.channels[name])[0] for name in given if name in first.channels}
        return "text" in held and all(given[name] == text for name, text in held.items())
    # The store holds only the states of a sound, which differ by rounding.
    again, kept = encoder.encode([item]).values.float(), first.values.float()
    return again.shape == kept.shape and bool((again - kept).norm() <= 0.05 * kept.norm())
