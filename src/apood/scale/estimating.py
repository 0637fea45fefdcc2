"""About how much work a job is, before it begins."""

import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from apood.data.record import BadRecord, Record
from apood.encoders.embed import cut_portions, encode_cut
from apood.scale.job import Job
from apood.scale.shards import shard_path, write_shard
from apood.scale.units import Unit, read_safely
from apood.scale.worker import Worker

__all__ = ["Estimate", "count_documents_about", "estimate_job"]

_PROBED = 64  # documents that are encoded, to know how long one takes
_READ = 2048  # documents that are read, to know how large one is


@dataclass(frozen=True)
class Estimate:
    """What a job takes, about, if every worker is as fast as this process.

    Attributes:
        parts: the number of parts.
        bytes: the size of the inputs, as far as it is known.
        documents: the number of documents.
        tokens: the number of their tokens; None if nobody encodes.
        written: the bytes that workers write; None if nobody encodes.
        workers: the number of workers.
        seconds: the time; None if nobody encodes.
    """

    parts: int
    bytes: int
    documents: int
    tokens: int | None
    written: int | None
    workers: int
    seconds: float | None


def count_documents_about(job: Job) -> tuple[float, list[Record]]:
    """Return about how many documents there are, from the size of the first ones, and some of these."""
    parts, size = 0, 0
    read: list[Record | BadRecord] = []
    for part in job.parts:
        parts, size = parts + 1, size + part.size
        if read := list(itertools.islice(read_safely(part, job.settings.request), _READ)):
            break  # the ones before are empty
    total = sum(part.size for part in job.parts)
    if not size:  # sizes of what is not on this machine are not known
        share = parts / len(job.parts)
    elif len(read) < _READ:  # all of these parts were read
        share = size / total
    else:
        characters = sum(len(str(record.item)) + 16 for record in read if isinstance(record, Record))
        share = min(1.0, characters / total)
    return len(read) / max(share, 1e-12), [record for record in read if isinstance(record, Record)]


def estimate_job(job: Job, worker: type[Worker] | None, workers: int | None) -> Estimate:
    """Return what a job takes, from a few of its documents, which this process encodes twice: once to warm up.

    It is right up to a factor of about two, if the first documents are like the others. Compressed files have more
    documents than that, and so may inputs whose size is not known. If `worker` is None, no document is encoded.
    """
    documents, some = count_documents_about(job)
    count = workers or (torch.cuda.device_count() or os.cpu_count() or 1)
    known = Estimate(
        parts=len(job.parts),
        bytes=sum(part.size for part in job.parts),
        documents=round(documents),
        tokens=None,
        written=None,
        workers=count,
        seconds=None,
    )
    if worker is None:
        return known
    some = some[:: max(1, len(some) // _PROBED)][:_PROBED]
    tokens, written, seconds = _probe(job, worker, some)
    each = documents / max(1, len(some))
    return replace(
        known,
        tokens=round(tokens * each),
        written=round(written * each),
        seconds=float(f"{seconds * each / count:.2g}"),
    )


def _probe(job: Job, worker: type[Worker], some: Sequence[Record]) -> tuple[int, int, float]:
    """Return the number of tokens of some documents, the bytes that a worker writes of them, and its seconds."""
    threads = torch.get_num_threads()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # like a worker without a GPU
    try:
        with tempfile.TemporaryDirectory(prefix="apood-") as folder:
            own = worker(replace(job.settings, folder=folder))
            for _ in range(2):
                own.discard()
                begun = time.perf_counter()
                portions = encode_cut(cut_portions(some, own.encoder), own.encoder)
                made = [row for portion in portions for row in own.make_rows(portion)]
                seconds = time.perf_counter() - begun
            unit = Unit(0, 0, list(some), last=True)
            own.save_more(unit)
            rows = [{"place": record.place, **record.kept, **row} for record, row in zip(some, made, strict=True)]
            write_shard(shard_path(own.place, unit.name), rows, own.columns, job.settings.request.keep, last=True)
            written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    finally:
        torch.set_num_threads(threads)
    return sum(row.get("tokens") or 0 for row in made), written, seconds
