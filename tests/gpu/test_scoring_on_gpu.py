"""Scoring on a GPU: the scores and errors of the CPU, one wait per batch, safe graphs. Run with `pytest -m gpu`."""

import gc
import threading
import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.pooling import FrozenPool, frozen
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
    detector.score_ = score
    try:
        expected = on_cpu(detector, batch.to(dtype=torch.promote_types(dtype, torch.float32)))  # the same numbers
        limit = 1e-4 * np.abs(expected).max()
        there = batch.to("cuda")
        np.testing.assert_allclose(detector.score_samples(there), expected, rtol=0, atol=limit)
        for index in (0, 5, 5, 31):
            alone = detector.score_samples(there[index : index + 1])
            np.testing.assert_allclose(alone, expected[index : index + 1], rtol=0, atol=limit)
    finally:
        detector.score_ = "sum"


@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("row", [0, 2])
def test_a_nonfinite_value_is_named(case, count, row):
    detector, sink = case
    bad = sequences(count, seed=2, sink=sink)
    sound = detector.score_samples(bad.to("cuda"))
    for value in (torch.nan, torch.inf, -torch.inf):
        bad.values[int(bad.offsets[count - 1]) + row, 7] = value
        for batch in (bad, bad.to("cuda")):
            with pytest.raises(InputError, match=f"Token {row} of sequence {count - 1} "):
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


def one_sequence(seed, length=20):
    values = torch.randn(length, DIM, generator=torch.Generator().manual_seed(seed)).cuda()
    return TokenBatch.from_lengths(values, [length])


def random_pool(**options):
    return FrozenPool(torch.randn(4, 2, DIM, generator=torch.Generator().manual_seed(9)).cuda(), 1.0, **options)


def test_streams_that_share_a_graph_do_not_mix_their_sequences(monkeypatch):
    pool, alone = random_pool(), [one_sequence(seed) for seed in range(4)]
    expected = [pool(one).value for one in alone]
    torch.cuda.synchronize()
    fill = frozen._GraphOfOne._fill

    def fill_and_wait(self, tokens):
        fill(self, tokens)
        torch.cuda._sleep(50_000_000)  # some 25 ms in which another stream could overwrite the buffers

    monkeypatch.setattr(frozen._GraphOfOne, "_fill", fill_and_wait)
    found = []
    for one in alone:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(pool(one).value)
    torch.cuda.synchronize()
    for own, wanted in zip(found, expected, strict=True):
        assert torch.equal(own, wanted)


def test_a_stream_waits_for_what_another_one_prepares():
    expected, tokens = random_pool()(one_sequence(1)).value, one_sequence(1)
    many = TokenBatch.concatenate([tokens] * 3)
    torch.cuda.synchronize()
    for batch in (tokens, many):
        pool = random_pool()
        streams = [torch.cuda.Stream() for _ in range(2)]
        with torch.cuda.stream(streams[0]):
            torch.cuda._sleep(50_000_000)
            pool(batch)  # prepares the queries behind the sleep
        with torch.cuda.stream(streams[1]):
            found = pool(batch).value
        torch.cuda.synchronize()
        torch.testing.assert_close(found, expected.expand_as(found))


def test_threads_with_streams_of_their_own_score_alike(case):
    detector, sink = case
    batch = sequences(12, seed=4, sink=sink).to("cuda")
    alone = [batch[index : index + 1] for index in range(len(batch))]
    expected = [float(detector.score_samples(one)[0]) for one in alone]
    torch.cuda.synchronize()
    found = {}

    def score(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            found[number] = [float(detector.score_samples(one)[0]) for one in alone * 5]

    threads = [threading.Thread(target=score, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(scores == expected * 5 for scores in found.values())


def test_a_graph_is_captured_once_for_each_size(monkeypatch):
    captured, capture = [], frozen._capture
    monkeypatch.setattr(frozen, "_capture", lambda run, device: captured.append(device) or capture(run, device))
    pool = random_pool(finish=lambda pooled: pooled.value * 2)
    for length in (*range(1, 40), 512, 600, 257):
        one = one_sequence(length, length)
        torch.testing.assert_close(pool.finish(one), pool(one).value * 2)
        pool.finish(one)
    assert len(captured) == 2 * 4  # 16, 32, 64 and 512 tokens, pooled and finished


@pytest.mark.parametrize("cyclic", [True, False])
def test_graphs_that_are_gone_spoil_no_capture(cyclic):
    tokens = one_sequence(0)
    old = [random_pool() for _ in range(8)]
    for pool in old:
        pool(tokens)
    assert gc.isenabled()

    def give_one_up(pooled):
        holder = [old.pop()]
        if cyclic:
            holder.append(holder)
        del holder
        assert gc.isenabled()
        _ = [[] for _ in range(10_000)]  # enough for the collector to wake up
        return pooled.value * 2

    found = random_pool(finish=give_one_up).finish(tokens)
    assert old and torch.equal(found, random_pool()(tokens).value * 2)
    gc.collect()
    assert not frozen._retired, "what was kept during the capture is dropped after it"
