"""Methods on mean-pooled tokens score where the tokens lie, as on the CPU. Run with `pytest -m gpu`."""

import copy
import gc
import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.artefact import load_detector
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.relative_mahalanobis import RelativeMahalanobis
from apood.pooling import Preprocessing, mean_pool
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")]

DIM = 64
WAIT = "called a synchronizing CUDA operation"

METHODS = {
    "mahalanobis": Mahalanobis,
    "relative-mahalanobis": lambda: RelativeMahalanobis(shrinkage=0.1),
    "knn": lambda: KNN(k=3),
    "mahalanobis-knn": lambda: MahalanobisKNN(k=2),
    "fusion": lambda: Fusion([Mahalanobis(), MahalanobisKNN(), KNN(k=1)]),
}
# pooled vectors that are rounded to float32 before they are compared differ by one rounding where sums differ at all
TOLERANCE = {"mahalanobis": 1e-10, "relative-mahalanobis": 1e-10, "knn": 1e-6, "mahalanobis-knn": 1e-6, "fusion": 1e-5}


def sequences(count, seed=0, dtype=torch.float64, shift=0.0):
    return correlated_sequences(count, DIM, seed=seed, lengths=(3, 90), dtype=dtype, shift=shift)


def fit(detector, seed=0):
    return detector.fit(sequences(200, seed), aux=sequences(100, 7, shift=3.0) if detector.aux == "required" else None)


@pytest.fixture(scope="module", params=METHODS)
def case(request):
    """The name of a method, and a detector that was fitted on the CPU."""
    return request.param, fit(METHODS[request.param]())


def assert_scores_alike(name, detector, batch):
    expected = detector.score_samples(batch)
    found = detector.score_samples(batch.to("cuda"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[name] * np.abs(expected).max())
    return found


def waits(call):
    """How often `call` waits for the device, which was made ready for it before."""
    for _ in range(2):
        call()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum(WAIT in str(one.message) for one in caught)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("normalize", ["none", "tokens", "pooled"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "fusion"])
def test_a_batch_there_scores_as_on_the_cpu(name, normalize, dtype, monkeypatch):
    if normalize == "tokens" and dtype != torch.float64:  # brought to length 1 in float32, on either device
        monkeypatch.setitem(TOLERANCE, name, 1e-4)
    detector = fit(METHODS[name]().set_params(normalize=normalize))
    for count in (1, 40):
        assert_scores_alike(name, detector, sequences(count, seed=2, dtype=dtype))
        assert_scores_alike(name, detector, sequences(count, seed=3, dtype=dtype, shift=3.0))


def test_the_cpu_scores_as_before_once_the_gpu_was_used(case):
    _, detector = case
    batch = sequences(40, seed=2)
    expected = detector.score_samples(batch)
    detector.score_samples(batch.to("cuda"))
    assert np.array_equal(detector.score_samples(batch), expected)


def test_a_batch_with_empty_sequences_scores_as_on_the_cpu(case):
    name, detector = case
    whole = sequences(20, seed=2)
    batch = TokenBatch.from_sequences([part for z in whole for part in (z, z[:0])])
    with pytest.warns(UserWarning, match="20 of 40 sequences have no tokens"):
        found = detector.score_samples(batch.to("cuda"))
    expected = detector.score_samples(whole)
    assert np.isneginf(found[1::2]).all()
    np.testing.assert_allclose(found[::2], expected, rtol=0, atol=TOLERANCE[name] * np.abs(expected).max())


def test_a_second_fit_is_not_answered_from_the_first(case):
    name, _ = case
    batch = sequences(40, seed=2)
    detector = fit(METHODS[name]())
    first = assert_scores_alike(name, detector, batch)
    second = assert_scores_alike(name, fit(detector, seed=11), batch)
    assert not np.allclose(first, second, rtol=1e-3)


def test_copies_and_loaded_detectors_score_alike_and_keep_to_themselves(case, tmp_path):
    name, detector = case
    batch = sequences(40, seed=2)
    expected = assert_scores_alike(name, detector, batch)
    detector.save(tmp_path / "detector")
    for other in (copy.deepcopy(detector), load_detector(tmp_path / "detector")):
        assert np.array_equal(assert_scores_alike(name, other, batch), expected)
        fit(other, seed=11)
        assert not np.allclose(assert_scores_alike(name, other, batch), expected, rtol=1e-3)
    assert np.array_equal(assert_scores_alike(name, detector, batch), expected)


def test_copies_on_the_device_are_gone_with_their_detector():
    count = 4000
    tokens = TokenBatch.from_lengths(torch.randn(count, DIM, generator=torch.Generator().manual_seed(0)), [1] * count)
    batch = tokens[:8].to("cuda")
    fit(KNN(k=1)).score_samples(batch)  # whatever libraries keep for themselves
    gc.collect()
    before = torch.cuda.memory_allocated()
    detector = KNN(k=1).fit(tokens)
    for _ in range(3):
        detector.score_samples(batch)
    gc.collect()
    bank = count * DIM * 4
    assert bank <= torch.cuda.memory_allocated() - before < 1.1 * bank, "once, however often it scores"
    del detector
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("count", [1, 32])
def test_a_batch_is_waited_for_once_by_each_method(case, count):
    name, detector = case
    batch = sequences(count, seed=3, dtype=torch.bfloat16).to("cuda")
    assert waits(lambda: detector.score_samples(batch)) == (len(detector.members_) if name == "fusion" else 1)


def test_the_recommended_fusion_waits_once_for_each_member():
    detector = Fusion([APOOD(heads=16, queries=4, steps=5, device="cuda"), MahalanobisKNN(), KNN(k=1)])
    detector.fit(sequences(200, dtype=torch.bfloat16))
    batch = sequences(32, seed=3, dtype=torch.bfloat16).to("cuda")
    assert waits(lambda: detector.score_samples(batch)) == 3


def test_the_default_scores_tokens_of_the_cpu_alike_on_both_devices():
    def with_summary(batch):
        means = torch.stack([z.float().mean(0) for z in batch])
        return batch.with_channels(summary=Ragged.from_lengths(means, torch.ones(len(batch), dtype=torch.int64)))

    detector = Fusion(device="cuda").fit(with_summary(sequences(200)))
    assert len(detector.members_) == 4
    batch = with_summary(sequences(32, seed=3))
    there = detector.score_samples(batch)
    detector.device = "cpu"
    np.testing.assert_allclose(detector.score_samples(batch), there, rtol=0, atol=1e-3)


@pytest.mark.parametrize("preprocessing", [None, Preprocessing(unit=True)], ids=["as they are", "unit"])
def test_means_are_not_waited_for(preprocessing):
    batch = sequences(32, seed=3).to("cuda")
    assert waits(lambda: mean_pool(batch, preprocessing)) == 0


@pytest.mark.parametrize("normalize", ["none", "tokens", "pooled"])
def test_a_nonfinite_value_is_named(case, normalize):
    name, detector = case
    detector = copy.deepcopy(detector)
    if name != "fusion":
        detector.set_params(normalize=normalize)._remember_parameters()
    bad = sequences(32, seed=2)
    for value in (torch.nan, torch.inf, -torch.inf):
        bad.values[int(bad.offsets[30]) + 2, 7] = value
        for batch in (bad, bad.to("cuda")):
            with pytest.raises(InputError, match="Token 2 of sequence 30 "):
                detector.score_samples(batch)


def test_neighbours_are_found_on_the_cpu_where_a_gpu_has_no_room():
    count, dim = 30_000, 1024  # 120 MB
    tokens = TokenBatch.from_lengths(torch.randn(count, dim, generator=torch.Generator().manual_seed(0)), [1] * count)
    detector = KNN(k=2).fit(tokens)
    batch = TokenBatch.from_lengths(torch.randn(8, dim, generator=torch.Generator().manual_seed(1)), [1] * 8)
    expected = detector.score_samples(batch)
    there = batch.to("cuda")
    gc.collect()
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 64 * 2**20
    try:
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info()[1])
        found = detector.score_samples(there)
        assert torch.cuda.memory_reserved() <= room
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
