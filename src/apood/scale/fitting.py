"""Fit a detector on more than fits: train on a sample, and learn from everything what needs no training.

What is learnt from which documents:

- The sample trains. AP-OOD finds its queries, the space they live in (centring, whitening, beta) and the law of the
  length; a classifier is trained with it. A fusion learns the scale of these members from a few thousand sequences of
  it, which is all that it uses of any corpus.
- Everything gives the means and covariances of `mahalanobis` and `mahalanobis-knn`, and the prototype of AP-OOD. These
  are sums, merged exactly from parts of any size.
- Neighbours remember one vector per window: of all documents, or of a uniform sample of them that has about 100,000
  windows, because the number of vectors is what scoring costs. A fusion learns their scale again, from a few thousand
  of these documents.
- Documents held out, drawn with the sample and in no other part of it, set the threshold: they are scored by the
  detector as it is at the end.

Each step leaves its result in a folder, and is not repeated after an interruption.
"""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from apood.data.record import Record
from apood.decisions.conformal import count_needed
from apood.detectors.contract.artefact import CONFIG_FILE
from apood.detectors.contract.base import Detector
from apood.detectors.contract.refinable import Refinable
from apood.fitting.optimise import Checkpoint
from apood.pipeline.facts import Facts
from apood.pipeline.token_cache import TokenCache
from apood.scale.estimating import count_documents_about
from apood.scale.job import Job
from apood.scale.measuring import MeasureWorker, Run, load_identified, merge_job
from apood.scale.sampling import Drawn, DrawWorker, choose_bound, count_by_keys, read_drawn, take_smallest
from apood.scale.shards import Counts
from apood.support.checks import format_count
from apood.support.cloud import Place, write_file
from apood.support.errors import DataWarning, InputError
from apood.tokens.store import TokenStore

__all__ = ["Sample", "draw_sample", "fit_sample", "refine_and_calibrate"]

_HELD_OUT = 0.25  # documents that set the threshold, per document of the sample
_ACCEPT = 0.95
_REMEMBERED = 100_000  # windows that neighbours remember, or as many as the sample has documents
_PLAN = b"plan"


@dataclass(frozen=True)
class Sample:
    """Documents drawn from a corpus.

    Attributes:
        training: those to learn from, in the order of the inputs.
        held_out: those that set the threshold.
        most: about how many windows may be remembered, those of the documents with the smallest keys.
        bound: a key; these documents are almost surely among those whose keys are below it.
    """

    training: list[Record]
    held_out: list[Record]
    most: int
    bound: int

    @classmethod
    def of(cls, drawn: Sequence[Drawn], size: int) -> "Sample":
        """Return the sample in its two parts; the smaller keys learn. From a small corpus, a fifth is held out."""
        most = max(size, _REMEMBERED)
        bound = choose_bound(most, count_by_keys(drawn, _count_wanted(size)))
        count = min(size, round(len(drawn) / (1 + _HELD_OUT)))
        needed = count_needed(_ACCEPT)
        if len(drawn) - count < needed:
            most = len(drawn) - needed
            smaller = f", or --sample {most} or less" if most > 0 else ""
            raise InputError(
                f"Of {format_count(len(drawn), 'text')}, {needed} must be held out to set the threshold, so that there "
                f"are not enough for a sample of {size}: give more texts{smaller}."
            )
        if count < size:
            warnings.warn(
                f"There are only {len(drawn):,} texts: {count:,} of them are the sample, and not {size:,}, and "
                f"{len(drawn) - count:,} are held out to set the threshold.",
                DataWarning,
                stacklevel=2,
            )
        in_order = [sorted(part, key=lambda own: own[1:3]) for part in (drawn[:count], drawn[count:])]
        training, held_out = ([Record(own.text, own.place) for own in part] for part in in_order)
        return cls(training, held_out, most, bound)


def _count_wanted(size: int) -> int:
    """Return how many documents are drawn for a sample of this size, with those to hold out."""
    return size + max(round(_HELD_OUT * size), count_needed(_ACCEPT))


def draw_sample(job: Job, size: int, work: Place, run: Run) -> Sample:
    """Return a uniform sample of the documents of a job and others to hold out, drawn once and kept in a file.

    A file of another job is replaced. Its command was interrupted before it had written its plan.

    Args:
        job: the pass over everything that will follow.
        size: the number of documents to learn from.
        work: the folder of the file, and of what workers draw.
        run: lets workers do a job; it is not called if the file is there.
    """
    import pyarrow
    import pyarrow.parquet

    path = work / "sample.parquet"
    if path.exists():
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(path.read_bytes()))
        if (table.schema.metadata or {}).get(_PLAN) == job.settings.plan.encode():
            return Sample.of([Drawn(**row) for row in table.to_pylist()], size)
    wanted, drawn = _count_wanted(size), list[Drawn]()
    bounds = dict.fromkeys((choose_bound(wanted, count_documents_about(job)[0]), choose_bound(wanted, 0)))
    folders = [work / f"drawn-{job.settings.plan[:16]}-{bound}" for bound in bounds]
    for folder, bound in zip(folders, bounds, strict=True):
        if len(drawn) < wanted:  # also if there were too few below the first bound
            settings = replace(job.settings, folder=str(folder), remembered=bound, unit_records=wanted)
            run(replace(job, settings=settings), DrawWorker)
            drawn = take_smallest(read_drawn(folder), wanted)
    try:
        sample = Sample.of(drawn, size)
    except InputError:
        for folder in folders:
            _delete(folder)
        raise
    table = pyarrow.Table.from_pylist([own._asdict() for own in drawn])
    with write_file(path) as temporary:
        pyarrow.parquet.write_table(table.replace_schema_metadata({_PLAN: job.settings.plan}), temporary)
    return sample


def _delete(folder: Place) -> None:
    """Delete a folder, and the one around it if that is then empty; in a cloud store, nothing is deleted."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def fit_sample(
    detector: Detector, sample: Sample, cache: TokenCache, place: Place, checkpoint: Checkpoint
) -> tuple[Detector, str]:
    """Return the detector, fitted on the sample by this process, or as an earlier run left it at `place`.

    Workers read it there, and whatever they measure belongs to it. The second value is its hash, by which they say so.
    """
    if (place / CONFIG_FILE).exists():
        return load_identified(place)
    tokens = TokenStore(cache.find_store(sample.training, skip_bad=True))
    with _advise_larger_sample():
        detector.fit(tokens, checkpoint=checkpoint)
    detector.save(str(place), facts=Facts.of_fit(tokens).to_json())
    return load_identified(place)


@contextmanager
def _advise_larger_sample() -> Iterator[None]:
    """Let warnings of a fit that end with the advice to add sequences name the option that does it."""
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        for one in caught:
            message = str(one.message).replace("add sequences", "give more texts or a larger --sample")
            warnings.warn(message, one.category, stacklevel=4)


def refine_and_calibrate(
    detector: Detector, digest: str, sample: Sample, cache: TokenCache, job: Job, run: Run
) -> tuple[Facts, Counts | None]:
    """Learn from everything, set the threshold, and return the facts about it, with the counts of the pass.

    Args:
        detector: the detector after `fit_sample`.
        digest: its hash.
        sample: its sample.
        cache: the tokens of the sample.
        job: the pass over everything.
        run: lets workers do a job; it is not called if the detector has nothing to refine, and None is returned.
    """
    counts = None
    if isinstance(detector, Refinable) and detector.refines:
        places = frozenset(record.place for record in sample.held_out)
        job = replace(job, settings=replace(job.settings, left_out=places, remembered=sample.bound))
        counts = run(job, MeasureWorker)
        detector.refine(*merge_job(job, run, detector, digest, sample.most))
    training, held_out = (
        TokenStore(cache.find_store(records, skip_bad=True)) for records in (sample.training, sample.held_out)
    )
    detector.calibrate(held_out, _ACCEPT)
    return Facts.of_fit(training).after_calibration(held_out, _ACCEPT), counts
