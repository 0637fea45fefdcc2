"""The contract of every detector: fit, score, calibrate, decide, save."""

import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from apood.decisions.conformal import Calibration, benjamini_hochberg, find_rank
from apood.detectors.contract.data_checks import (
    find_nonempty,
    is_coarse,
    refuse_incompatible,
    refuse_lacking,
    refuse_nonfinite,
    refuse_other_than_labels,
    refuse_unfit,
)
from apood.detectors.contract.held_out import HeldOutFit, LeftOut
from apood.detectors.shared.explanation import Explanation, explain_source
from apood.detectors.shared.sinks import Sinks, find_sinks, leave_out, mark_nonfinite_ends
from apood.fitting.optimise import Checkpoint
from apood.support.errors import DataWarning, InputError, NotCalibratedError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.digests import sample_digest
from apood.tokens.documents import count_documents, find_worst
from apood.tokens.identity import EncoderIdentity, describe_other, same_encoder
from apood.tokens.source import TokenSource, as_source, count_trimmed, read_with_progress, trim_ends

__all__ = ["AuxUse", "Detector", "Scores"]

Scores = npt.NDArray[np.float64]

AuxUse = Literal["unused", "optional", "required"]
"""Whether a method learns from auxiliary outliers."""

T = TypeVar("T")

_TOKENS = "tokens"
_FREE = frozenset({"seed", "device"})  # parameters that may be changed after `fit`: no score depends on them then


class Detector(BaseEstimator):  # type: ignore[misc]
    """The base class of all detectors. A higher score means more in-distribution.

    A subclass stores its constructor's arguments unchanged, learns attributes whose names end in an underscore
    (tensors, numbers, texts; exactly these are saved), and implements `check_parameters`, `_fit` and `_score`. The
    score of a sequence must not depend on other sequences. Loaded attributes are checked against their annotations; the
    shape of a tensor can be part of it, as in `Annotated[Tensor, "N D"]`, where D is `dim_`.

    Class attributes that a subclass sets:
        name: the name of the method.
        requires: what the method reads: "tokens", names of channels, or both.
        welcomes: channels that it also reads if the data have them.
        aux: whether it learns from auxiliary outliers: "unused", "optional" or "required".
        propagates_nonfinite: True promises that a sequence with a non-finite value has no finite score. Such values are
            then searched only after a score that is not finite, instead of reading all values before each batch.
        pools_tokens: whether the method pools tokens, so that sinks are left out: `_fit` and `_score` do not see them.
        has_held_out_fit: whether the method implements `held_out_fit`.
        explains: whether the method implements `_explain`.
        renamed_parameters: new names of constructor arguments that had another name before. Saved detectors are read
            with either.
        absent_parameters: values of constructor arguments in detectors that were saved before these existed.

    Attributes:
        dim_: D, the dimension of the tokens; 0 if there are none.
        skips_first_: whether the first token of each sequence is left out because it is a sink.
        skips_last_: whether the last token of each sequence is left out because it is a sink.
        encoder_: identity of the encoder of the ID sequences; None if unknown.
        fitted_on_: digest of the ID sequences.
        accept_: accept rate of the calibration.
        threshold_: a sequence is in-distribution if its score is at least this; set by `calibrate`.
        calibration_scores_: scores of the calibration sequences in ascending order.

    The last three are read from `calibration`, one object that `calibrate` replaces in one step.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset({"tokens"})
    welcomes: ClassVar[frozenset[str]] = frozenset()
    aux: ClassVar[AuxUse] = "unused"
    propagates_nonfinite: ClassVar[bool] = False
    pools_tokens: ClassVar[bool] = False
    has_held_out_fit: ClassVar[bool] = False
    explains: ClassVar[bool] = False
    renamed_parameters: ClassVar[Mapping[str, str]] = MappingProxyType({})
    absent_parameters: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    dim_: int
    skips_first_: bool = False  # detectors that were saved before this existed skip nothing
    skips_last_: bool = False
    encoder_: EncoderIdentity | None
    fitted_on_: str
    _calibration: Calibration
    _fitted_with: dict[str, Any]  # the parameters at the time of the fit

    # Methods that a subclass implements.

    @property
    def aux_requires(self) -> frozenset[str]:
        """What AUX sequences must have."""
        return self.requires

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""

    def _place(self, source: TokenSource, aux: TokenSource | None) -> tuple[TokenSource, TokenSource | None]:
        """Return the ID and AUX sequences where `fit` reads them fastest, with the required channels at least."""
        return source, aux

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        """Set the learnt attributes from checked sequences."""
        raise NotImplementedError

    def _score(self, tokens: TokenBatch) -> Tensor:
        """Return the scores `[sequences]` of a batch without empty sequences."""
        raise NotImplementedError

    def _explain(self, tokens: TokenBatch) -> Explanation:
        """Return what the tokens of a batch without empty sequences contribute to the distances behind the scores.

        The contributions of a sequence sum to its distance, the score at a distance of 0 minus the score.
        """
        raise NotImplementedError

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        """Raise `InputError` if a finite value is not allowed; `first` is the index of the batch's first sequence."""

    def score_training(
        self,
        chosen: Tensor,  # noqa: ARG002
        documents: Tensor | None = None,  # noqa: ARG002
        beginnings: TokenSource | None = None,  # noqa: ARG002
    ) -> LeftOut | None:
        """Return the scores that training sequences would have if the detector had not seen them, or None.

        A method that cannot leave a sequence out without another fit does not implement it. Then a fusion holds
        sequences out.

        Args:
            chosen: the indices of the training sequences.
            documents: the number of the document of each training sequence, which is left out as a whole; None if
                every sequence is a document.
            beginnings: beginnings of the chosen sequences, which are scored instead of them.
        """
        return None

    def find_kept(self, length: int) -> slice:
        """Return which tokens of a sequence of `length` tokens are pooled: all, or all but the sinks."""
        before, after = count_trimmed(torch.tensor([length]), first=self.skips_first_, last=self.skips_last_)
        return slice(int(before), length - int(after))

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the distances behind the scores; higher means more out-of-distribution.

        A fusion compares methods by them, because distances of ID sequences are skewed and their logarithms are nearly
        normal. The default, minus the score, is right for scores on a logarithmic scale and for scores that are not
        distances.
        """
        return -scores

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return settings worth trying on tokens of dimension `dim`, with AUX sequences (`supervised`) or without."""
        return [{}]

    def count_operations(self, source: TokenSource) -> float:  # noqa: ARG002
        """Return about how many floating-point operations the training of a fit takes; 0 if it trains nothing."""
        return 0.0

    def held_out_fit(self, tokens: TokenSource) -> HeldOutFit:  # noqa: ARG002
        """Return how well the fitted model describes held-out ID sequences.

        `apood select` uses it if there are no outliers. A method that implements it sets `has_held_out_fit`.
        """
        raise InputError(f"{self.name} cannot be judged without outliers.")

    # Methods that users call.

    def fit(self, X: Any, y: Any = None, *, aux: Any = None, checkpoint: Checkpoint | None = None) -> Self:
        """Learn from in-distribution sequences and, if the method can, from auxiliary outliers.

        Args:
            X: a TokenBatch, a TokenStore, a list of arrays `[tokens, D]`, or padded `(array, mask)`.
            y: one label per sequence, as scikit-learn passes them. They are ignored: all sequences in `X` are taken
                for in-distribution, so leave known outliers out.
            aux: auxiliary outliers in the forms of `X`, from one sequence to more than there are in `X`.
            checkpoint: where a long fit saves its state, so that it can continue after an interruption.
        """
        self.check_parameters()
        source = as_source(X)
        refuse_other_than_labels(y, count_documents(source))
        outliers = self._check_aux(aux, source)
        refuse_lacking(source, self.name, self.requires, "ID data")
        if outliers is not None:
            refuse_lacking(outliers, self.name, self.aux_requires, "AUX data")
        source, outliers = self._place(source, outliers)
        refuse_unfit(source, self.requires, "ID", self._check_batch)
        if outliers is not None:
            refuse_unfit(outliers, self.aux_requires, "AUX", self._check_batch)
        for learnt in [key for key in vars(self) if key.endswith("_") or key in ("_calibration", "_fitted_with")]:
            delattr(self, learnt)
        sinks = find_sinks(source) if self.pools_tokens else Sinks()
        self.skips_first_, self.skips_last_ = sinks
        self._fit(leave_out(sinks, source), None if outliers is None else leave_out(sinks, outliers), checkpoint)
        self._remember_parameters()
        self.encoder_ = dict(source.encoder) if source.encoder is not None else None
        self.fitted_on_ = self._digest(source)
        self.dim_ = source.dim  # set last, because it marks a detector as fitted
        return self

    def score_samples(self, X: Any) -> Scores:
        """Return one score per document, higher if more in-distribution; -inf (and a warning) for an empty one.

        A document is a sequence, or all windows of a long text. Then its score is that of the worst window.
        """
        source = as_source(X)
        scores = self._score_sequences(source)
        return scores[find_worst(scores, source)]

    def _score_sequences(self, tokens: Any) -> Scores:
        """Return one score per sequence, even if several are windows of one document."""
        scores, nonempty = self._score_source(self._check_for_scoring(tokens))
        if empty := len(scores) - int(nonempty.sum()):
            warnings.warn(
                f"{empty} of {len(scores)} sequences have no {' or '.join(sorted(self.requires))}; "
                "their score is -inf and their decision OOD.",
                DataWarning,
                stacklevel=3,
            )
        return scores

    def _score_source(self, source: TokenSource) -> tuple[Scores, npt.NDArray[np.bool_]]:
        """Return the scores of checked sequences, and which sequences are not empty."""
        scores, nonempty = np.full(len(source), -np.inf), np.ones(len(source), dtype=np.bool_)
        first, where = 0, "the data to score"
        # closed explicitly, because the traceback of an error would keep the progress bar open
        with closing(read_with_progress(source, "score")) as batches, torch.inference_mode():
            for batch in batches:
                if not self.propagates_nonfinite:
                    refuse_nonfinite(batch, self.requires, first, where)
                self._check_batch(batch, first, where)
                whole = find_nonempty(batch, self.requires).numpy()
                rows = scores[first : first + len(batch)]
                if whole.all():
                    rows[:] = self._score_batch(batch).numpy()
                else:
                    nonempty[first : first + len(batch)] = whole
                    if whole.any():
                        rows[whole] = self._score_batch(batch.select(whole)).numpy()
                if self.propagates_nonfinite and not np.isfinite(rows).all():
                    refuse_nonfinite(batch, self.requires, first, where)
                first += len(batch)
        return scores, nonempty

    def explain(self, X: Any) -> Explanation:
        """Return what each token contributes to the distance of its sequence, with heads, neighbours or members.

        Windows of a long text are sequences here, each with an explanation of its own.
        """
        source = self._check_for_scoring(X)
        if not self.explains:
            raise InputError(f"The score of {self.name} is not made of parts that belong to single tokens.")

        def check(batch: TokenBatch, first: int) -> None:
            refuse_nonfinite(batch, self.requires, first, "the data to explain")
            self._check_batch(batch, first, "the data to explain")

        return explain_source(source, self._explain, check, first=self.skips_first_, last=self.skips_last_)

    def token_contributions(self, X: Any) -> Ragged:
        """Return how much each token adds to the distance of its sequence: the contributions of `explain`."""
        return self.explain(X).contributions

    def calibrate(self, X: Any, accept: float = 0.95) -> Self:
        """Set the threshold from in-distribution sequences that were not used in `fit`.

        A new in-distribution document is then accepted with probability at least `accept`, for every distribution, if
        it is exchangeable with the documents given here. Each of them counts once, by its worst window. Empty sequences
        are refused here as in `fit`: the guarantee is for inputs that can be scored.
        """
        source = self._check_for_scoring(X)
        find_rank(count_documents(source), accept)  # raises an error now rather than after the scoring
        if _TOKENS in self.requires:  # the lengths are known without reading any token
            self._refuse_empty_calibration(source.lengths.numpy() > 0)
        scores, nonempty = self._score_source(source)
        self._refuse_empty_calibration(nonempty)
        if self.was_fitted_on(source):
            warnings.warn(
                "The detector is calibrated on the sequences it was fitted on, whose scores are too high: "
                "the threshold guarantees nothing about new inputs; use held-out sequences.",
                DataWarning,
                stacklevel=2,
            )
        scores = scores[find_worst(scores, source)]
        calibration = Calibration.from_scores(scores, accept, coarse=is_coarse(source))
        if np.isneginf(calibration.threshold):  # a score of -inf is always OOD, so the guarantee could not hold
            raise InputError(
                f"{np.isneginf(scores).sum()} of {len(scores)} calibration sequences have the score -inf, because "
                f"their values are too large, and are always refused: too many for an accept rate of {accept}; "
                "remove them, or choose a lower accept rate."
            )
        self._calibration = calibration
        return self

    @property
    def calibration(self) -> Calibration:
        """The accept rate, threshold and scores of one calibration, to decide by several of them consistently."""
        check_is_fitted(self, "dim_")
        if "_calibration" not in vars(self):
            raise NotCalibratedError(
                f"This {self.name} detector has no threshold yet: call calibrate with in-distribution sequences first."
            )
        return self._calibration

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        check_is_fitted(self, "dim_")
        self._calibration = calibration

    @property
    def accept_(self) -> float:
        """Accept rate of the calibration."""
        return self._calibration.accept

    @property
    def threshold_(self) -> float:
        """Lowest score that is in-distribution."""
        return self._calibration.threshold

    @property
    def calibration_scores_(self) -> Tensor:
        """Scores of the calibration sequences in ascending order, as a copy."""
        return torch.tensor(self._calibration.scores)

    def was_fitted_on(self, X: Any) -> bool:
        """Return whether these are all the sequences that the detector was fitted on, in the same order."""
        check_is_fitted(self, "dim_")
        return self._digest(as_source(X)) == self.fitted_on_

    def decision_function(self, X: Any) -> Scores:
        """Return score minus threshold; negative means out-of-distribution.

        Before `calibrate` there is no threshold, and the scores themselves are returned. They rank the documents, which
        is all that `scoring="roc_auc"` of scikit-learn needs, but their sign means nothing, and `predict` refuses.
        """
        calibration = vars(self).get("_calibration")
        scores = self.score_samples(X)
        return scores if calibration is None else calibration.subtract_threshold(scores)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return +1 for in-distribution and -1 for out-of-distribution documents."""
        return np.where(self.calibration.accepts(self.score_samples(X)), 1, -1)

    def decide(self, scores: Scores) -> npt.NDArray[np.int64]:
        """Return the result of `predict` for sequences that are already scored."""
        return np.where(self.calibration.accepts(scores), 1, -1)

    def p_values(self, X: Any) -> Scores:
        """Return conformal p-values: an ID sequence gets a p-value <= α with probability at most α."""
        return self.calibration.p_values(self.score_samples(X))

    def select_ood(self, X: Any, rate: float = 0.05) -> npt.NDArray[np.bool_]:
        """Return which sequences to call OOD so that, on average, at most a share `rate` of these calls is wrong."""
        return benjamini_hochberg(self.p_values(X), rate)

    def save(self, folder: str | Path, *, facts: Mapping[str, Any] | None = None) -> None:
        """Write the detector, with `facts` about it, to a folder or to `s3://bucket/folder`, for `apood.load`."""
        from apood.detectors.contract.artefact import save_detector  # here, because it imports this module

        check_is_fitted(self, "dim_")
        self._compare_parameters()  # without the cache: nothing tells it that a parameter of a member was set
        save_detector(self, folder, facts)

    # The cache of what scoring derives from learnt attributes.

    def _get_cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned for `key`; it is made again after any attribute was set.

        For copies on a device and what is built from them. It belongs to this object alone: it is neither saved nor
        pickled nor copied with it. Threads that score at the same time may make the same thing twice.
        """
        cache: dict[Hashable, T] = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            with torch.inference_mode(False):  # otherwise it could not be used outside of inference mode
                cache[key] = make()
        return cache[key]

    def _copy_on(self, device: torch.device, name: str) -> Tensor:
        """Return the learnt tensor of that name on `device`, copied there once."""
        if getattr(self, name).device == device:
            return cast(Tensor, getattr(self, name))
        # Read again for the cache, because another thread may have set it meanwhile.
        return self._get_cached((name, device), lambda: cast(Tensor, getattr(self, name)).to(device))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_"):  # a new calibration changes nothing that is cached
            # after the value is set: a thread that still computes from the old one writes to a cache that nobody reads
            self.__dict__.pop("_cache", None)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "outlier_detector"
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_cache"}

    def _score_batch(self, batch: TokenBatch) -> Tensor:
        """Return scores in float64; a score that overflows is -inf."""
        if self.skips_first_ or self.skips_last_:
            marks = mark_nonfinite_ends(batch)  # a value that is not finite must show even in a token that is left out
            scores = self._score(trim_ends(batch, first=self.skips_first_, last=self.skips_last_))
            scores = (scores.double() + marks.to(scores.device)).cpu()  # added where the scores are: one wait, not two
        else:
            scores = self._score(batch).cpu().double()
        return scores.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)

    def _digest(self, source: TokenSource) -> str:
        return sample_digest(source, self.requires - {"tokens"})

    # Checks.

    def _check_aux(self, aux: Any, source: TokenSource) -> TokenSource | None:
        if aux is None:
            if self.aux == "required":
                raise InputError(f"{self.name} learns to tell ID from AUX sequences, and no AUX sequences were given.")
            return None
        if self.aux == "unused":
            raise InputError(f"{self.name} learns from in-distribution data alone and takes no AUX sequences.")
        outliers = as_source(aux)
        refuse_incompatible(outliers, source, self.requires, "AUX", "ID")
        return outliers

    def _refuse_empty_calibration(self, nonempty: npt.NDArray[np.bool_]) -> None:
        if not nonempty.all():
            empty = np.flatnonzero(~nonempty)
            raise InputError(
                f"{len(empty)} of {len(nonempty)} calibration sequences have no {' or '.join(sorted(self.requires))}, "
                f"the first is sequence {empty[0]}; remove empty sequences before calibrating: they are always refused."
            )

    def _remember_parameters(self) -> None:
        """Store the parameters as those that the learnt attributes belong to."""
        self._fitted_with = _describe_parameters(self)

    def _check_unchanged(self) -> None:
        """Raise an error if the detector is not fitted, or if its parameters are not those that it was fitted with."""
        if not hasattr(self, "dim_"):
            check_is_fitted(self, "dim_")
        self._get_cached("unchanged", self._compare_parameters)  # compared once after any attribute was set

    def _compare_parameters(self) -> bool:
        for name, value in _describe_parameters(self).items():
            if value != (before := self._fitted_with[name]):
                raise InputError(
                    f"This {self.name} detector was fitted with {name}={before!r}, and {name} is now {value!r}: "
                    "fit it again, or set the parameter back."
                )
        return True

    def _check_for_scoring(self, tokens: Any) -> TokenSource:
        self._check_unchanged()
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


def _describe_parameters(value: Any) -> Any:
    """Return the parameters of a detector that its scores depend on, or those in a list; other values unchanged."""
    if isinstance(value, Detector):
        parameters = value.get_params(deep=False).items()
        return {name: _describe_parameters(own) for name, own in parameters if name not in _FREE}
    return [_describe_parameters(own) for own in value] if isinstance(value, list) else value
