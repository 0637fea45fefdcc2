"""Everything that runs on a GPU gives what the CPU gives. Run with `pytest -m gpu` where there is one."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.pooling import Preprocessing, attention_pool, mean_pool
from apood.pooling.eager import attention_pool_eager
from apood.tokens.batch import TokenBatch

pytestmark = pytest.mark.gpu

LENGTHS = [1, 7, 7, 8, 64, 300, 2, 150_000]


def batch(dtype: torch.dtype) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    return TokenBatch.from_lengths(torch.randn(sum(LENGTHS), 33, generator=generator).to(dtype), LENGTHS)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 1e-4)]
)
@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_pooling_on_gpu_equals_the_definition(
    similarity: str, dtype: torch.dtype, tolerance: float, beta: float
) -> None:
    tokens = batch(dtype)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(5, 3, 33, generator=generator, dtype=torch.float64)
    preprocessing = Preprocessing(unit=True, origin=torch.randn(33, generator=generator, dtype=torch.float64) / 10)
    truth = queries.clone().requires_grad_()
    ours = queries.cuda().requires_grad_()
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), truth, beta, similarity, preprocessing)
    found = attention_pool(tokens.to("cuda"), ours, beta, similarity, preprocessing, exact=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=tolerance, atol=tolerance)
    for pooled in (found, expected):
        (pooled.value.square().mean() + pooled.log_mass.mean()).backward()
    assert ours.grad is not None
    assert truth.grad is not None
    torch.testing.assert_close(ours.grad.double().cpu(), truth.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [[0, 3, 0, 40, 2000, 1], [5] * 3000], ids=["ragged", "many"])
@pytest.mark.parametrize("preprocessing", [None, Preprocessing(unit=True)], ids=["as they are", "unit"])
def test_means_on_gpu_are_those_on_the_cpu_and_repeat(
    lengths: list[int], preprocessing: Preprocessing | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.randn(sum(lengths), 33, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = TokenBatch.from_lengths(values, lengths)
    found = mean_pool(tokens.to("cuda"), preprocessing)
    torch.testing.assert_close(
        found.cpu(), mean_pool(tokens, preprocessing), rtol=0, atol=1e-6 if preprocessing else 1e-14
    )
    assert torch.equal(mean_pool(tokens.to("cuda"), preprocessing), found)
    monkeypatch.setattr("apood.pooling.algebra._GPU_NUMBERS", 10_000)
    torch.testing.assert_close(mean_pool(tokens.to("cuda"), preprocessing), found, rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize("learnt", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_scores_do_not_depend_on_the_device(learnt: torch.dtype) -> None:
    detector = APOOD(device="cpu", steps=20).fit(correlated_sequences(100, 32, dtype=learnt))
    for dtype in (torch.bfloat16, torch.float16):
        batch = correlated_sequences(40, 32, seed=2, dtype=dtype)
        expected = detector.set_params(device="cpu").score_samples(batch)
        limit = 1e-4 * np.abs(expected).max()
        detector.set_params(device="cuda")
        np.testing.assert_allclose(detector.score_samples(batch), expected, rtol=0, atol=limit)
        np.testing.assert_allclose(detector.score_samples(batch[:1]), expected[:1], rtol=0, atol=limit)


def test_a_detector_fitted_on_gpu_scores_alike_on_both() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randn(int(n), 8, generator=generator) for n in torch.randint(3, 40, (200,), generator=generator)]
    size = {"queries": 8, "heads": 8}  # by default there are more on a GPU
    on_gpu = APOOD(device="cuda", steps=50, **size).fit(sequences)
    on_cpu = APOOD(device="cpu", steps=50, **size).fit(sequences)
    np.testing.assert_allclose(on_gpu.score_samples(sequences), on_cpu.score_samples(sequences), rtol=2e-2)
    scored_on_cpu = on_gpu.set_params(device="cpu").score_samples(sequences)
    scored_on_gpu = on_gpu.set_params(device="cuda").score_samples(sequences)
    # a score is a difference of sums of order 10, so one near zero has no relative precision
    np.testing.assert_allclose(scored_on_cpu, scored_on_gpu, rtol=1e-4, atol=1e-4)
