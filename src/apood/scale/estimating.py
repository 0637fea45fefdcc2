"""About how much work a job is, before it begins."""

import itertools
import os
import time
from dataclasses import dataclass

import torch

from apood.data.record import BadRecord, Record
from apood.encoders.embed import cut_portions, encode_cut
from apood.scale.job import Job
from apood.scale.units import read_safely
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
        tokens: the number of their tokens.
        workers: the number of workers.
        seconds: the time.
    """

    parts: int
    bytes: int
    documents: int
    tokens: int
    workers: int
    seconds: int


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


def estimate_job(job: Job, worker: type[Worker], workers: int | None) -> Estimate:
    """Return what a job takes, from a few of its documents, which this process encodes twice: once to warm up.

    It is right up to a factor of about two, if the first documents are like the others. Compressed files have more
    documents than that, and so may inputs whose size is not known.
    """
    documents, some = count_documents_about(job)
    some = some[:: max(1, len(some) // _PROBED)][:_PROBED]
    count = workers or (torch.cuda.device_count() or os.cpu_count() or 1)
    own = worker(job.settings)
    threads = torch.get_num_threads()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # like a worker without a GPU
    tokens = seconds = 0.0
    try:
        for _ in range(2):
            begun = time.perf_counter()
            rows = [
                row
                for portion in encode_cut(cut_portions(some, own.encoder), own.encoder)
                for row in own.make_rows(portion)
            ]
            seconds, tokens = time.perf_counter() - begun, sum(row.get("tokens") or 0 for row in rows)
    finally:
        torch.set_num_threads(threads)
    each = documents / max(1, len(some))
    size = sum(part.size for part in job.parts)
    return Estimate(len(job.parts), size, round(documents), round(tokens * each), count, round(seconds * each / count))
