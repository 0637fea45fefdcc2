"""Bags of vectors that are no text: musks against other molecules, the reference code's first example.

Molecules are bags of conformations. Musks are in-distribution. Features have mean 0 and variance 1 over the
conformations that a split learns from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apood.evaluation.split import Split
from apood.experiments.paper.bench import Bench
from apood.experiments.paper.data import OOD, Data, Source
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Findings
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tasks import MULTIPLE_INSTANCE, Mode
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, split

__all__ = ["MULTIPLE_INSTANCE_BENCH", "MultipleInstance", "bags_of"]

_TEST_SHARE = 0.2
_ARRAYS = ("X", "bag", "bag_label")


class _Bags(Study):
    """A study whose sequences are bags in memory."""

    def __init__(self, data: Data, study: Study) -> None:
        super().__init__(study.task, data, {}, seeds=study.seeds, recipe=study.recipe, cache=study.cache)
        bags = bags_of(data)
        self._train, self._test = bags.get("id", bags.get("id_train")), bags.get("id_test")
        self._others = {name: bags[OOD + name] for name in data.ood}

    @property
    def modes(self) -> list[Mode]:
        """Bags are what they are."""
        return ["input"]

    def scene(self, mode: Mode) -> Scene:
        """What decides which rows there are."""
        assert self._train is not None  # a manifest has either
        return Scene(mode, self._train.dim, 0, self.settings)

    def split(self, mode: Mode, number: int) -> Split:  # noqa: ARG002
        """The bags of a split, scaled by those that it learns from."""
        assert self._train is not None
        train, test = self._train, self._test
        if test is None:
            kept, held_out = split(train, _TEST_SHARE, number)
            train, test = (part.select(slice(None)) for part in (kept, held_out))
        mean = train.values.mean(0)
        scale = train.values.std(0).clamp_min(1e-6 * float(train.values.std()))

        def scaled(bags: TokenBatch) -> TokenBatch:
            return TokenBatch((bags.values - mean) / scale, bags.offsets)

        ood: dict[str, TokenSource] = {name: scaled(bags) for name, bags in self._others.items()}
        return Split(scaled(train), scaled(test), ood, seed=number)


@dataclass(frozen=True)
class MultipleInstance(Bench):
    """A table like the others, on bags instead of stores."""

    def carry_out(self, study: Study) -> Findings:
        """The table, its picture and its claims."""
        return super().carry_out(_Bags(study.data, study))


def bags_of(data: Data) -> dict[str, TokenBatch]:
    """The bags of every set, refused where they are not of one kind of vectors."""
    bags = {role: _read_bags(source) for role, source in data.sources.items()}
    if len(dims := {batch.dim for batch in bags.values()}) > 1:
        raise InputError(f"All bags must have vectors of one length, got D = {' and '.join(map(str, sorted(dims)))}.")
    return bags


def _read_bags(source: Source) -> TokenBatch:
    """The bags of .npz archives with `X` [vectors, D], `bag` [vectors] and `bag_label` [bags]; those labelled so."""
    sequences = []
    for name in source.inputs:
        vectors, owners, labels = _arrays(Path(name))
        for bag, label in enumerate(labels):
            if not source.labels or str(label) in source.labels:
                sequences.append(torch.from_numpy(vectors[owners == bag].astype(np.float32)))
    if not sequences:
        raise InputError(f"There are no bags labelled {', '.join(source.labels)} in {', '.join(source.inputs)}.")
    return TokenBatch.from_sequences(sequences)


def _arrays(path: Path) -> tuple[Any, Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            lacking = [name for name in _ARRAYS if name not in archive]
            arrays = None if lacking else tuple(archive[name] for name in _ARRAYS)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{str(path)!r} cannot be read as an npz archive ({error}).") from error
    if arrays is None:
        raise InputError(f"{str(path)!r} has no array {lacking[0]!r}; bags are {', '.join(_ARRAYS)}.")
    vectors, owners, labels = arrays
    if vectors.ndim != 2 or owners.shape != vectors.shape[:1] or set(owners.tolist()) != set(range(len(labels))):
        raise InputError(
            f"{str(path)!r} must hold X [vectors, D], bag [vectors] with the number of each vector's bag, and "
            "bag_label [bags]."
        )
    return vectors, owners, labels


def _rows(scene: Scene) -> Sequence[Entry]:  # noqa: ARG001
    return (
        Entry("Mahalanobis", "mahalanobis"),
        Entry("KNN", "knn"),
        Entry("Deep SVDD", "deep-svdd"),
        Entry("AP-OOD", "ap-ood"),
    )


MULTIPLE_INSTANCE_BENCH = MultipleInstance("multiple-instance", MULTIPLE_INSTANCE, _rows)
