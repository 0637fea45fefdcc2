"""The study engine: entries, splits, and what comes of each entry on each split."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.knn import KNN
from apood.evaluation.entry import Entry
from apood.evaluation.result import MEAN
from apood.evaluation.split import Split, draw_share
from apood.evaluation.study import fit_entry, refuse_all_failed, run_entry, run_study
from apood.support.errors import InputError
from apood.support.processes import Failure
from apood.tokens.batch import Ragged
from apood.tokens.source import Subset
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

SPLIT = Split(
    train=correlated_sequences(40),
    test=correlated_sequences(15, seed=1),
    ood={"near": correlated_sequences(10, seed=2, shift=1.0), "far": correlated_sequences(12, seed=3, shift=4.0)},
    aux=correlated_sequences(9, seed=4, shift=2.0),
)
SMALL = {"steps": 2, "heads": 2}


@pytest.fixture
def learnt_from(monkeypatch):
    """The number of AUX sequences of each fit of AP-OOD."""
    found = []

    def fit(self, source, aux, checkpoint, original=APOOD._fit):
        found.append(None if aux is None else len(aux))
        original(self, source, aux, checkpoint)

    monkeypatch.setattr(APOOD, "_fit", fit)
    return found


def test_an_entry_learns_from_as_many_aux_sequences_as_it_says(learnt_from):
    run_study([(Entry("ap-ood", SMALL, aux=aux), [SPLIT]) for aux in (0, 3, "all")])
    assert learnt_from == [None, 3, 9]


def test_a_method_that_requires_aux_sequences_learns_from_all():
    assert len(SPLIT.read_for(Entry("binary-logits")).aux) == 9
    with pytest.raises(InputError, match="binary-logits learns from AUX"):
        replace(SPLIT, aux=None).read_for(Entry("binary-logits"))


class Seeded(KNN):
    """A method from elsewhere whose seed is not 0 by default."""

    name = "seeded"

    def __init__(self, k: int = 5, seed: int = 42) -> None:
        super().__init__(k)
        self.seed = seed


class Other(Seeded):
    """Another method of that name."""


def test_the_seed_of_a_split_is_added_to_the_default():
    assert Entry(Seeded).make_detector(3).seed == 45
    assert Entry.from_method(Seeded(seed=42)).make_detector().seed == 42
    assert Entry.from_method(Seeded(seed=7)).make_detector(1).seed == 8
    assert Entry("ap-ood").make_detector(3).seed == 3


def test_two_classes_of_one_name_are_not_the_same_method():
    assert Entry(Seeded).identity != Entry(Other).identity
    assert Entry("knn").identity == Entry(KNN, name="ours").identity


def test_an_entry_without_a_seed_runs_once_on_splits_that_differ_in_their_seeds():
    splits = [replace(SPLIT, seed=seed) for seed in (0, 1)]
    others = [SPLIT, replace(SPLIT, train=correlated_sequences(40, seed=7), seed=1)]
    entries = [(Entry("knn"), splits), (Entry("ap-ood", SMALL), splits), (Entry("knn"), others)]
    results = run_study(entries)
    assert [[(run.seed, run.training_seed) for run in result.runs] for result in results] == [
        [(0, None)],
        [(0, 0), (1, 1)],
        [(0, None), (1, None)],
    ]


@dataclass(frozen=True)
class Row(Entry):
    """An entry with a field of its own."""

    mode: str = ""


def test_results_have_the_given_entries_and_their_own_splits(tmp_path):
    """Labels may repeat, and an entry may be a subclass with an unregistered detector."""
    rows = [Row(KNN, {"k": 1}, "same", mode="input"), Row("knn", {"k": 2}, "same", mode="output")]
    other = replace(SPLIT, ood={"far": SPLIT.ood["far"]})
    seen = []
    results = run_study(
        [(rows[0], [SPLIT]), (rows[1], [other])], cache=tmp_path, on_run=lambda row, run: seen.append((row, run))
    )
    assert all(result.entry is row for result, row in zip(results, rows, strict=True))
    assert [result.datasets for result in results] == [["near", "far", MEAN], ["far", MEAN]]
    assert [row.mode for row, _ in seen] == ["input", "output"] and seen[0][1] is results[0].runs[0]
    detector = fit_entry(rows[1], other, tmp_path).fit_or_load()
    (run,) = results[1].runs
    assert np.array_equal(run.test_scores, detector.score_samples(SPLIT.test)) and len(run.ood_scores["far"]) == 12


def test_failures_are_results_and_all_of_them_together_an_error():
    entries = [(Entry("knn", {"k": 1}), [SPLIT]), (Entry("knn", {"k": 41}), [SPLIT, replace(SPLIT, train=SPLIT.test)])]
    seen = []
    good, bad = run_study(entries, on_run=lambda _, run: seen.append(type(run)))
    assert good.failures == {} and "got 40" in bad.failures[1] and "got 15" in bad.failures[2] and bad.runs == []
    assert seen.count(Failure) == 2
    with pytest.raises(InputError, match=r"None of the 1 rows could .*: knn, k=41, split 1: .*got 40"):
        run_study(entries[1:], what="rows")
    refuse_all_failed([good, bad])
    refuse_all_failed([])


def test_without_rows_a_run_has_its_scores_alone(tmp_path):
    run = run_entry(Entry("knn"), SPLIT, tmp_path, tabulate=False)
    assert run.rows == [] and set(run.ood_scores) == {"near", "far"} and run.held_out is None


def test_only_the_channels_that_an_entry_reads_are_opened(tmp_path):
    batch = correlated_sequences(20)
    logits = Ragged.from_lengths(torch.randn(20, 3), [1] * 20)
    with TokenStoreWriter(tmp_path, dim=batch.dim) as writer:
        writer.append(batch.with_channels(logits=logits, other=logits))
    store = TokenStore(tmp_path)
    split = Split(store, draw_share(store, 0.5, 0), {"x": Subset(store, slice(5))})
    for method, channels in (("knn", ()), ("msp", ("logits",))):
        read = split.read_for(Entry(method))
        for source in (read.train, read.test, read.ood["x"]):
            assert tuple(source.channels) == channels
        assert read.test.indices.tolist() == split.test.indices.tolist() and read.ood["x"].select(
            [0]
        ).channels.keys() == {*channels}


def test_a_share_has_at_least_one_sequence():
    few = SPLIT.train.select(slice(3))
    assert len(draw_share(few, 0.1, seed=0)) == 1 and draw_share(few, 1, seed=0) is few
