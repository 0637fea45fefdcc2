"""The contract of every detector: fit, score, calibrate, decide, save; and the checks of the data."""

import math
import warnings
from collections.abc import Callable, Collection, Generator, Hashable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from apood.decisions.conformal import benjamini_hochberg, conformal_p_values, conformal_threshold
from apood.detectors.contract.held_out import HeldOutFit
from apood.fitting.checkpoint import Checkpoint
from apood.support.errors import DataWarning, InputError, NotCalibratedError
from apood.support.progress import progress_bar
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.digest import sample_digest
from apood.tokens.identity import EncoderIdentity, describe_other, same_encoder
from apood.tokens.source import TokenSource, as_source, token_budget

__all__ = [
    "AuxUse",
    "Detector",
    "Scores",
    "find_nonempty",
    "get_required_parts",
    "refuse_incompatible",
    "refuse_lacking",
    "refuse_nonfinite",
    "refuse_unfit",
]

TOKENS = "tokens"


def get_required_parts(batch: TokenBatch, requires: frozenset[str]) -> dict[str, Ragged]:
    """The tokens, the channels, or both: whatever a method looks at."""
    return {name: batch if name == TOKENS else batch.channels[name] for name in sorted(requires)}


def find_nonempty(batch: TokenBatch, requires: frozenset[str]) -> torch.Tensor:
    """Which sequences have at least one row of everything that is required."""
    bounds = [part.offsets.numpy() for part in get_required_parts(batch, requires).values()]  # fast on a few numbers
    return torch.from_numpy(np.logical_and.reduce([own[1:] > own[:-1] for own in bounds]))


def refuse_incompatible(
    source: TokenSource, other: TokenSource, requires: Collection[str], role: str, other_role: str
) -> None:
    """Raise InputError if two sources have tokens of different dimensions or from different encoders."""
    if "tokens" in requires and source.dim != other.dim:
        raise InputError(f"The {role} tokens have D={source.dim}, the {other_role} tokens have D={other.dim}.")
    if not same_encoder(source.encoder, other.encoder):
        raise InputError(
            f"The {role} tokens come from another encoder ({describe_other(source.encoder, other.encoder)}) "
            f"than the {other_role} tokens ({describe_other(other.encoder, source.encoder)})."
        )


def refuse_lacking(source: TokenSource, method: str, requires: frozenset[str], role: str) -> None:
    """Refuses data without what the method looks at."""
    there = [*([TOKENS] if source.dim else []), *sorted(source.channels)]
    for lacking in sorted(requires - set(there)):
        raise InputError(f"The method {method} needs {lacking}, which the {role} lack; they have {', '.join(there)}.")


def refuse_unfit(
    source: TokenSource,
    requires: frozenset[str],
    role: str,
    check: Callable[[TokenBatch, int, str], None] | None = None,
) -> None:
    """Refuses, for fitting, a source without sequences, with empty ones, or with values that are not finite.

    `check` is what else is to be asked of each batch; see `Detector._check_batch`.
    """
    if len(source) == 0:
        raise InputError(f"There are no {role} sequences to fit on.")
    if TOKENS in requires:  # told by the lengths, without reading a token
        _refuse_empty(source.lengths > 0, TOKENS, 0, role)
    first, where = 0, f"the {role} data"
    with progress_bar(len(source), f"check {role}", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            for name, part in get_required_parts(batch, requires).items():
                _refuse_empty(part.lengths > 0, name, first, role)
            refuse_nonfinite(batch, requires, first, where)
            if check is not None:
                check(batch, first, where)
            first += len(batch)
            progress.update(len(batch))


def _refuse_empty(has_rows: torch.Tensor, name: str, first: int, role: str) -> None:
    if not bool(has_rows.all()):
        index = first + int((~has_rows).nonzero()[0])
        raise InputError(f"Sequence {index} of the {role} data has no {name}; remove empty sequences before fitting.")


def refuse_nonfinite(batch: TokenBatch, requires: frozenset[str], first: int, where: str) -> None:
    """Names the first NaN or infinite value; `first` is the number of the batch's first sequence."""
    for name, part in get_required_parts(batch, requires).items():
        if _are_finite(part.values):
            continue
        bad = (
            (~torch.isfinite(part.values)).flatten(1) if part.values.ndim > 1 else ~torch.isfinite(part.values)[:, None]
        )
        rows = bad.any(1).nonzero().flatten().cpu()
        if len(rows):
            sequence = int(torch.searchsorted(part.offsets, rows[0], right=True)) - 1
            row = int(rows[0] - part.offsets[sequence])
            what = f"Token {row}" if name == TOKENS else f"Row {row} of {name}"
            raise InputError(
                f"{what} of sequence {first + sequence} in {where} is NaN or infinite; every value must be finite."
            )


def _are_finite(values: torch.Tensor) -> bool:
    """In one cheap pass, because a finite sum has no NaN and no infinity in it; two where many 16-bit ones overflow."""
    return math.isfinite(values.sum()) or all(map(math.isfinite, torch.aminmax(values)))


Scores = npt.NDArray[np.float64]

AuxUse = Literal["unused", "optional", "required"]
"""Whether a method learns from auxiliary outliers."""

T = TypeVar("T")

_FEW = 64  # sequences that are scored before a progress bar would be there


class Detector(BaseEstimator):  # type: ignore[misc]
    """Base of all detectors. A score is higher for what looks more in-distribution.

    A subclass stores its constructor's arguments untouched, learns attributes whose names end in an
    underscore (tensors, numbers, texts: exactly these are saved), and implements `check_parameters`,
    `_fit` and `_score`. The score of a sequence may not depend on the sequences beside it.

    `requires` names what the method looks at: "tokens", or channels that lie beside them. `propagates_nonfinite`
    promises that a sequence with a non-finite value has no finite score: such values are then looked for only where a
    score is not finite, instead of reading everything, and waiting for it, before each batch.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset({"tokens"})
    aux: ClassVar[AuxUse] = "unused"
    propagates_nonfinite: ClassVar[bool] = False
    has_held_out_fit: ClassVar[bool] = False

    dim_: int
    encoder_: EncoderIdentity | None
    fitted_on_: str
    accept_: float
    threshold_: float
    calibration_scores_: Tensor

    # what a subclass writes

    def check_parameters(self) -> None:
        """Refuses constructor arguments that make no sense."""

    def _place(self, source: TokenSource, aux: TokenSource | None) -> tuple[TokenSource, TokenSource | None]:
        """The ID and AUX sequences where `fit` reads them best; channels that are not required may be left behind."""
        return source, aux

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        raise NotImplementedError

    def _score(self, tokens: TokenBatch) -> Tensor:
        """Scores `[sequences]` of a batch without empty sequences."""
        raise NotImplementedError

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        """Refuses finite values that the method cannot read; `first` is the number of the batch's first sequence."""

    def log_distances(self, scores: Tensor) -> Tensor:
        """The logarithms of the distances that the scores stand for; higher = more out-of-distribution.

        Methods are compared by them, because distances of ID sequences are skewed and their logarithms nearly
        normal. A score that lives on a logarithmic scale, or is no distance, is only turned around.
        """
        return -scores

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Settings worth trying on tokens of dimension `dim`, with AUX sequences (`supervised`) or without."""
        return [{}]

    def held_out_fit(self, tokens: TokenSource, scores: Scores) -> HeldOutFit:  # noqa: ARG002
        """Return how well the fitted model describes held-out ID sequences, given their scores.

        `apood select` uses it where there are no outliers. A method that implements it sets `has_held_out_fit`.
        """
        raise InputError(f"{self.name} cannot be judged without outliers.")

    # what a user calls

    def fit(self, tokens: Any, aux: Any = None, *, checkpoint: Checkpoint | None = None) -> Self:
        """Learns from in-distribution sequences, and from auxiliary outliers where the method can.

        Args:
            tokens: a TokenBatch, a TokenStore, a list of arrays `[tokens, D]`, or padded `(array, mask)`.
            aux: auxiliary outliers in the same forms, from one sequence to more than there are in `tokens`.
            checkpoint: where a long fit keeps its state, to go on after an interruption.
        """
        self.check_parameters()
        source = as_source(tokens)
        outliers = self._check_aux(aux, source)
        for data, role in ((source, "ID"), (outliers, "AUX")):
            if data is not None:
                refuse_lacking(data, self.name, self.requires, f"{role} data")
        source, outliers = self._place(source, outliers)
        for data, role in ((source, "ID"), (outliers, "AUX")):
            if data is not None:
                refuse_unfit(data, self.requires, role, self._check_batch)
        for learnt in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, learnt)
        self._fit(source, outliers, checkpoint)
        self.encoder_ = dict(source.encoder) if source.encoder is not None else None
        self.fitted_on_ = self._digest(source)
        self.dim_ = source.dim  # last: it is what tells a fitted detector
        return self

    def score_samples(self, tokens: Any) -> Scores:
        """One score a sequence, higher = more in-distribution; -inf (and a warning) for an empty sequence."""
        source, where = self._check_for_scoring(tokens), "the data to score"
        scores = np.full(len(source), -np.inf)
        first = empty = 0
        # closed by name: what an error holds on to would keep the progress bar open, and the message behind it
        with closing(_read_with_progress(source)) as batches, torch.inference_mode():
            for batch in batches:
                if not self.propagates_nonfinite:
                    refuse_nonfinite(batch, self.requires, first, where)
                self._check_batch(batch, first, where)
                whole = find_nonempty(batch, self.requires).numpy()
                rows = scores[first : first + len(batch)]
                if whole.all():
                    rows[:] = self._score_batch(batch).numpy()
                else:
                    if whole.any():
                        rows[whole] = self._score_batch(batch.select(whole)).numpy()
                    empty += len(batch) - int(whole.sum())
                if self.propagates_nonfinite and not np.isfinite(rows).all():
                    refuse_nonfinite(batch, self.requires, first, where)
                first += len(batch)
        if empty:
            warnings.warn(
                f"{empty} of {len(source)} sequences have no {' or '.join(sorted(self.requires))}; "
                "their score is -inf and their decision OOD.",
                DataWarning,
                stacklevel=2,
            )
        return scores

    def calibrate(self, tokens: Any, accept: float = 0.95) -> Self:
        """Sets the threshold from in-distribution sequences that were not used in `fit`.

        A new in-distribution input is then accepted with probability at least `accept`, whatever the
        distribution, as long as it is exchangeable with these.
        """
        source = as_source(tokens)
        scores = self.score_samples(source)
        if self.was_fitted_on(source):
            warnings.warn(
                "The detector is calibrated on the very sequences it was fitted on, which look too ordinary to it: "
                "the threshold promises nothing about new inputs; use sequences that were held out.",
                DataWarning,
                stacklevel=2,
            )
        self.threshold_ = conformal_threshold(scores, accept)
        self.accept_ = accept
        self.calibration_scores_ = torch.from_numpy(np.sort(scores))
        return self

    def was_fitted_on(self, tokens: Any) -> bool:
        """Whether these are all the sequences that the detector learnt from, in the same order."""
        check_is_fitted(self, "dim_")
        return self._digest(as_source(tokens)) == self.fitted_on_

    def decision_function(self, tokens: Any) -> Scores:
        """Score minus threshold: negative means out-of-distribution."""
        self._check_calibrated()
        return self._above_threshold(self.score_samples(tokens))

    def predict(self, tokens: Any) -> npt.NDArray[np.int64]:
        """+1 in-distribution, -1 out-of-distribution."""
        self._check_calibrated()
        return self.decide(self.score_samples(tokens))

    def decide(self, scores: Scores) -> npt.NDArray[np.int64]:
        """What `predict` says of sequences that were scored before."""
        self._check_calibrated()
        return np.where(self._above_threshold(scores) >= 0, 1, -1)

    def p_values(self, tokens: Any) -> Scores:
        """How unusual each sequence is: an ID sequence gets a p-value <= α with probability at most α."""
        self._check_calibrated()
        return conformal_p_values(self.calibration_scores_.numpy(), self.score_samples(tokens))

    def select_ood(self, tokens: Any, rate: float = 0.05) -> npt.NDArray[np.bool_]:
        """Which of many sequences to call OOD so that at most a share `rate` of these calls is wrong on average."""
        return benjamini_hochberg(self.p_values(tokens), rate)

    def save(self, folder: str | Path) -> None:
        """Writes the detector as a folder of JSON and safetensors that `apood.load` reads."""
        from apood.detectors.contract.artefact import (
            save_detector,  # it builds detectors by name, so it imports this module
        )

        check_is_fitted(self, "dim_")
        save_detector(self, Path(folder))

    # what scoring keeps beside what was learnt

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned for `key`, made anew after any attribute was set.

        For copies on a device and what is built from them. It belongs to this very object: it is neither saved nor
        pickled nor copied with it. Threads that score at the same time may make the same thing twice.
        """
        cache: dict[Hashable, T] = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            with torch.inference_mode(False):  # otherwise it could not be used outside of inference mode
                cache[key] = make()
        return cache[key]

    def _copy_on(self, device: torch.device, name: str) -> Tensor:
        """Return the learnt tensor of that name on `device`, copied there once."""
        learnt: Tensor = getattr(self, name)
        return learnt if learnt.device == device else self._cached((name, device), lambda: learnt.to(device))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # after the value is set: a thread that still computes from the old one then writes to a cache that nobody reads
        self.__dict__.pop("_cache", None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_cache"}

    def _score_batch(self, batch: TokenBatch) -> Tensor:
        """Scores in float64; finite tokens whose score overflows are as far outside as can be."""
        return self._score(batch).cpu().double().nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)

    def _digest(self, source: TokenSource) -> str:
        return sample_digest(source, self.requires - {"tokens"})

    # checks

    def _check_aux(self, aux: Any, source: TokenSource) -> TokenSource | None:
        if aux is None:
            if self.aux == "required":
                raise InputError(f"{self.name} learns what sets ID and AUX sequences apart, and no AUX were given.")
            return None
        if self.aux == "unused":
            raise InputError(f"{self.name} learns from in-distribution data alone and takes no AUX sequences.")
        outliers = as_source(aux)
        refuse_incompatible(outliers, source, self.requires, "AUX", "ID")
        return outliers

    def _check_calibrated(self) -> None:
        check_is_fitted(self, "dim_")
        if not hasattr(self, "threshold_"):
            raise NotCalibratedError(
                f"This {self.name} detector has no threshold yet: call calibrate with in-distribution sequences first."
            )

    def _above_threshold(self, scores: Scores) -> Scores:
        # a score of -inf is out-of-distribution even where empty calibration sequences made the threshold -inf too
        outside = np.full_like(scores, -np.inf)
        return np.subtract(scores, self.threshold_, out=outside, where=~np.isneginf(scores))

    def _check_for_scoring(self, tokens: Any) -> TokenSource:
        if not hasattr(self, "dim_"):
            check_is_fitted(self, "dim_")
        source = as_source(tokens)
        refuse_lacking(source, self.name, self.requires, "data to score")
        if not same_encoder(self.encoder_, source.encoder):
            raise InputError(
                f"The tokens come from another encoder ({describe_other(source.encoder, self.encoder_)}) than those "
                f"that this {self.name} detector was fitted on ({describe_other(self.encoder_, source.encoder)})."
            )
        if "tokens" in self.requires and source.dim != self.dim_:
            raise InputError(f"The tokens have D={source.dim}, this {self.name} detector was fitted on D={self.dim_}.")
        return source


def _read_with_progress(source: TokenSource) -> Generator[TokenBatch]:
    """All sequences in batches, with a progress bar where there are many."""
    budget = token_budget(source.dim)
    if len(source) <= _FEW:
        if isinstance(source, TokenBatch) and 0 < len(source.values) <= budget:
            yield source
        else:
            yield from source.batches(budget)
        return
    with progress_bar(len(source), "score", "seq") as progress:
        for batch in source.batches(budget):
            yield batch
            progress.update(len(batch))
