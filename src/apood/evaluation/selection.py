"""Model selection: which settings of a method separate ID from outliers best, on sequences that no fit has seen."""

import itertools
import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import refuse_incompatible, refuse_lacking, refuse_unfit
from apood.detectors.contract.held_out import HeldOutFit
from apood.evaluation.cost import Cost
from apood.evaluation.entry import Entry
from apood.evaluation.metrics import Estimate, auroc
from apood.evaluation.result import Result
from apood.evaluation.split import Split, narrow_channels
from apood.evaluation.study import Jobs, fit_entry, run_study
from apood.pipeline.checks import refuse_same_data
from apood.support.checks import check_integer, check_number, shorten
from apood.support.errors import InputError
from apood.support.version import __version__
from apood.tokens.documents import count_documents
from apood.tokens.source import TokenSource, as_source, split

__all__ = ["HELD_OUT_PROMISE", "Point", "Selection", "check_search", "select"]

_AUX = "AUX"
HELD_OUT_PROMISE = (
    "Without outliers nothing tells which settings find them best: the held-out ID loss does not (its rank correlation "
    "with AUROC changes sign between encoders, and losses of different numbers of heads or queries are not on one "
    "scale). It shows disasters only, so the settings as given are kept unless they are one."
)


@dataclass(frozen=True)
class Point:
    """Some settings and their results.

    Attributes:
        settings: the parameters that were tried; empty for the detector as it was given.
        given: whether this is the detector as it was given.
        auroc: mean over the seeds, and the mean ends of their 95% intervals; None without outliers, or if it failed.
        per_seed: the AUROC of each seed.
        held_out: mean over the seeds; None with outliers, or if it failed.
        fit_seconds: of all seeds together.
        warnings: of all seeds, each once.
        failure: the reason why there is no result.
    """

    settings: dict[str, Any]
    given: bool
    auroc: Estimate | None = None
    per_seed: tuple[float, ...] = ()
    held_out: HeldOutFit | None = None
    fit_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def disaster(self) -> bool:
        """Whether held-out ID sequences show that this is no model of them."""
        return self.held_out is not None and self.held_out.disaster

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: AUROC in percent, as in all results on disk, and None for values that are not finite."""
        facts: dict[str, Any] = {"settings": _to_json(self.settings), "given": self.given}
        if self.auroc is not None:
            ends = zip(("auroc", "auroc_low", "auroc_high"), self.auroc, strict=True)
            facts |= {name: _to_percent(value) for name, value in ends}
            facts["per_seed"] = [_to_percent(value) for value in self.per_seed]
        if self.held_out is not None:
            values = self.held_out._asdict() | {"ratio": self.held_out.ratio}
            facts |= {f"held_out_{name}" if name in ("loss", "distance") else name: v for name, v in values.items()}
            facts["disaster"] = self.disaster
        facts |= {"fit_seconds": self.fit_seconds, "warnings": list(self.warnings), "failure": self.failure}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}


@dataclass(frozen=True)
class Selection:
    """All points, best first and failed ones last, and the chosen one.

    Attributes:
        method: name of the method.
        parameters: its parameters as given, which settings replace.
        supervised: whether the fits learnt from AUX sequences.
        seeds: number of seeds that figures are averaged over.
        sequences: number of sequences by their use; those of a long text count as one, because it has one score.
        points: ranked by AUROC; without outliers, by how much farther held-out sequences are than training sequences.
        best: the chosen point; None if all points are disasters.
        detector: the detector of the chosen point, fitted with the first seed on the sequences of the search.
    """

    method: str
    parameters: dict[str, Any]
    supervised: bool
    seeds: int
    sequences: dict[str, int]
    points: list[Point]
    best: Point | None
    detector: Detector | None

    @property
    def with_outliers(self) -> bool:
        """Whether there were outliers to judge by."""
        return self.sequences["aux_validation"] > 0

    @property
    def promise(self) -> str:
        """The evidence for the choice, in a sentence or two."""
        if not self.with_outliers:
            return HELD_OUT_PROMISE
        return (
            f"Chosen by AUROC of {self.sequences['validation']:,} ID against {self.sequences['aux_validation']:,} AUX "
            "sequences that no fit has seen; other outliers may rank the settings differently."
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything but the detector as plain JSON."""
        return {
            "apood": __version__,
            "method": self.method,
            "parameters": _to_json(self.parameters),
            "supervised": self.supervised,
            "seeds": self.seeds,
            "sequences": self.sequences,
            "promise": self.promise,
            "best": None if self.best is None else _to_json(self.best.settings),
            "points": [point.to_json() for point in self.points],
        }


class _Candidate(NamedTuple):
    """An entry to try, with the settings that set it apart; `given` marks the detector as it was given."""

    settings: dict[str, Any]
    given: bool
    entry: Entry


def select(
    detector: Detector,
    train: Any,
    validation: Any = None,
    aux: Any = None,
    *,
    supervised: bool = False,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    validation_share: float = 0.2,
    aux_share: float = 0.25,
    cache: Path | str | None = None,
    jobs: Jobs = None,
    announce: Callable[[Cost], object] | None = None,
) -> Selection:
    """Fit `detector` as it is and with every setting of a grid, and choose one.

    With AUX sequences, the choice is the one with the highest AUROC of ID validation against AUX validation sequences.
    Without, see `HELD_OUT_PROMISE`; only methods with a `held_out_fit`, such as AP-OOD, allow that. A setting that
    fails is reported and stops nothing.

    Args:
        detector: unfitted; settings of the grid replace its own.
        train: ID sequences to fit on.
        validation: ID sequences to judge by; None splits `validation_share` off `train`.
        aux: auxiliary outliers to judge by; if the fits learn from them too, `aux_share` of them to judge by.
        supervised: whether to learn from AUX sequences; methods that require them always do.
        grid: values to try for each parameter, in all combinations; None is the method's `hyperparameter_space`.
        seeds: number of seeds to average over, starting with the detector's own.
        validation_share: see `validation`.
        aux_share: see `aux`.
        cache: folder that keeps every fit, so that none is made twice.
        jobs: number of processes ("auto": as many as there are cores); None works in this process.
        announce: called before the work with what the fits will cost; an error that it raises stops everything.
    """
    learns = supervised or detector.aux == "required"
    check_search(
        detector,
        supervised=supervised,
        with_aux=aux is not None,
        grid=grid,
        seeds=seeds,
        validation_share=validation_share if validation is None else None,
        aux_share=aux_share if learns else None,
    )
    given = {"ID": train, "ID validation": validation, _AUX: aux}
    opened = {role: as_source(data) for role, data in given.items() if data is not None}
    sources = {role: narrow_channels(source, detector.requires | detector.welcomes) for role, source in opened.items()}
    candidates = _list_candidates(detector, grid, sources["ID"].dim, learns)
    _check_seeds(seeds, [name for candidate in candidates for name in candidate.settings])
    _refuse_useless(detector, sources)
    data = _divide(sources, learns, validation_share, aux_share)
    for role, source in sources.items():
        refuse_unfit(source, detector.requires, role)

    splits = [replace(data, seed=seed) for seed in range(seeds)]
    with tempfile.TemporaryDirectory(prefix="apood-") if cache is None else nullcontext(cache) as folder:
        results = run_study(
            [(candidate.entry, splits) for candidate in candidates],
            cache=Path(folder),
            jobs=jobs,
            tabulate=False,
            fail_on_divergence=True,
            what="settings",
            label="select",
            announce=announce,
        )
        points = [_make_point(*pair) for pair in zip(candidates, results, strict=True)]
        best = _choose(points)
        chosen = None if best is None else candidates[points.index(best)].entry
        fitted = None if chosen is None else fit_entry(chosen, data, Path(folder)).fit_or_load()
    return Selection(
        method=detector.name,
        parameters=detector.get_params(deep=False),
        supervised=learns,
        seeds=seeds,
        sequences={
            "train": count_documents(data.train),
            "validation": count_documents(data.test),
            "aux_train": 0 if data.aux is None else count_documents(data.aux),
            "aux_validation": sum(map(count_documents, data.ood.values())),
        },
        points=sorted(points, key=_rank),
        best=best,
        detector=fitted,
    )


def check_search(
    detector: Detector,
    *,
    supervised: bool,
    with_aux: bool,
    grid: Mapping[str, Sequence[Any]] | None,
    seeds: int,
    validation_share: float | None,
    aux_share: float | None,
) -> None:
    """Raise an InputError for what is wrong with a search whatever its data are; a share that is not used is None."""
    detector.check_parameters()
    if grid is None and type(detector).hyperparameter_space is Detector.hyperparameter_space:
        raise _make_no_settings_error(detector)
    if (supervised or detector.aux == "required") and not with_aux:
        raise InputError(f"To learn from AUX sequences, {detector.name} has to be given some.")
    if not with_aux and not detector.has_held_out_fit:
        raise InputError(
            f"Settings of {detector.name} can only be chosen with AUX sequences: "
            "it has no criterion for held-out ID sequences alone, as ap-ood has."
        )
    for name, share in (("validation_share", validation_share), ("aux_share", aux_share)):
        if share is not None:
            check_number(name, share, above=0, below=1)
    check_integer("seeds", seeds, least=1)
    if seeds > 1 and not Entry(type(detector)).seeded:
        raise InputError(f"{detector.name} has no seed: it gives the same result each time, so seeds must be 1.")
    if grid is not None:
        empty = [f"no value for {name}" for name, values in grid.items() if not len(values)]
        if empty or not grid:
            raise InputError(f"The grid is empty: it has {empty[0] if empty else 'no parameter'}.")
        _check_seeds(seeds, grid)


def _make_no_settings_error(detector: Detector) -> InputError:
    return InputError(
        f"{detector.name} has no settings that are usually searched: name some in a grid, "
        "or choose a method that has, such as ap-ood."
    )


def _check_seeds(seeds: int, searched: Collection[str]) -> None:
    if seeds > 1 and "seed" in searched:
        raise InputError("A grid that searches the seed leaves nothing to average over: seeds must be 1.")


def _refuse_useless(detector: Detector, sources: Mapping[str, TokenSource]) -> None:
    """Raise an InputError for data that the method cannot be fitted on or judged by, before any of it is read."""
    for role, source in sources.items():
        if not len(source):
            raise InputError(f"There are no {role} sequences.")
        refuse_lacking(source, detector.name, detector.requires, f"{role} data")
        refuse_incompatible(source, sources["ID"], detector.requires, role, "ID")
    refuse_same_data(sources)


def _divide(sources: Mapping[str, TokenSource], learns: bool, validation_share: float, aux_share: float) -> Split:
    """Return the sequences to fit on, and as test and OOD sequences those to judge by."""
    train, validation, outliers = (sources.get(role) for role in ("ID", "ID validation", _AUX))
    assert train is not None
    if validation is None:
        train, validation = _split_off(train, validation_share, "ID")
    learnt = None
    if outliers is not None and learns:
        learnt, outliers = _split_off(outliers, aux_share, _AUX)
    return Split(train, validation, {} if outliers is None else {_AUX: outliers}, aux=learnt)


def _split_off(source: TokenSource, share: float, role: str) -> tuple[TokenSource, TokenSource]:
    rest, taken = split(source, share, seed=0)
    if not len(rest) or not len(taken):
        raise InputError(
            f"{len(source)} {role} sequences are too few to split a share of {share:g} off for validation: "
            f"{len(rest)} and {len(taken)} would be left."
        )
    return rest, taken


def _list_candidates(
    detector: Detector, grid: Mapping[str, Sequence[Any]] | None, dim: int, learns: bool
) -> list[_Candidate]:
    """Return the detector as it is and with each setting of the grid, each once, after checking their parameters."""
    if grid is None:
        space = detector.hyperparameter_space(dim, supervised=learns)
        if not any(space):
            raise _make_no_settings_error(detector)
        for name, value in ((name, value) for settings in space for name, value in settings.items()):
            if isinstance(value, list | tuple | dict):
                raise InputError(
                    f"hyperparameter_space of {detector.name} must return one value of {name} in each of its settings, "
                    f"as in [{{{name!r}: 1}}, {{{name!r}: 2}}], got {shorten(value)}."
                )
    else:
        space = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    own = detector.get_params(deep=False)
    if not any(own | settings == own for settings in space):
        space = [{}, *space]
    found: list[_Candidate] = []
    for settings in space:
        name = ", ".join(f"{key}={value}" for key, value in settings.items()) or "the settings as given"
        entry = Entry(type(detector), own | settings, name, aux="all" if learns else 0)
        entry.check()
        if not any(entry.parameters == candidate.entry.parameters for candidate in found):
            found.append(_Candidate(settings, entry.parameters == own, entry))
    return found


def _make_point(candidate: _Candidate, result: Result) -> Point:
    settings, given, _ = candidate
    if result.failures:
        return Point(settings, given, failure=next(iter(result.failures.values())))
    estimates = [auroc(run.test_scores, run.ood_scores[_AUX]) for run in result.runs if run.ood_scores]
    held_out = [run.held_out for run in result.runs if run.held_out is not None]
    return Point(
        settings,
        given,
        auroc=Estimate(*np.mean(estimates, axis=0).tolist()) if estimates else None,
        per_seed=tuple(estimate.value for estimate in estimates),
        held_out=HeldOutFit(*np.mean(held_out, axis=0).tolist()) if held_out else None,
        fit_seconds=sum(run.fit_seconds for run in result.runs),
        warnings=tuple(dict.fromkeys(warning for run in result.runs for warning in run.warnings)),
    )


def _choose(points: Sequence[Point]) -> Point | None:
    """Return the best point; without outliers the detector as given, unless it is a disaster."""
    fitted = [point for point in points if point.failure is None]
    if fitted[0].held_out is None:
        return min(fitted, key=_rank)
    sound = [point for point in fitted if not point.disaster]
    return next((point for point in sound if point.given), min(sound, key=_rank, default=None))


def _rank(point: Point) -> tuple[bool, float, bool]:
    """Return a sorting key: the best first, the detector as given first among equals, and failed points last."""
    if point.auroc is not None:
        return False, -point.auroc.value, not point.given
    if point.held_out is not None:
        return False, point.held_out.ratio, not point.given
    return True, 0.0, not point.given


def _to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) for name, value in settings.items()}


def _to_percent(share: float) -> float:
    return round(100 * share, 4)
