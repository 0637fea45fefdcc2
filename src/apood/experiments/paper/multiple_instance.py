"""Bags of vectors instead of texts: musks against other molecules, the first example of the reference code.

Molecules are bags of conformations, and musks are in-distribution. Features are scaled to mean 0 and variance 1 over
the conformations that a split learns from.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apood.data.archives import BadFileError, open_archive
from apood.evaluation.split import Split
from apood.experiments.paper.data_sets import OOD, DataSet, DataSets
from apood.experiments.paper.experiment import TableExperiment
from apood.experiments.paper.findings import Findings
from apood.experiments.paper.study_data import Row, StudyData, TableContext
from apood.experiments.paper.tasks import MULTIPLE_INSTANCE, Mode
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, split

__all__ = ["EXPERIMENTS", "read_bags"]

_TEST_SHARE = 0.2
_ARRAYS = ("X", "bag", "bag_label")


class _BagData(StudyData):
    """Study data whose sequences are bags in memory."""

    def __init__(self, study: StudyData) -> None:
        super().__init__(study.data, {}, study.seeds, study.recipe, study.cache, study.jobs)
        self._bags = read_bags(study.data)
        self._train = self._bags["id" if "id" in self._bags else "id_train"]

    @property
    def modes(self) -> list[Mode]:
        """Bags have no output."""
        return ["input"]

    def context(self, mode: Mode) -> TableContext:
        """Return what decides which rows there are."""
        return TableContext(mode, self._train.dim, 0, self.data.settings)

    def _make_split(self, mode: Mode, number: int) -> Split:  # noqa: ARG002
        """Return the bags of a split, scaled by those that it learns from."""
        train, test = self._train, self._bags.get("id_test")
        if test is None:
            train, test = (part.select(slice(None)) for part in split(train, _TEST_SHARE, number))
        mean = train.values.mean(0)
        scale = train.values.std(0).clamp_min(1e-6 * float(train.values.std()))

        def rescale(bags: TokenBatch) -> TokenBatch:
            return TokenBatch((bags.values - mean) / scale, bags.offsets)

        ood: dict[str, TokenSource] = {name: rescale(self._bags[OOD + name]) for name in self.data.ood}
        return Split(rescale(train), rescale(test), ood, seed=number)


@dataclass(frozen=True)
class MultipleInstanceExperiment(TableExperiment):
    """A table like the others, on bags instead of stores."""

    def run(self, study: StudyData) -> Findings:
        """Return the table, its figure and its claims."""
        return super().run(_BagData(study))


def read_bags(data: DataSets) -> dict[str, TokenBatch]:
    """Return the bags of each set; raise InputError if their vectors differ in length."""
    bags = {role: _read_set(own) for role, own in data.by_role.items()}
    if len(dims := {batch.dim for batch in bags.values()}) > 1:
        raise InputError(f"All bags must have vectors of one length, got D = {' and '.join(map(str, sorted(dims)))}.")
    return bags


def _read_set(own: DataSet) -> TokenBatch:
    """Return the bags with the labels of the set, from archives with the arrays `X`, `bag` and `bag_label`."""
    sequences = []
    for name in own.inputs:
        vectors, owners, labels = _read_arrays(Path(name))
        for bag, label in enumerate(labels):
            if not own.labels or str(label) in own.labels:
                sequences.append(torch.from_numpy(vectors[owners == bag]))
    if not sequences:
        raise InputError(f"There are no bags labelled {', '.join(own.labels)} in {', '.join(own.inputs)}.")
    return TokenBatch.from_sequences(sequences)


def _read_arrays(path: Path) -> tuple[Any, Any, Any]:
    try:
        with open_archive(path) as archive:
            lacking = [name for name in _ARRAYS if name not in archive.names]
            arrays = None if lacking else tuple(archive.read(name) for name in _ARRAYS)
    except BadFileError as error:
        raise InputError(f"{str(path)!r} {error}.") from error
    if arrays is None:
        raise InputError(f"{str(path)!r} has no array {lacking[0]!r}; bags need {', '.join(_ARRAYS)}.")
    vectors, owners, labels = arrays
    fits = vectors.ndim == 2 and vectors.dtype.kind in "fiu" and labels.ndim == 1
    if not fits or owners.shape != vectors.shape[:1] or set(owners.tolist()) != set(range(len(labels))):
        raise InputError(
            f"{str(path)!r} must hold X [vectors, D], bag [vectors] with the number of each vector's bag, and "
            "bag_label [bags]."
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise InputError(f"{str(path)!r} has a value in X that is not a finite number in float32.")
    return vectors, owners, labels


_METHODS = {"Mahalanobis": "mahalanobis", "KNN": "knn", "Deep SVDD": "deep-svdd", "AP-OOD": "ap-ood"}
EXPERIMENTS = (
    MultipleInstanceExperiment(
        "multiple-instance", MULTIPLE_INSTANCE, [Row(method, name=label) for label, method in _METHODS.items()]
    ),
)
