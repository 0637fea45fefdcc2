"""Workers that score documents: encoder and detector in one process, so that tokens are never stored."""

import hashlib
import platform

from apood.detectors.contract.artefact import CONFIG_FILE, TENSORS_FILE
from apood.encoders.embed import Portion
from apood.pipeline.facts import load_detector_and_facts
from apood.pipeline.judging import judge_portion
from apood.pipeline.opening import open_encoder_of
from apood.scale.job import Settings
from apood.scale.shards import Row
from apood.scale.worker import Worker
from apood.support.cloud import Place, parse_place
from apood.support.errors import InputError

__all__ = ["ScoreWorker", "digest_detector"]


class ScoreWorker(Worker):
    """Makes the rows of `apood score`: score, p-value, decision, and what was looked at."""

    columns = ("score", "p_value", "decision", *Worker.columns)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        place = parse_place(str(settings.detector))
        if (known := self.plan.get("detector")) is not None and known != digest_detector(place):
            raise InputError(
                f"The detector {place} on the machine {platform.node()} is not the one with which the command began: "
                "all machines need the same detector until its end."
            )
        self.detector, facts = load_detector_and_facts(str(settings.detector))
        self._seen = facts.training
        self.encoder = open_encoder_of(self.detector, settings.model)

    def make_rows(self, portion: Portion) -> list[Row]:
        """Return the judgement of each record."""
        rows: list[Row] = []
        for _, (score, p_value, accepted, tokens, windows, truncated, note), empty in judge_portion(
            portion, self.detector, self._seen
        ):
            decision = None if accepted is None else "ID" if accepted else "OOD"
            rows.append(
                {"score": score, "p_value": p_value, "decision": decision, "tokens": tokens, "windows": windows}
                | {"truncated": truncated, "note": note, "empty": empty}
            )  # fmt: skip
        return rows


def digest_detector(place: Place) -> list[str]:
    """Return hashes of the files of a detector."""
    return [hashlib.sha256((place / name).read_bytes()).hexdigest() for name in (CONFIG_FILE, TENSORS_FILE)]
