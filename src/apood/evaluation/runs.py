"""One method fitted once and its scores of many sets, kept on disk by what went into them.

The cache has a folder for each fit, named by a digest of the method, its parameters, the code and the data:

- `detector`: the fitted detector, as `Detector.save` writes it;
- `fit.json`: how long it took, what it warned of and whether it diverged, written last: it tells a complete fit;
- `fit.checkpoint` and `begun.json`: only while a fit is not complete;
- `scores-….safetensors`: one for each set that was scored, named by the digest of its data.

What cannot be read, or says that it is something else, is made anew.
"""

import contextlib
import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sklearn.base import clone

from apood.detectors.contract.artefact import describe_detector, load
from apood.detectors.contract.base import Detector, Scores
from apood.fitting.checkpoint import Checkpoint
from apood.support.errors import ArtefactError, DivergedWarning, FitWarning, InputError
from apood.support.files import atomic_file, lock_folder, read_json, refuse_unwritable, source_digest, write_json
from apood.support.version import __version__
from apood.tokens.digest import content_digest
from apood.tokens.source import TokenSource

__all__ = ["Run", "fitted", "run"]


class Run(NamedTuple):
    """What came of fitting one detector and scoring some sets with it.

    The times are those of the fit and the scoring that were really done, also where they are read from a cache; work
    that an interrupted fit lost after its last checkpoint does not count. `diverged` is the warning of a training that
    broke off.
    """

    scores: dict[str, Scores]
    fit_seconds: float
    score_seconds: float
    sequences: int
    artefact_bytes: int
    warnings: list[str]
    diverged: str | None

    @property
    def seconds_per_thousand(self) -> float:
        """Seconds to score 1000 sequences."""
        return 1000 * self.score_seconds / max(self.sequences, 1)


def run(
    detector: Detector, train: TokenSource, aux: TokenSource | None, sets: Mapping[str, TokenSource], cache: Path
) -> Run:
    """Fits a copy of `detector` on `train` (and `aux`) and scores every set.

    What lies in `cache` already is not done again. A fit that was interrupted goes on.
    """
    fit = _Fit(detector, train, aux, cache)
    scored = {name: _scored(fit, source) for name, source in sets.items()}
    facts = fit.facts()
    return Run(
        scores={name: scores for name, (scores, _) in scored.items()},
        fit_seconds=facts["seconds"],
        score_seconds=sum(seconds for _, seconds in scored.values()),
        sequences=sum(len(scores) for scores, _ in scored.values()),
        artefact_bytes=facts["bytes"],
        warnings=list(facts["warnings"]),
        diverged=facts["diverged"],
    )


def fitted(detector: Detector, train: TokenSource, aux: TokenSource | None, cache: Path) -> Detector:
    """The detector of such a run: read from the cache, or fitted now."""
    return _Fit(detector, train, aux, cache).detector()


class _Fit:
    """A detector that is fitted, or read from the cache, when something first needs it."""

    def __init__(self, detector: Detector, train: TokenSource, aux: TokenSource | None, cache: Path) -> None:
        detector.check_parameters()
        self._unfitted, self._train, self._aux = detector, train, aux
        self._known: Detector | None = None
        self.entry = cache / _key(detector, train, aux)
        refuse_unwritable(self.entry / "detector")

    def detector(self) -> Detector:
        if self._known is None:
            with lock_folder(self.entry):  # equal fits may be asked for at once: one is made, the others read it
                self._known = self._read() or self._fit()
        return self._known

    def facts(self) -> dict[str, Any]:
        """Seconds, warnings and size of the fit, which is done now if it was not."""
        facts = _read_facts(self.entry)
        if facts is None:
            self.detector()
            facts = _read_facts(self.entry)
        assert facts is not None  # a fit has just written them
        return facts

    def _read(self) -> Detector | None:
        if _read_facts(self.entry) is None:
            return None
        try:
            found = load(self.entry / "detector")
        except (ArtefactError, OSError):
            return None
        return found if type(found) is type(self._unfitted) else None  # a subclass may share its base's name

    def _fit(self) -> Detector:
        entry, checkpoint = self.entry, Checkpoint(self.entry / "fit.checkpoint")
        try:
            detector, facts = self._fitted_from(checkpoint)
        except ArtefactError as error:
            if error.__cause__ is not None:  # the disk failed: the checkpoint is worth keeping
                raise
            checkpoint.delete()  # it belongs to another fit
            detector, facts = self._fitted_from(checkpoint)
        artefact = entry / "detector"
        if artefact.exists():  # and could not be read
            shutil.rmtree(artefact)
        detector.save(artefact)
        size = sum(file.stat().st_size for file in artefact.rglob("*") if file.is_file())
        write_json(entry / "fit.json", {"bytes": size, **facts})
        checkpoint.delete()
        (entry / "begun.json").unlink()
        return detector

    def _fitted_from(self, checkpoint: Checkpoint) -> tuple[Detector, dict[str, Any]]:
        """A fitted copy, and how long it took and what it warned of."""
        detector: Detector = clone(self._unfitted)
        before = _begin(self.entry / "begun.json", checkpoint)
        begun = time.perf_counter()
        with _caught_fit_warnings() as caught:
            detector.fit(self._train, self._aux, checkpoint=checkpoint)
        return detector, {
            "seconds": before + time.perf_counter() - begun,
            "warnings": [text for _, text in caught],
            "diverged": next((text for category, text in caught if issubclass(category, DivergedWarning)), None),
        }


def _key(detector: Detector, train: TokenSource, aux: TokenSource | None) -> str:
    content = {
        "class": f"{type(detector).__module__}.{type(detector).__qualname__}",
        "detector": describe_detector(detector),
        "apood": [__version__, source_digest()],
        "data": [None if source is None else content_digest(source) for source in (train, aux)],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=_no_plain_value).encode()).hexdigest()
    return f"{detector.name}-{digest[:24]}"


def _no_plain_value(value: Any) -> Any:
    raise InputError(f"A fit cannot be kept by its parameters when one of them is {value!r}, which is no plain value.")


def _read_facts(entry: Path) -> dict[str, Any] | None:
    facts = _read_object(entry / "fit.json")
    kinds = {"seconds": float, "bytes": int, "warnings": list, "diverged": str | None}
    return facts if all(isinstance(facts.get(key), kind) for key, kind in kinds.items()) else None


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _begin(path: Path, checkpoint: Checkpoint) -> float:
    """Notes at `path` when a fit begins; how long the part of it took that its checkpoint holds already.

    A process that is killed can note nothing at its end, but a checkpoint's file knows when it was written. One that
    cannot be read is thrown away.
    """
    noted, before = _read_object(path), 0.0
    for file in checkpoint.path.parent.glob(f"{checkpoint.path.name}*"):
        try:
            with safe_open(file, "np"):
                pass
        except (SafetensorError, OSError):
            file.unlink()
        else:
            seconds, at = noted.get("seconds"), noted.get("at")
            if isinstance(seconds, float) and isinstance(at, float):
                before = max(before, seconds + max(0.0, file.stat().st_mtime - at))
    write_json(path, {"seconds": before, "at": time.time()})
    return before


def _scored(fit: _Fit, source: TokenSource) -> tuple[Scores, float]:
    """The scores of a set and how long they took."""
    digest = content_digest(source)
    path = fit.entry / f"scores-{digest[:24]}.safetensors"
    kept = _read_scores(path, digest, len(source))
    if kept is not None:
        return kept
    detector = fit.detector()
    begun = time.perf_counter()
    scores = detector.score_samples(source)
    seconds = time.perf_counter() - begun
    with atomic_file(path) as temporary:
        temporary.write_bytes(save({"scores": scores}, {"set": digest, "seconds": repr(seconds)}))
    return scores, seconds


def _read_scores(path: Path, digest: str, count: int) -> tuple[Scores, float] | None:
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            scores: Scores = file.get_tensor("scores")
        seconds = float(metadata["seconds"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None
    if metadata.get("set") != digest or scores.shape != (count,) or scores.dtype != np.float64:
        return None
    return scores, seconds


@contextlib.contextmanager
def _caught_fit_warnings() -> Iterator[list[tuple[type[Warning], str]]]:
    """Keeps the warnings of fits for the tables, and shows all others as before."""
    caught: list[tuple[type[Warning], str]] = []
    with warnings.catch_warnings():
        show_others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, FitWarning):
                caught.append((category, str(message)))
            else:
                show_others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        warnings.simplefilter("always", FitWarning)
        yield caught
