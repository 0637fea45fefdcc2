"""Model selection: which settings of a method tell ID from outliers best, judged by sequences that no fit has seen."""

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.base import Detector, refuse_lacking, refuse_unfit
from apood.evaluation.grid import Candidate, candidates, reseeded
from apood.evaluation.intervals import Estimate
from apood.evaluation.trial import HeldOut, Outcome, Trial
from apood.evaluation.workers import Failure, Share, outcomes, share_cores
from apood.support.checks import check_integer
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.digest import content_digest
from apood.tokens.identity import describe_other, same_encoder
from apood.tokens.source import TokenSource, as_source, split

__all__ = ["HELD_OUT_PROMISE", "Point", "Selection", "select"]

HELD_OUT_PROMISE = (
    "Without outliers nothing tells which settings find them best: the held-out ID loss does not (its rank correlation "
    "with AUROC changes sign between encoders, and losses of different numbers of heads or queries are not on one "
    "scale). It shows disasters only, so the settings as given are kept unless they are one."
)


@dataclass(frozen=True)
class Point:
    """Some settings and what came of them.

    Attributes:
        settings: the parameters that were tried; empty for the detector as it was given.
        given: whether this is the detector as it was given.
        auroc: mean over the seeds, and the mean ends of their 95% intervals; None without outliers, or if it failed.
        per_seed: the AUROC of each seed.
        held_out: mean over the seeds; None with outliers, or if it failed.
        fit_seconds: of all seeds together.
        warnings: of all seeds, each once.
        failure: why there is no result.
    """

    settings: dict[str, Any]
    given: bool
    auroc: Estimate | None = None
    per_seed: tuple[float, ...] = ()
    held_out: HeldOut | None = None
    fit_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def disaster(self) -> bool:
        """Whether held-out ID sequences show that this is no model of them."""
        return self.held_out is not None and self.held_out.disaster

    def as_json(self) -> dict[str, Any]:
        """AUROC in percent, as in all results on disk; what is not finite is None."""
        facts: dict[str, Any] = {"settings": _plain(self.settings), "given": self.given}
        if self.auroc is not None:
            ends = zip(("auroc", "auroc_low", "auroc_high"), self.auroc, strict=True)
            facts |= {name: _percent(value) for name, value in ends}
            facts["per_seed"] = [_percent(value) for value in self.per_seed]
        if self.held_out is not None:
            values = self.held_out._asdict() | {"ratio": self.held_out.ratio}
            facts |= {f"held_out_{name}" if name in ("loss", "distance") else name: v for name, v in values.items()}
            facts["disaster"] = self.disaster
        facts |= {"fit_seconds": self.fit_seconds, "warnings": list(self.warnings), "failure": self.failure}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}


@dataclass(frozen=True)
class Selection:
    """All points, best first and failed ones last, and the one that was chosen.

    Attributes:
        method: the name of the method.
        supervised: whether AUX sequences were learnt from.
        sequences: how many went where.
        points: with outliers ranked by AUROC; without, by how much farther held-out sequences are than training ones.
        best: the chosen point; None where everything is a disaster.
        detector: the chosen point's detector, fitted (with the first seed) on the sequences that it was judged with.
    """

    method: str
    supervised: bool
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
        """What the choice is worth, in a sentence or two."""
        if not self.with_outliers:
            return HELD_OUT_PROMISE
        return (
            f"Chosen by AUROC of {self.sequences['validation']:,} ID against {self.sequences['aux_validation']:,} AUX "
            "sequences that no fit has seen; other outliers may rank the settings differently."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything but the detector."""
        return {
            "method": self.method,
            "supervised": self.supervised,
            "sequences": self.sequences,
            "promise": self.promise,
            "best": None if self.best is None else _plain(self.best.settings),
            "points": [point.as_json() for point in self.points],
        }


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
    jobs: int | Literal["auto"] | None = None,
) -> Selection:
    """Fits `detector` as it is and with every setting of a grid, and chooses one.

    With AUX sequences, the one with the highest AUROC of ID validation against AUX validation sequences. Without, see
    `HELD_OUT_PROMISE`; only AP-OOD can do that. A setting that fails is reported as such and stops nothing.

    Args:
        detector: unfitted; settings of the grid replace its own.
        train: ID sequences to fit on.
        validation: ID sequences to judge by; None splits `validation_share` off `train`.
        aux: auxiliary outliers to judge by; where they are learnt from too, `aux_share` of them to judge by.
        supervised: whether to learn from AUX sequences; methods that cannot do without always do.
        grid: values to try for each parameter, in all combinations; None is the method's `hyperparameter_space`.
        seeds: how many seeds to average over, from the detector's own on.
        validation_share: see `validation`.
        aux_share: see `aux`.
        cache: where every fit is kept, so that it is never done again.
        jobs: processes to work in ("auto": as many as there are cores for); None works in this one.
    """
    learns = supervised or detector.aux == "required"
    if jobs is not None and jobs != "auto":
        check_integer("jobs", jobs, least=1)
    given = {"ID": train, "ID validation": validation, "AUX": aux}
    sources = {role: as_source(source) for role, source in given.items() if source is not None}
    _refuse_useless(detector, sources, learns)
    data = _divide(sources, learns, validation_share, aux_share)
    tried = candidates(detector, grid, data.train.dim, learns)
    if seeds != 1 and any("seed" in candidate.settings for candidate in tried):
        raise InputError("A grid that searches the seed leaves nothing to average over: seeds must be 1.")
    attempts = [reseeded(candidate.detector, seeds) for candidate in tried]
    for role, source in sources.items():
        refuse_unfit(source, detector.requires, role)

    with tempfile.TemporaryDirectory(prefix="apood-") if cache is None else nullcontext(cache) as folder:
        trial = Trial(**data._asdict(), cache=Path(folder))
        detectors = list(itertools.chain(*attempts))
        done = outcomes(trial, detectors, None if jobs is None else _share(detectors, jobs), "select")
        points = [_point(c, done[i * seeds : (i + 1) * seeds]) for i, c in enumerate(tried)]
        best = _chosen(points)
        found = None if best is None else trial.fitted(attempts[points.index(best)][0])
    return Selection(
        method=detector.name,
        supervised=learns,
        sequences={
            "train": len(data.train),
            "validation": len(data.validation),
            "aux_train": 0 if data.aux is None else len(data.aux),
            "aux_validation": 0 if data.outliers is None else len(data.outliers),
        },
        points=sorted(points, key=_rank),
        best=best,
        detector=found,
    )


class _Data(NamedTuple):
    """What is fitted on (`train`, `aux`) and what is judged by (`validation`, `outliers`)."""

    train: TokenSource
    validation: TokenSource
    aux: TokenSource | None
    outliers: TokenSource | None


def _refuse_useless(detector: Detector, sources: Mapping[str, TokenSource], learns: bool) -> None:
    """Refuses data that the method cannot be fitted on or judged by, before any of it is read."""
    if learns and detector.aux == "unused":
        raise InputError(f"{detector.name} learns from in-distribution data alone: it cannot be supervised.")
    if learns and "AUX" not in sources:
        raise InputError(f"To learn from AUX sequences, {detector.name} has to be given some.")
    if "AUX" not in sources and not isinstance(detector, APOOD):
        raise InputError(
            f"Settings of {detector.name} can only be chosen with AUX sequences: "
            "what the held-out ID loss shows without them is known of ap-ood alone."
        )
    inside = sources["ID"]
    known: dict[str, str] = {}
    for role, source in sources.items():
        if not len(source):
            raise InputError(f"There are no {role} sequences.")
        refuse_lacking(source, detector.name, detector.requires, f"{role} data")
        if "tokens" in detector.requires and source.dim != inside.dim:
            raise InputError(f"The {role} tokens have D={source.dim}, the ID tokens have D={inside.dim}.")
        if not same_encoder(source.encoder, inside.encoder):
            raise InputError(
                f"The {role} tokens come from another encoder ({describe_other(source.encoder, inside.encoder)}) "
                f"than the ID tokens ({describe_other(inside.encoder, source.encoder)})."
            )
        other = known.setdefault(content_digest(source), role)
        if other != role:
            raise InputError(f"The {role} sequences are the {other} sequences: each must be a set of its own.")


def _divide(sources: Mapping[str, TokenSource], learns: bool, validation_share: float, aux_share: float) -> _Data:
    train, validation, outliers = (sources.get(role) for role in ("ID", "ID validation", "AUX"))
    assert train is not None
    if validation is None:
        train, validation = _split(train, validation_share, "ID", "validation_share")
    if outliers is None or not learns:
        return _Data(train, validation, None, outliers)
    return _Data(train, validation, *_split(outliers, aux_share, "AUX", "aux_share"))


def _split(source: TokenSource, share: float, role: str, name: str) -> tuple[TokenSource, TokenSource]:
    if not 0 < share < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {share}.")
    rest, taken = split(source, share, seed=0)
    if not len(rest) or not len(taken):
        raise InputError(
            f"{len(source)} {role} sequences are too few to split a share of {share:g} off for validation: "
            f"{len(rest)} and {len(taken)} would be left."
        )
    return rest, taken


def _share(detectors: Sequence[Detector], jobs: int | Literal["auto"]) -> Share:
    if jobs != "auto":
        return share_cores(len(detectors), jobs)
    # several fits on one GPU share its memory: that is for the user to decide
    on_gpu = resolve_device(detectors[0].get_params(deep=False).get("device", "cpu")).type == "cuda"
    return share_cores(len(detectors), 1 if on_gpu else None)


def _point(candidate: Candidate, of_seeds: Sequence[Outcome | Failure]) -> Point:
    settings, given, _ = candidate
    for outcome in of_seeds:
        if isinstance(outcome, Failure):
            return Point(settings, given, failure=outcome.reason)
    done = [outcome for outcome in of_seeds if isinstance(outcome, Outcome)]
    estimates = [outcome.auroc for outcome in done if outcome.auroc is not None]
    held_out = [outcome.held_out for outcome in done if outcome.held_out is not None]
    return Point(
        settings,
        given,
        auroc=Estimate(*np.mean(estimates, axis=0).tolist()) if estimates else None,
        per_seed=tuple(estimate.value for estimate in estimates),
        held_out=HeldOut(*np.mean(held_out, axis=0).tolist()) if held_out else None,
        fit_seconds=sum(outcome.fit_seconds for outcome in done),
        warnings=tuple(dict.fromkeys(warning for outcome in done for warning in outcome.warnings)),
    )


def _chosen(points: Sequence[Point]) -> Point | None:
    """The best, the detector as given among equals; without outliers that detector, unless it is a disaster."""
    there = [point for point in points if point.failure is None]
    if not there:
        raise InputError(f"None of the {len(points)} settings could be fitted; the first: {points[0].failure}")
    if there[0].held_out is None:
        return min(there, key=_rank)
    sound = [point for point in there if not point.disaster]
    return next((point for point in sound if point.given), min(sound, key=_rank, default=None))


def _rank(point: Point) -> tuple[bool, float, bool]:
    """Sorts the best first and failed ones last."""
    if point.auroc is not None:
        return False, -point.auroc.value, not point.given
    if point.held_out is not None:
        return False, point.held_out.ratio, not point.given
    return True, 0.0, not point.given


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) for name, value in settings.items()}


def _percent(share: float) -> float:
    return round(100 * share, 4)
