"""A generator behind a detector: out-of-distribution inputs are refused before anything is generated."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from apood.detectors.contract.base import Detector
from apood.encoders.text.encoder import TextEncoder
from apood.serving.generators import Failed, Guardable, GuardedCallable, GuardedModel, Reading
from apood.serving.shared.verdicts import Judged, Verdict, decide
from apood.support.errors import InputError
from apood.support.files import replace_nonfinite

__all__ = ["Guard", "Guarded", "guard"]


@dataclass(frozen=True)
class Guarded:
    """One input, the decision on it, and the output generated for it.

    Attributes:
        text: the input.
        accepted: whether the input is in-distribution; if not, nothing is generated.
        score: its score, higher = more in-distribution; -inf for an input without tokens.
        threshold: the lowest score that is accepted.
        p_value: the p-value of the input: an ID input gets one <= α with probability at most α.
        windows: the number of windows that were scored; more than 1 for an input longer than the detector's limit.
        truncated: whether only the beginning of the input was scored, by a detector fitted with on_long="beginning".
        output: the output; None if the input was refused or the output is withheld.
        output_accepted: whether the output is in-distribution; None if it was not checked.
        output_score: the score of the output; None if it was not checked.
        reason: a sentence that says why there is no output; None if there is one.
        error: what the callable raised for this input; None if it raised nothing.
    """

    text: str
    accepted: bool
    score: float
    threshold: float
    p_value: float
    windows: int = 1
    truncated: bool = False
    output: Any = None
    output_accepted: bool | None = None
    output_score: float | None = None
    reason: str | None = None
    error: Exception | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON: a score of -inf, which JSON lacks, becomes None, and an error its text."""
        values = asdict(replace(self, error=None)) | {"error": None if self.error is None else repr(self.error)}
        content: dict[str, Any] = replace_nonfinite(values)
        return content


def guard(
    generator: Any, detector: Detector, *, output_detector: Detector | None = None, encoder: TextEncoder | None = None
) -> "Guard":
    """Return a guarded generator, which generates only for inputs that a fitted and calibrated detector accepts.

    The input is scored from the same pass that generation continues from: the encoder of an encoder-decoder model runs
    once, and a causal model reads its prompt once, except for the last token. An out-of-distribution input is refused
    after that pass, before any token is generated. An input that is longer than the detector's limit is scored in
    windows, as in the fit, and refused if the worst one is out-of-distribution; if it is accepted, the whole input is
    read again. An input of too many windows is refused.

    Args:
        generator: a text generation pipeline of transformers; a pair `(model, tokenizer)`; a model folder or hub id; or
            any callable `text -> output`, whose inputs take an extra pass through the detector's own encoder.
        detector: a detector of mode `input`, fitted on the same model, on tokens of any layers.
        output_detector: a detector that checks outputs; out-of-distribution outputs are withheld. For a model, its mode
            must be `output`. For a callable, its mode is `input`, to check the output alone, or `reference`, to check
            it together with its input.
        encoder: the detector's encoder, for a callable; by default it is opened from the detector's encoder identity.

    Examples:
        The folder holds a model, and the texts are in-distribution. The generator is any callable.

        >>> from apood import KNN, TextEncoder, guard
        >>> encoder = TextEncoder(folder)
        >>> detector = KNN(k=1).fit(encoder.encode(texts[:40])).calibrate(encoder.encode(texts[40:80]))
        >>> guarded = guard(str.upper, detector, encoder=encoder)
        >>> known, empty = guarded([texts[0], ""])
        >>> known.accepted, known.output == texts[0].upper()
        (True, True)
        >>> empty.accepted, empty.output
        (False, None)
    """
    for found, role in ((detector, "detector"), (output_detector, "output_detector")):
        if found is not None:
            _check_detector(found, role)
    model = _make_model(generator, detector, output_detector)
    if model is not None:
        if encoder is not None:
            raise InputError("encoder is only for a generator that is a callable: here the model reads the input.")
        return Guard(model, detector, output_detector)
    if not callable(generator):
        raise InputError(
            "A generator must be a transformers pipeline, a pair (model, tokenizer), a model folder or a callable, "
            f"got {type(generator).__name__}."
        )
    return Guard(GuardedCallable(generator, detector, output_detector, encoder), detector, output_detector)


def _make_model(generator: Any, detector: Detector, output_detector: Detector | None) -> GuardedModel | None:
    if isinstance(generator, str | Path):
        return GuardedModel.open(generator, detector, output_detector)
    if isinstance(generator, tuple) and len(generator) == 2:
        return GuardedModel(*generator, detector, output_detector)
    if hasattr(generator, "model") and hasattr(generator, "tokenizer") and hasattr(generator, "forward"):
        return GuardedModel(generator.model, generator.tokenizer, detector, output_detector, pipeline=generator)
    return None


def _check_detector(detector: Any, role: str) -> None:
    if not isinstance(detector, Detector):
        hint = ": use apood.load to open a saved one" if isinstance(detector, str | Path) else ""
        raise InputError(f"{role} must be a detector of apood, got {type(detector).__name__}{hint}.")
    detector.decide(np.empty(0))  # raises an error if the detector is not calibrated


class Guard:
    """A guarded generator, made by `guard`.

    Several threads may call it. They use a model in turns, batch by batch, so that nobody waits for all windows of a
    long input; a callable is called by all threads at once.
    """

    def __init__(self, generator: Guardable, detector: Detector, output_detector: Detector | None) -> None:
        self._generator, self._detector, self._output_detector = generator, detector, output_detector

    @overload
    def __call__(self, texts: str, **options: Any) -> Guarded: ...
    @overload
    def __call__(self, texts: Sequence[str], **options: Any) -> list[Guarded]: ...
    def __call__(self, texts: str | Sequence[str], **options: Any) -> Guarded | list[Guarded]:
        """Return the result for one text, or a list of results for several texts, in their order.

        If a callable raises an error for one of several texts, the result of that text has it as `error`; for a single
        text it is raised.

        Args:
            texts: the inputs.
            **options: passed on to `model.generate`, the pipeline or the callable.
        """
        if isinstance(texts, str):
            (result,) = self._run([texts], options)
            if result.error is not None:
                raise result.error
            return result
        _check_texts(texts)
        return self._run(list(texts), options)

    def _run(self, texts: list[str], options: dict[str, Any]) -> list[Guarded]:
        (empty,) = decide(self._detector, Judged(np.array([-np.inf]), ["is empty"], [0]), "input")
        results = [self._make_result(text, empty) for text in texts]
        nonempty = [index for index, text in enumerate(texts) if text.strip()]
        # Closed at once after an error, because it holds the lock of the model.
        with closing(self._generator.read([texts[index] for index in nonempty])) as readings:
            for reading in readings:
                indices = [nonempty[index] for index in reading.indices]
                answers = self._answer(reading, [texts[index] for index in indices], options)
                for index, result in zip(indices, answers, strict=True):
                    results[index] = result
        return results

    def _answer(self, reading: Reading, texts: list[str], options: dict[str, Any]) -> list[Guarded]:
        verdicts = decide(self._detector, reading.judged, "input")
        results = [
            self._make_result(text, verdict, truncated=truncated)
            for text, verdict, truncated in zip(texts, verdicts, reading.truncated, strict=True)
        ]
        accepted = [index for index, result in enumerate(results) if result.accepted]
        if accepted:
            outputs, judged = reading.generate(accepted, options)
            made = []
            for index, output in zip(accepted, outputs, strict=True):
                if isinstance(output, Failed):
                    reason = f"The generator raised {type(output.error).__name__}: {output.error}"
                    results[index] = replace(results[index], error=output.error, reason=reason)
                else:
                    results[index] = replace(results[index], output=output)
                    made.append(index)
            if self._output_detector is not None and judged is not None:
                for index, verdict in zip(made, decide(self._output_detector, judged, "output"), strict=True):
                    results[index] = replace(
                        results[index],
                        output=results[index].output if verdict.accepted else None,
                        output_accepted=verdict.accepted,
                        output_score=verdict.score,
                        reason=verdict.reason,
                    )
        return results

    def _make_result(self, text: str, verdict: Verdict, *, truncated: bool = False) -> Guarded:
        accepted, score, threshold, p_value, reason, windows = verdict
        return Guarded(text, accepted, score, threshold, p_value, windows, truncated, reason=reason)


def _check_texts(given: Any) -> None:
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise InputError(f"A guard takes one text or a list of texts, got {type(given).__name__}.")
    for index, text in enumerate(given):
        if not isinstance(text, str):
            chat = isinstance(text, dict | list)
            hint = ": render a chat first, with the tokenizer's apply_chat_template" if chat else ""
            raise InputError(f"Texts must be strings, got {type(text).__name__} at index {index}{hint}.")
