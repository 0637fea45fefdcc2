"""A generator behind a detector: out-of-distribution inputs are refused before anything is generated."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from apood.decisions.conformal import conformal_p_values
from apood.detectors.contract.base import Detector, find_nonempty, get_required_parts
from apood.encoders.text.encoder import TextEncoder
from apood.serving.generators import Guardable, GuardedCallable, GuardedModel, Reading
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

__all__ = ["Guard", "Guarded", "guard"]


@dataclass(frozen=True)
class Guarded:
    """One input, the decision on it, and what was generated for it.

    Attributes:
        text: the input.
        accepted: whether the input is in-distribution; nothing is generated for one that is not.
        score: its score, higher = more in-distribution; -inf for an input without tokens.
        threshold: the lowest score that is accepted.
        p_value: how unusual the input is: an ID input gets one <= α with probability at most α.
        truncated: whether the input was longer than what the detector looks at, so that it was judged by its beginning.
        output: what was generated; None for a refused input and for an output that is withheld.
        output_accepted: whether the output is in-distribution; None where it was not checked.
        output_score: the score of the output.
        reason: a sentence that says why there is no output; None where there is one.
    """

    text: str
    accepted: bool
    score: float
    threshold: float
    p_value: float
    truncated: bool = False
    output: Any = None
    output_accepted: bool | None = None
    output_score: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinities: a score of -inf becomes None."""
        values = asdict(self)
        infinite = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        return values | dict.fromkeys(infinite)


def guard(
    generator: Any, detector: Detector, *, output_detector: Detector | None = None, encoder: TextEncoder | None = None
) -> "Guard":
    """Puts a fitted and calibrated detector before a generator.

    The input is scored from the very pass over it that generation goes on from: an encoder-decoder model's encoder
    runs once, and so does a causal model over its prompt, but for the last token. An input that is out-of-distribution
    is refused after that pass, before a single token is generated. One that is longer than what the detector looks at
    is judged by its beginning and, if accepted, read again as a whole.

    Args:
        generator: a pipeline of transformers that generates text; a pair `(model, tokenizer)`; a model folder or hub
            id; or any callable `text -> output`, whose inputs take an extra pass through the detector's own encoder.
        detector: of mode `input`, fitted on the same model at any layer.
        output_detector: checks what was generated, and withholds what is out-of-distribution. For a model, one of mode
            `output`. For a callable, one of mode `input`, to look at the output alone, or `reference`, to look at it
            behind its input.
        encoder: the detector's encoder, for a callable; by default it is opened where it lay when the detector was
            fitted.
    """
    for found, role in ((detector, "detector"), (output_detector, "output_detector")):
        if found is not None:
            _refuse_unready(found, role)
    model = _as_model(generator, detector, output_detector)
    if model is not None:
        if encoder is not None:
            raise InputError("An encoder is for a generator that is a callable: here the model itself reads the input.")
        return Guard(model, detector, output_detector)
    if not callable(generator):
        raise InputError(
            "A generator must be a transformers pipeline, a pair (model, tokenizer), a model folder or a callable, "
            f"got {type(generator).__name__}."
        )
    return Guard(GuardedCallable(generator, detector, output_detector, encoder), detector, output_detector)


def _as_model(generator: Any, detector: Detector, output_detector: Detector | None) -> GuardedModel | None:
    if isinstance(generator, str | Path):
        return GuardedModel.open(generator, detector, output_detector)
    if isinstance(generator, tuple) and len(generator) == 2:
        return GuardedModel(*generator, detector, output_detector)
    if hasattr(generator, "model") and hasattr(generator, "tokenizer") and hasattr(generator, "forward"):
        return GuardedModel(generator.model, generator.tokenizer, detector, output_detector, pipeline=generator)
    return None


def _refuse_unready(detector: Any, role: str) -> None:
    if not isinstance(detector, Detector):
        hint = ": use apood.load to open a saved one" if isinstance(detector, str | Path) else ""
        raise InputError(f"{role} must be a detector of apood, got {type(detector).__name__}{hint}.")
    detector.decide(np.empty(0))  # refuses to decide before it is calibrated


class Verdict(NamedTuple):
    """A detector's decision on one sequence."""

    accepted: bool
    score: float
    p_value: float
    reason: str | None


class Guard:
    """A guarded generator; `guard` makes one.

    It may be called from several threads. One call at a time uses a model; a callable is called by all of them at once.
    """

    def __init__(self, generator: Guardable, detector: Detector, output_detector: Detector | None) -> None:
        self._generator, self._detector, self._output_detector = generator, detector, output_detector

    @overload
    def __call__(self, texts: str, **options: Any) -> Guarded: ...
    @overload
    def __call__(self, texts: Sequence[str], **options: Any) -> list[Guarded]: ...
    def __call__(self, texts: str | Sequence[str], **options: Any) -> Guarded | list[Guarded]:
        """One text, or several: a result for each, in their order.

        Args:
            texts: what to generate for, where it is in-distribution.
            **options: for `model.generate`, the pipeline or the callable.
        """
        if isinstance(texts, str):
            return self._all([texts], options)[0]
        _refuse_other_than_texts(texts)
        return self._all(list(texts), options)

    def _all(self, texts: list[str], options: dict[str, Any]) -> list[Guarded]:
        nothing = _verdicts(self._detector, None, "input")[0]
        results = [self._result(text, nothing) for text in texts]
        asked = [index for index, text in enumerate(texts) if text.strip()]
        with self._generator.lock:
            for reading in self._generator.read([texts[index] for index in asked]):
                for index, result in self._answered(reading, [texts[asked[i]] for i in reading.indices], options):
                    results[asked[reading.indices[index]]] = result
        return results

    def _answered(self, reading: Reading, texts: list[str], options: dict[str, Any]) -> Iterable[tuple[int, Guarded]]:
        verdicts = _verdicts(self._detector, reading.tokens, "input")
        results = [
            self._result(text, verdict, truncated=cut)
            for text, verdict, cut in zip(texts, verdicts, reading.truncated, strict=True)
        ]
        accepted = [index for index, result in enumerate(results) if result.accepted]
        if accepted:
            outputs, tokens = reading.generate(accepted, options)
            for index, output in zip(accepted, outputs, strict=True):
                results[index] = replace(results[index], output=output)
            if self._output_detector is not None:
                for index, verdict in zip(accepted, _verdicts(self._output_detector, tokens, "output"), strict=True):
                    results[index] = _checked(results[index], verdict)
        return enumerate(results)

    def _result(self, text: str, verdict: Verdict, *, truncated: bool = False) -> Guarded:
        return Guarded(
            text,
            accepted=verdict.accepted,
            score=verdict.score,
            threshold=self._detector.threshold_,
            p_value=verdict.p_value,
            truncated=truncated,
            reason=verdict.reason,
        )


def _refuse_other_than_texts(given: Any) -> None:
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise InputError(f"A guard takes one text or a list of texts, got {type(given).__name__}.")
    for index, text in enumerate(given):
        if not isinstance(text, str):
            chat = isinstance(text, dict | list)
            hint = ": a chat must be rendered first, with the tokenizer's apply_chat_template" if chat else ""
            raise InputError(f"Texts must be strings, got {type(text).__name__} at index {index}{hint}.")


def _checked(result: Guarded, verdict: Verdict) -> Guarded:
    return replace(
        result,
        output=result.output if verdict.accepted else None,
        output_accepted=verdict.accepted,
        output_score=verdict.score,
        reason=verdict.reason,
    )


def _verdicts(detector: Detector, tokens: TokenBatch | None, what: str) -> list[Verdict]:
    """Decisions on sequences; `tokens` None stands for one without any."""
    if tokens is None:
        scores, why = np.array([-np.inf]), [f"The {what} is empty."]
    else:
        # A model that overflows on an input knows nothing like it: one more reason to refuse, not to fail.
        whole, finite = find_nonempty(tokens, detector.requires), _finite(tokens, detector.requires)
        scores, usable = np.full(len(tokens), -np.inf), whole & finite
        if bool(usable.any()):
            scores[usable.numpy()] = detector.score_samples(tokens.select(usable))
        why = [
            f"The {what} is too short to be scored."
            if not long
            else f"The model's states of the {what} are not finite."
            if not sound
            else f"The {what} is out-of-distribution: its score {score:.4g} is below the threshold "
            f"{detector.threshold_:.4g}."
            for long, sound, score in zip(whole.tolist(), finite.tolist(), scores.tolist(), strict=True)
        ]
    p_values = conformal_p_values(detector.calibration_scores_.numpy(), scores)
    return [
        Verdict(accepted, score, p_value, None if accepted else reason)
        for accepted, score, p_value, reason in zip(
            (detector.decide(scores) > 0).tolist(), scores.tolist(), p_values.tolist(), why, strict=True
        )
    ]


def _finite(tokens: TokenBatch, requires: frozenset[str]) -> Tensor:
    """Which sequences have nothing but finite numbers in all that is required."""
    parts = get_required_parts(tokens, requires).values()
    return torch.tensor([[bool(rows.isfinite().all()) for rows in part] for part in parts]).all(0)
