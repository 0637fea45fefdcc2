"""Scoring on a GPU: what the CPU gives, the same refusals, and one wait a batch. Run with `pytest -m gpu`."""

import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.pooling import FrozenPool
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")]

DIM = 64
WAIT = "called a synchronizing CUDA operation"


def sequences(count, seed=0, sink=False, dtype=torch.bfloat16):
    batch = correlated_sequences(count, DIM, seed=seed, lengths=(3, 90), dtype=dtype)
    if not sink:
        return batch
    return TokenBatch.from_sequences([torch.cat([torch.full_like(z[:1], 20.0), z]) for z in batch])


@pytest.fixture(scope="module", params=["paper", "robust", "robust with a sink"])
def case(request):
    """A detector that computes on the GPU, and whether its sequences have a sink."""
    recipe, *rest = request.param.split(" ", 1)
    detector = APOOD(recipe=recipe, heads=16, queries=4, steps=5, device="cuda").fit(sequences(150, sink=bool(rest)))
    assert detector.skips_first_ == bool(rest)
    return detector, bool(rest)


def on_cpu(detector, batch):
    try:
        return detector.set_params(device="cpu").score_samples(batch)
    finally:
        detector.set_params(device="cuda")


@pytest.mark.parametrize("score", ["sum", "student", "min"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_batch_there_scores_as_on_the_cpu(case, score, dtype):
    detector, sink = case
    batch = sequences(32, seed=2, sink=sink, dtype=dtype)
    detector.set_params(score=score)
    try:
        expected = on_cpu(detector, batch.to(dtype=torch.promote_types(dtype, torch.float32)))  # the same numbers
        limit = 1e-4 * np.abs(expected).max()
        there = batch.to("cuda")
        np.testing.assert_allclose(detector.score_samples(there), expected, rtol=0, atol=limit)
        for index in (0, 5, 5, 31):
            alone = detector.score_samples(there[index : index + 1])
            np.testing.assert_allclose(alone, expected[index : index + 1], rtol=0, atol=limit)
    finally:
        detector.set_params(score="sum")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("row", [0, 2])
def test_a_fault_is_refused_in_the_same_words(case, value, count, row):
    detector, sink = case
    bad = sequences(count, seed=2, sink=sink)
    sound = detector.score_samples(bad.to("cuda"))
    bad.values[int(bad.offsets[count - 1]) + row, 7] = value
    sentence = (
        f"^Token {row} of sequence {count - 1} in the data to score is NaN or infinite; every value must be finite\\.$"
    )
    for batch in (bad, bad.to("cuda")):
        with pytest.raises(InputError, match=sentence):
            detector.score_samples(batch)
    assert np.array_equal(detector.score_samples(sequences(count, seed=2, sink=sink).to("cuda")), sound)


@pytest.mark.parametrize("count", [1, 32])
def test_a_batch_is_waited_for_once(case, count):
    detector, sink = case
    batch = sequences(count, seed=3, sink=sink).to("cuda")
    for _ in range(2):  # compiles and captures
        detector.score_samples(batch)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            detector.score_samples(batch)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    assert sum(WAIT in str(one.message) for one in caught) == 1


def test_graphs_that_are_gone_spoil_no_capture():
    queries = torch.randn(4, 2, DIM, device="cuda")
    tokens = TokenBatch.from_lengths(torch.randn(20, DIM, device="cuda"), torch.tensor([20]))
    old = [FrozenPool(queries, 1.0) for _ in range(8)]
    for pool in old:
        pool(tokens)

    def gives_one_up(pooled):
        cycle = [old.pop()]
        cycle.append(cycle)
        del cycle
        _ = [[] for _ in range(10_000)]  # enough for the collector to wake up
        return pooled.value * 2

    found = FrozenPool(queries, 1.0, finish=gives_one_up).finish(tokens)
    assert old and torch.equal(found, FrozenPool(queries, 1.0)(tokens).value * 2)
