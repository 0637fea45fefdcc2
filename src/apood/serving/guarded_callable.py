"""Any callable from a text to an output, guarded by an encoder of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from apood.data.record import Pair
from apood.detectors.contract.base import Detector, refuse_lacking
from apood.encoders.factory import reopen_encoder
from apood.encoders.text.encoder import TextEncoder
from apood.serving.reading import Reading
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import describe_encoder, same_encoder

__all__ = ["GuardedCallable"]

_AT_ONCE = 64  # texts that are encoded before any of them is generated for


class GuardedCallable:
    """A callable, and the encoders of the detectors of its inputs and outputs, which are no part of it.

    Args:
        function: is given a text and the options of a call.
        detector: of the inputs.
        output_detector: of the outputs, which must then be texts.
        encoder: that of `detector`; None to open it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        detector: Detector,
        output_detector: Detector | None,
        encoder: TextEncoder | None,
    ) -> None:
        self.lock = nullcontext()  # what the callable can bear is its own business
        self._function = function
        self._encoding = threading.Lock()
        self._encoder = _encoder_of(detector, encoder, ("input",), "detector")
        self._output_encoder: TextEncoder | None = None
        if output_detector is not None:
            same = self._encoder if same_encoder(output_detector.encoder_, self._encoder.identity) else None
            self._output_encoder = _encoder_of(output_detector, same, ("input", "reference"), "output_detector")

    def read(self, texts: list[str]) -> Iterator[Reading]:
        """The texts, encoded some at a time."""
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            with self._encoding:
                prepared = self._encoder.prepare(some)
                tokens = self._encoder.run(prepared)
            indices = [index for index, length in enumerate(tokens.lengths.tolist()) if length]
            yield Reading(
                [start + index for index in indices],
                [index in prepared.shortened for index in indices],
                tokens.select(indices),
                partial(self._generate, [some[index] for index in indices]),
            )

    def _generate(
        self, texts: list[str], chosen: list[int], options: dict[str, Any]
    ) -> tuple[list[Any], TokenBatch | None]:
        """One call for each text that was chosen."""
        texts = [texts[index] for index in chosen]
        outputs = [self._function(text, **options) for text in texts]
        encoder = self._output_encoder
        if encoder is None:
            return outputs, None
        for output in outputs:
            if not isinstance(output, str):
                raise InputError(f"An output that shall be checked must be a string, got {type(output).__name__}.")
        pairs = [Pair(text, output) for text, output in zip(texts, outputs, strict=True)]
        with self._encoding:
            return outputs, encoder.encode(pairs if encoder.mode == "reference" else outputs)


def _encoder_of(detector: Detector, given: TextEncoder | None, modes: tuple[str, ...], role: str) -> TextEncoder:
    identity = detector.encoder_
    if identity is None:
        raise InputError(f"The {role} does not say which encoder its tokens came from, so it cannot score texts.")
    if identity.get("mode") not in modes:
        raise InputError(
            f"The {role} of a callable must be of mode {' or '.join(modes)}, and is of mode {identity.get('mode')}."
        )
    encoder = reopen_encoder(identity, channels=detector.requires) if given is None else given
    if not isinstance(encoder, TextEncoder):
        raise InputError(f"The {role} was fitted on sounds, and a guard is for texts.")
    if not same_encoder(identity, encoder.identity):
        raise InputError(
            f"The encoder gives tokens from {describe_encoder(encoder.identity)}, "
            f"the {role} was fitted on tokens from {describe_encoder(identity)}."
        )
    probe = encoder.encode([Pair("a", "a")] if encoder.mode == "reference" else ["a"])
    refuse_lacking(probe, detector.name, detector.requires, f"{role}'s tokens")
    return encoder
