"""Workers that measure everything: the mergeable statistics that a detector learns from beside its sample."""

from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from apood.detectors.contract.artefact import load_with_facts
from apood.detectors.contract.data_checks import find_nonempty, refuse_nonfinite
from apood.detectors.contract.refinable import Measured, Refinable
from apood.encoders.embed import Portion
from apood.pipeline.opening import open_encoder_of
from apood.scale.embedding import describe_documents
from apood.scale.job import Settings
from apood.scale.shards import Row
from apood.scale.units import Unit
from apood.scale.worker import Worker
from apood.support.errors import InputError
from apood.support.files import atomic_file
from apood.tokens.documents import make_document_mask

__all__ = ["MEASURED_RECORDS", "MeasureWorker", "merge_units"]

MEASURED_RECORDS = 16_384
"""The largest number of documents of a unit: many, because a covariance may be larger than the texts."""

_FILE = "measured-"
_TOKENS = frozenset({"tokens"})


class MeasureWorker(Worker):
    """Measures all documents except those left out. The statistics of a unit are committed before its rows."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        detector, _ = load_with_facts(str(settings.detector))
        if not isinstance(detector, Refinable):
            raise InputError(f"{detector.name} has no statistics to measure.")
        self._detector: Refinable = detector
        self.encoder = open_encoder_of(detector, settings.model)
        self._measured: Measured | None = None

    def make_rows(self, portion: Portion) -> list[Row]:
        """Return what was encoded of each record, and add it to the statistics of the unit."""
        encoded = [record for place, record in enumerate(portion.records) if place not in portion.refused]
        wanted = np.array([record.place not in self.settings.left_out for record in encoded], dtype=np.bool_)
        batch = portion.batch.select(make_document_mask(portion.batch, wanted))
        batch = batch.select(find_nonempty(batch, _TOKENS))
        if len(batch):
            refuse_nonfinite(batch, _TOKENS, 0, "the unit")
            own = self._detector.measure(batch)
            before = self._measured
            self._measured = own if before is None else self._detector.merge_measured(before, own)
        return describe_documents(portion)

    def save_more(self, unit: Unit) -> None:
        """Write the statistics of the unit."""
        measured = self._measured
        self.discard()
        if measured is not None:
            with atomic_file(self.folder / f"{_FILE}{unit.name}.safetensors") as temporary:
                save_file({name: value.contiguous() for name, value in measured.items()}, temporary)

    def discard(self) -> None:
        """Forget the statistics of a unit that failed."""
        self._measured = None


def merge_units(folder: Path, detector: Refinable) -> Measured:
    """Return the statistics of all units, merged in the order of the inputs, so that every digit is reproducible."""
    total: Measured | None = None
    for path in sorted(folder.glob(f"{_FILE}*.safetensors")):
        own = load_file(path)
        total = own if total is None else detector.merge_measured(total, own)
    if total is None:
        raise InputError("There is nothing to learn from: no document can be used.")
    return total
