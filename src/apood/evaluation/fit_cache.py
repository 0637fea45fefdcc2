"""Fits and scores that are kept on disk, so that none is made twice.

The cache has one folder for each fit. Its name is a digest of the method, its parameters, the code and the data:

- `detector`: the fitted detector, as `Detector.save` writes it;
- `fit.json`: the seconds, the warnings and whether the training diverged; written last, it marks a complete fit;
- `fit.checkpoint` and `begun.json`: only while a fit is not complete;
- `scores-….safetensors`: one for each set that was scored, named by the digest of its data.

Files that cannot be read, or that belong to something else, are made again.
"""

import glob
import hashlib
import inspect
import json
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone

from apood.detectors.contract.artefact import describe_detector, load_detector
from apood.detectors.contract.base import Detector, Scores
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, DivergedWarning, FitWarning, InputError
from apood.support.files import (
    atomic_file,
    lock_folder,
    read_json,
    refuse_unwritable,
    sha256_of,
    source_digest,
    write_json,
)
from apood.support.sealed import pack_sealed, read_sealed
from apood.support.version import __version__
from apood.tokens.digests import content_digest
from apood.tokens.documents import count_documents
from apood.tokens.source import TokenSource

__all__ = ["CachedFit", "describe_code"]


class CachedFit:
    """A detector that is fitted, or read from the cache, when something first needs it.

    Attributes:
        unfitted: the detector as it was given, which stays unfitted.
        folder: the folder of this fit in the cache.
    """

    def __init__(self, detector: Detector, train: TokenSource, aux: TokenSource | None, cache: Path) -> None:
        detector.check_parameters()
        self.unfitted, self._train, self._aux = detector, train, aux
        self._known: Detector | None = None
        self.folder = cache / _make_key(detector, train, aux)
        refuse_unwritable(self.folder / "detector")

    @property
    def is_done(self) -> bool:
        """Whether the cache has the fit."""
        return _read_facts(self.folder) is not None

    def fit_or_load(self) -> Detector:
        """Return the fitted detector."""
        if self._known is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with lock_folder(self.folder):  # equal fits may be asked for at once: one is made, the others read it
                self._known = self._read() or self._fit()
        return self._known

    def read_facts(self) -> dict[str, Any]:
        """Return the seconds, warnings and size of the fit, which is made first if it is missing."""
        facts = _read_facts(self.folder)
        if facts is None:
            self.fit_or_load()
            facts = _read_facts(self.folder)
        assert facts is not None  # the fit has just written them
        return facts

    def score(self, source: TokenSource) -> tuple[Scores, float]:
        """Return the scores of a set and the seconds that scoring took."""
        digest = content_digest(source)
        path = self.folder / f"scores-{digest[:24]}.safetensors"
        kept = _read_scores(path, digest, count_documents(source))
        if kept is not None:
            return kept
        detector = self.fit_or_load()
        begun = time.perf_counter()
        scores = detector.score_samples(source)
        seconds = time.perf_counter() - begun
        with atomic_file(path) as temporary:
            facts = {"set": digest, "seconds": repr(seconds)}
            temporary.write_bytes(pack_sealed({"scores": torch.from_numpy(scores)}, facts))
        return scores, seconds

    def _read(self) -> Detector | None:
        if _read_facts(self.folder) is None:
            return None
        try:
            found = load_detector(self.folder / "detector")
        except (ArtefactError, OSError):
            return None
        if type(found) is not type(self.unfitted):  # a subclass may share its base's name
            return None
        self._forget_beginning()  # a fit that was killed at its very end may have left it
        return found

    def _fit(self) -> Detector:
        folder, checkpoint = self.folder, Checkpoint(self.folder / "fit.checkpoint")
        try:
            detector, facts = self._fit_from(checkpoint)
        except ArtefactError as error:
            if error.__cause__ is not None:  # the disk failed, and the checkpoint is worth keeping
                raise
            checkpoint.delete()  # it belongs to another fit
            detector, facts = self._fit_from(checkpoint)
        artefact = folder / "detector"
        if artefact.exists():  # it could not be read
            shutil.rmtree(artefact)
        detector.save(artefact)
        size = sum(file.stat().st_size for file in artefact.rglob("*") if file.is_file())
        write_json(folder / "fit.json", {"bytes": size, **facts})
        self._forget_beginning()
        return detector

    def _forget_beginning(self) -> None:
        """Delete what is there only while a fit is not complete."""
        Checkpoint(self.folder / "fit.checkpoint").delete()
        (self.folder / "begun.json").unlink(missing_ok=True)

    def _fit_from(self, checkpoint: Checkpoint) -> tuple[Detector, dict[str, Any]]:
        """Return a fitted copy, with the seconds and the warnings of the fit."""
        detector: Detector = clone(self.unfitted)
        before = _begin(self.folder / "begun.json", checkpoint)
        begun = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            detector.fit(self._train, aux=self._aux, checkpoint=checkpoint)
        seconds = before + time.perf_counter() - begun
        own = [warning for warning in caught if issubclass(warning.category, FitWarning)]
        diverged = [str(warning.message) for warning in own if issubclass(warning.category, DivergedWarning)]
        for other in caught:  # those of libraries are shown as usual
            if other not in own:
                warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        return detector, {
            "seconds": seconds,
            "warnings": [str(warning.message) for warning in own],
            "diverged": diverged[0] if diverged else None,
        }


def _make_key(detector: Detector, train: TokenSource, aux: TokenSource | None) -> str:
    content = {
        "class": f"{type(detector).__module__}.{type(detector).__qualname__}",
        "detector": describe_detector(detector),
        "code": describe_code(detector),
        "data": [None if source is None else content_digest(source) for source in (train, aux)],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=_refuse_value).encode()).hexdigest()
    return f"{detector.name}-{digest[:24]}"


def describe_code(detector: Detector) -> list[Any]:
    """Return JSON that changes with the code of a detector, of the classes that it is derived from, and of its members.

    A class from elsewhere is known by its file. What that file imports is not looked at.
    """
    kinds = {kind for part in _list_parts(detector) for kind in type(part).__mro__} - {*BaseEstimator.__mro__}
    files = {f"{kind.__module__}:{kind.__qualname__}": _hash_file(kind) for kind in kinds}
    return [__version__, source_digest(), files]


def _list_parts(detector: Detector) -> Iterator[Detector]:
    """Yield the detector and those among its parameters, such as the members of a fusion."""
    yield detector
    for value in detector.get_params(deep=False).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Detector):
                yield from _list_parts(part)


def _hash_file(kind: type[Detector]) -> str | None:
    """Return the sha256 of the file of a class; None if it has no file, as in a notebook."""
    try:
        return sha256_of(Path(inspect.getfile(kind)))
    except (OSError, TypeError, InputError):
        return None


def _refuse_value(value: Any) -> Any:
    raise InputError(f"A fit cannot be cached if one of its parameters is {value!r}, which is not a plain value.")


def _read_facts(folder: Path) -> dict[str, Any] | None:
    facts = _read_object(folder / "fit.json")
    kinds = {"seconds": float, "bytes": int, "warnings": list, "diverged": str | None}
    return facts if all(isinstance(facts.get(key), kind) for key, kind in kinds.items()) else None


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty if there is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _begin(path: Path, checkpoint: Checkpoint) -> float:
    """Write to `path` that a fit begins now, and return the seconds of work that its checkpoint already holds.

    A killed process cannot write anything at its end, but the time at which its checkpoint was written is known. A
    checkpoint that cannot be read is deleted.
    """
    noted, before = _read_object(path), 0.0
    for file in checkpoint.path.parent.glob(f"{glob.escape(checkpoint.path.name)}*"):
        try:
            read_sealed(file)
        except (OSError, ValueError):
            file.unlink()
        else:
            seconds, at = noted.get("seconds"), noted.get("at")
            if isinstance(seconds, float) and isinstance(at, float):
                before = max(before, seconds + max(0.0, file.stat().st_mtime - at))
    write_json(path, {"seconds": before, "at": time.time()})
    return before


def _read_scores(path: Path, digest: str, count: int) -> tuple[Scores, float] | None:
    try:
        facts, tensors = read_sealed(path)
        scores: Scores = tensors["scores"].numpy()
        seconds = float(facts["seconds"])
    except (OSError, KeyError, ValueError):
        return None
    if facts.get("set") != digest or scores.shape != (count,) or scores.dtype != np.float64:
        return None
    return scores, seconds
