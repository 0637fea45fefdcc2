"""A detector scores alike whether the fused kernels pool or not, whatever dtypes it was fitted on and scores."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from fused_checking import DEVICE, TINY

from apood.detectors.ap_ood.detector import APOOD
from apood.pooling import Preprocessing, frozen
from apood.pooling.fused import attention_pool_fused
from apood.pooling.kernels.tuning import force_tuning

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning"),
]

BFLOAT, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32


def sequences(dtype, count=60):
    return correlated_sequences(count, 16, lengths=(2, 20), dtype=dtype)


@pytest.fixture(scope="module", params=[BFLOAT, HALF, FLOAT], ids=str)
def fitted(request):
    return request.param, APOOD(device="cpu", heads=4, steps=5).fit(sequences(request.param))


@pytest.mark.parametrize("dtype", [BFLOAT, HALF], ids=str)
def test_scores_do_not_depend_on_who_pools(fitted, dtype, monkeypatch):
    _, detector = fitted
    batch = sequences(dtype, 6)
    expected = detector.score_samples(batch)
    monkeypatch.setattr(frozen, "has_kernels", lambda _: True)
    with force_tuning(TINY):
        found = [detector.set_params(device=DEVICE).score_samples(some) for some in (batch, batch[1:2])]
    detector.set_params(device="cpu")
    limit = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=limit)
    np.testing.assert_allclose(found[1], expected[1:2], rtol=0, atol=limit)


def test_learnt_queries_lose_nothing_beside_tokens_of_their_dtype(fitted):
    dtype, detector = fitted
    batch, queries = sequences(dtype, 6).to(DEVICE), detector.queries_.to(DEVICE)
    preprocessing = Preprocessing(detector.unit_tokens_, detector.origin_.to(DEVICE))
    with force_tuning(TINY):
        fast, exact = (
            attention_pool_fused(batch, queries, detector.beta_, "dot", preprocessing, exact) for exact in (False, True)
        )
    torch.testing.assert_close(fast, exact, rtol=1e-5, atol=1e-5)


PROGRAM = """
import os, sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
from apood.pooling import Preprocessing
from apood.pooling.fused import attention_pool_fused
from apood.tokens.batch import TokenBatch

tokens = TokenBatch.from_lengths(torch.randn(8, 16, device=device), [5, 3])
queries = torch.randn(2, 2, 16, device=device, requires_grad=True)
attention_pool_fused(tokens, queries, 1.0, "euclidean", Preprocessing(unit=True), False).value.sum().backward()
print(bool(torch.isfinite(queries.grad).all()), "torch._dynamo" in sys.modules)
"""


def test_a_step_does_not_load_a_compiler_of_torch():
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]
