"""The study engine: every entry on every split, in one process or many, with failures as results."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from apood.decisions.conformal import Calibration
from apood.detectors.contract.base import Detector, Scores
from apood.evaluation.cost import Cost, estimate_cost
from apood.evaluation.entry import Entry
from apood.evaluation.fit_cache import CachedFit
from apood.evaluation.result import Result, Run, compute_mean_row, compute_rows
from apood.evaluation.split import Split
from apood.support.checks import check_integer
from apood.support.device import resolve_device
from apood.support.errors import ApoodError, InputError
from apood.support.processes import Failure, Share, run_tasks, share_cores
from apood.tokens.source import TokenSource

__all__ = ["ACCEPT", "Jobs", "fit_entry", "refuse_all_failed", "run_entry", "run_study"]

ACCEPT = 0.95
"""The share of ID sequences that the threshold from the validation sequences is to accept."""

Jobs = int | Literal["auto"] | None


class _Task(NamedTuple):
    """One entry on one split; `row` is the place of the entry, `place` that of the split among all of the study."""

    row: int
    entry: Entry
    number: int
    place: int

    def __str__(self) -> str:
        return f"{self.entry.label}, split {self.number}"


@dataclass(frozen=True)
class _Runner:
    """Runs tasks. Each process gets it once, with the data of all splits."""

    splits: Sequence[Split]
    cache: Path
    tabulate: bool
    fail_on_divergence: bool

    def __call__(self, task: _Task) -> Run:
        run = run_entry(task.entry, self.splits[task.place], self.cache, tabulate=self.tabulate)
        if self.fail_on_divergence and run.diverged is not None:
            raise ApoodError(run.diverged)
        return run


def run_study(
    entries: Sequence[tuple[Entry, Sequence[Split]]],
    *,
    cache: Path | None = None,
    jobs: Jobs = None,
    tabulate: bool = True,
    fail_on_divergence: bool = False,
    what: str = "entries",
    label: str = "fit",
    on_run: Callable[[Entry, Run | Failure], object] | None = None,
    announce: Callable[[Cost], object] | None = None,
) -> list[Result]:
    """Fit every entry on its splits, score their sets, and return one result per entry.

    An entry that cannot be fitted or scored has failures instead of figures and stops no other. An entry without a
    seed is not repeated on splits that differ in their seeds alone.

    Args:
        entries: each entry with the splits that it is run on.
        cache: folder that keeps fits and scores, so that an interrupted study continues and nothing is done twice.
            None keeps nothing.
        jobs: number of processes, which share the cores; "auto" uses all cores, or one process if a GPU does the
            work; None works in this process.
        tabulate: whether to compute rows of metrics; without them a run has its scores alone.
        fail_on_divergence: whether a training that diverged has failed.
        what: what the entries are called in the error message.
        label: label of the progress bar.
        on_run: called after each run, in this process.
        announce: called before the work with what the fits that the cache lacks will cost. If it raises an error,
            nothing is done.

    Raises:
        InputError: if all entries failed.
    """
    if jobs is not None and jobs != "auto":
        check_integer("jobs", jobs, least=1)
    splits = list({id(split): split for _, own in entries for split in own}.values())
    places = {id(split): place for place, split in enumerate(splits)}
    tasks = [
        _Task(row, entry, number, places[id(own[number - 1])])
        for number in range(1, 1 + max((len(own) for _, own in entries), default=0))
        for row, (entry, own) in enumerate(entries)
        if number <= len(own) and not _is_repeated(entry, own, number)
    ]

    def report(task: _Task, outcome: Run | Failure) -> None:
        if on_run is not None:
            on_run(task.entry, outcome)

    with tempfile.TemporaryDirectory(prefix="apood-") if cache is None else nullcontext(cache) as folder:
        runner = _Runner(splits, Path(folder), tabulate, fail_on_divergence)
        if announce is not None:
            announce(estimate_cost(_list_missing(tasks, splits, Path(folder))))
        done = run_tasks(runner, tasks, _share_cores(tasks, jobs), label, report)
    results = []
    for row, (entry, _) in enumerate(entries):
        own = {task.number: outcome for task, outcome in zip(tasks, done, strict=True) if task.row == row}
        failures = {number: outcome.reason for number, outcome in own.items() if isinstance(outcome, Failure)}
        results.append(Result(entry, [outcome for outcome in own.values() if isinstance(outcome, Run)], failures))
    refuse_all_failed(results, what)
    return results


def _list_missing(
    tasks: Sequence[_Task], splits: Sequence[Split], cache: Path
) -> Iterator[tuple[Detector, TokenSource]]:
    """Yield the detectors that are to be fitted, with their ID sequences."""
    for task in tasks:
        with suppress(ApoodError):  # a run that fails costs nothing, and is reported by the study
            fit = fit_entry(task.entry, splits[task.place], cache)
            if not fit.is_done:
                yield fit.unfitted, splits[task.place].train


def refuse_all_failed(results: Sequence[Result], what: str = "entries") -> None:
    """Raise an InputError if all results are failures."""
    if results and all(result.failures for result in results):
        first = results[0]
        raise InputError(
            f"None of the {len(results)} {what} could be fitted and scored; "
            f"the first: {first.entry.label}, {first.failure_notes[0]}"
        )


def _is_repeated(entry: Entry, splits: Sequence[Split], number: int) -> bool:
    return not entry.seeded and any(splits[number - 1].has_data_of(split) for split in splits[: number - 1])


def _share_cores(tasks: Sequence[_Task], jobs: Jobs) -> Share | None:
    if jobs is None or not tasks:
        return None
    if jobs != "auto":
        return share_cores(len(tasks), jobs)
    # Several fits on one GPU share its memory, which is for the user to decide.
    device = tasks[0].entry.make_detector().get_params(deep=False).get("device", "cpu")
    return share_cores(len(tasks), 1 if resolve_device(device).type == "cuda" else None)


def run_entry(entry: Entry, split: Split, cache: Path, *, tabulate: bool = True) -> Run:
    """Fit an entry on a split and score its sets, unless the cache has the results.

    With `tabulate`, the metrics are computed as well. A fit that was interrupted is continued.
    """
    data, fit = split.read_for(entry), fit_entry(entry, split, cache)
    sets = {"test": data.test, **{f"ood.{name}": source for name, source in data.ood.items()}}
    if data.validation is not None:
        sets["validation"] = data.validation
    scored = {name: fit.score(source) for name, source in sets.items()}
    scores = {name: own for name, (own, _) in scored.items()}
    test, ood = scores["test"], {name: scores[f"ood.{name}"] for name in data.ood}
    facts = fit.read_facts()
    rows = compute_rows(entry.label, test, ood) if tabulate else []
    judged = not ood and fit.unfitted.has_held_out_fit
    return Run(
        seed=split.seed,
        training_seed=fit.unfitted.get_params(deep=False).get("seed"),
        rows=[*rows, compute_mean_row(rows)] if rows else [],
        accepted=None if data.validation is None else _compute_accepted(scores["validation"], test),
        fit_seconds=facts["seconds"],
        seconds_per_thousand=1000
        * sum(seconds for _, seconds in scored.values())
        / max(1, sum(map(len, scores.values()))),
        artefact_bytes=facts["bytes"],
        warnings=list(facts["warnings"]),
        diverged=facts["diverged"],
        held_out=fit.fit_or_load().held_out_fit(data.test) if judged else None,
        test_scores=test,
        ood_scores=ood,
    )


def fit_entry(entry: Entry, split: Split, cache: Path) -> CachedFit:
    """Return the fit of an entry on a split, which is made or read when it is needed."""
    data = split.read_for(entry)
    return CachedFit(entry.make_detector(split.seed), data.train, data.aux, cache)


def _compute_accepted(validation: Scores, test: Scores) -> float:
    return round(100 * float(Calibration.from_scores(validation, ACCEPT).accepts(test).mean()), 4)
