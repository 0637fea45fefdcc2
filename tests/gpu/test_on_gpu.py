"""Everything that runs on a GPU gives what the CPU gives. Run with `pytest -m gpu` where there is one."""

import numpy as np
import pytest
import torch

from apood.detectors.ap_ood import APOOD
from apood.pooling import Frame, attention_pool
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
    frame = Frame(unit=True, origin=torch.randn(33, generator=generator, dtype=torch.float64) / 10)
    truth = queries.clone().requires_grad_()
    ours = queries.cuda().requires_grad_()
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), truth, beta, similarity, frame)
    found = attention_pool(tokens.to("cuda"), ours, beta, similarity, frame)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=tolerance, atol=tolerance)
    for pooled in (found, expected):
        (pooled.value.square().mean() + pooled.log_mass.mean()).backward()
    assert ours.grad is not None
    assert truth.grad is not None
    torch.testing.assert_close(ours.grad.double().cpu(), truth.grad, rtol=tolerance, atol=tolerance)


def test_a_detector_fitted_on_gpu_scores_alike_on_both() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randn(int(n), 16, generator=generator) for n in torch.randint(3, 40, (200,), generator=generator)
    ]
    on_gpu = APOOD(device="cuda", steps=50).fit(sequences)
    on_cpu = APOOD(device="cpu", steps=50).fit(sequences)
    np.testing.assert_allclose(on_gpu.score_samples(sequences), on_cpu.score_samples(sequences), rtol=2e-2)
    scored_on_cpu = on_gpu.set_params(device="cpu").score_samples(sequences)
    scored_on_gpu = on_gpu.set_params(device="cuda").score_samples(sequences)
    # a score is a difference of sums of order 10, so one near zero has no relative precision
    np.testing.assert_allclose(scored_on_cpu, scored_on_gpu, rtol=1e-4, atol=1e-4)
