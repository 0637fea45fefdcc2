"""Facts about a detector that are saved with it: its texts, when it was fitted, and with which versions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_args

from apood.data.conversations import Chat
from apood.detectors.contract.artefact import load_with_facts
from apood.detectors.contract.base import Detector
from apood.pipeline.copies import Sketches, decode_sketches, encode_sketches, sketch_source
from apood.pipeline.seen import Seen
from apood.support.errors import ArtefactError
from apood.support.provenance import package_versions
from apood.tokens.source import TokenSource

__all__ = ["Facts", "load_detector_and_facts"]

_KEYS = {"training", "calibration", "sketches", "text_settings", "versions", "chat"}


@dataclass(frozen=True)
class Facts:
    """What is known about the making of a detector; anything may be unknown.

    Attributes:
        training: numbers about the texts that it learnt from.
        calibration: numbers about the texts that set its threshold.
        sketches: sketches of the texts that it learnt from, or of some of them, to recognise copies.
        text_settings: the settings of a `TextDetector`; None for a detector of tokens.
        versions: the versions of apood and other packages that it was fitted with.
        chat: which text of a conversation each of the texts is; None if they are not from conversations.
    """

    training: Seen | None = None
    calibration: Seen | None = None
    sketches: Sketches | None = field(default=None, compare=False, repr=False)
    text_settings: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    chat: Chat | None = None

    @classmethod
    def of_fit(cls, source: TokenSource) -> Self:
        """Return the facts of a fit on `source`."""
        return cls(training=Seen.of(source), sketches=sketch_source(source), versions=package_versions())

    def after_calibration(self, source: TokenSource | None, accept: float) -> "Facts":
        """Return the facts after a calibration with `source`, or with scores alone, for this accept rate."""
        settings = None if self.text_settings is None else {**self.text_settings, "accept": accept}
        return replace(self, calibration=None if source is None else Seen.of(source), text_settings=settings)

    def describe_length(self, tokens: int) -> str | None:
        """Return a sentence if a text with this number of tokens is unusually short or long, else None."""
        return None if self.training is None else self.training.describe_length(tokens)

    def to_json(self) -> dict[str, Any]:
        """Return what is known, as JSON."""
        found = {
            "training": None if self.training is None else self.training.to_json(),
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "sketches": None if self.sketches is None else encode_sketches(self.sketches),
            "text_settings": None if self.text_settings is None else dict(self.text_settings),
            "versions": dict(self.versions),
            "chat": self.chat,
        }
        return {key: value for key, value in found.items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote; raise ValueError or TypeError if it is something else."""
        if unknown := sorted(stored.keys() - _KEYS):
            raise ValueError(f"there is no fact {unknown[0]!r}")
        tables = {key: stored.get(key, {}) for key in ("text_settings", "versions")}
        if wrong := [key for key, table in tables.items() if not isinstance(table, dict)]:
            raise TypeError(f"{wrong[0]} is not a table")
        if (chat := stored.get("chat")) not in (None, *get_args(Chat)):
            raise ValueError("chat is not a kind of text of a conversation")
        return cls(
            training=Seen.from_json(stored["training"]) if "training" in stored else None,
            calibration=Seen.from_json(stored["calibration"]) if "calibration" in stored else None,
            sketches=decode_sketches(stored["sketches"]) if "sketches" in stored else None,
            text_settings=tables["text_settings"] or None,
            versions=tables["versions"],
            chat=chat,
        )


def load_detector_and_facts(folder: str | Path) -> tuple[Detector, Facts]:
    """Return the detector of tokens in a folder, also that of a `TextDetector`, and what is known about it.

    Raises:
        ArtefactError: if there is no detector, or it is incomplete, was changed, or is from a newer apood.
    """
    detector, stored = load_with_facts(folder)
    try:
        return detector, Facts.from_json(stored)
    except (ValueError, TypeError) as error:
        raise ArtefactError(f"The facts about the detector in {folder} cannot be read: {error}.") from error
