"""Open the encoder that a detector was fitted with."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apood.data.record import Pair
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import refuse_lacking
from apood.encoders.base.encoder import Encoder
from apood.encoders.opening import AnyTextEncoder, reopen_encoder
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.identity import EncoderIdentity, describe_encoder, same_encoder

if TYPE_CHECKING:
    from apood.encoders.audio.encoder import AudioEncoder

__all__ = ["SavedEncoder", "open_encoder_of", "open_text_encoder_of", "probe_encoder"]


@dataclass(frozen=True)
class SavedEncoder:
    """The encoder of a saved detector, which is not open yet.

    Attributes:
        identity: its settings.
        model: the folder of its model if that has moved, or the address of its server.
    """

    identity: EncoderIdentity
    model: str | Path | None = None

    def open(self, channels: Collection[str]) -> AnyTextEncoder:
        """Return the encoder, which gives at least the `channels`."""
        encoder = reopen_encoder(self.identity, self.model, channels=channels)
        if not isinstance(encoder, AnyTextEncoder):
            raise InputError("The encoder takes sounds, and no texts.")
        return encoder


def open_encoder_of(
    detector: Detector, model: str | Path | None = None, *, role: str = "detector", also: Collection[str] = ()
) -> "AnyTextEncoder | AudioEncoder":
    """Return the encoder that the detector was fitted with; `model` is its folder if that has moved.

    `role` is what the detector is called in messages, and `also` are channels beside those that it needs.
    """
    if detector.encoder_ is None:
        raise InputError(
            f"The {role} does not know which encoder made its tokens, so it cannot score texts: embed the texts with "
            "that encoder, and give a token store."
        )
    return reopen_encoder(detector.encoder_, model, channels={*detector.requires, *also})


def open_text_encoder_of(
    detector: Detector,
    given: AnyTextEncoder | None = None,
    *,
    model: str | Path | None = None,
    role: str = "detector",
    also: Collection[str] = (),
) -> AnyTextEncoder:
    """Return the encoder of texts that the detector was fitted with, after a check that it gives what is needed.

    Args:
        detector: the detector.
        given: an encoder that is open already; None to open it.
        model: the folder of the encoder's model if that has moved.
        role: what the detector is called in messages.
        also: channels that an encoder that is opened here gives beside those that the detector needs.
    """
    encoder = open_encoder_of(detector, model, role=role, also=also) if given is None else given
    if not isinstance(encoder, AnyTextEncoder):
        raise InputError(f"The {role} was fitted on sounds, and takes no texts.")
    if not same_encoder(detector.encoder_, encoder.identity):
        raise InputError(
            f"The encoder gives tokens from {describe_encoder(encoder.identity)}, but the {role} was fitted on tokens "
            f"from {describe_encoder(detector.encoder_)}."
        )
    refuse_lacking(probe_encoder(encoder), detector.name, detector.requires, f"{role}'s tokens")
    return encoder


def probe_encoder(encoder: Encoder) -> TokenBatch:
    """Return the tokens of a text of one letter, which show what channels an encoder of texts gives."""
    return encoder.encode([Pair("a", "a")] if encoder.identity.get("mode") == "reference" else ["a"])
