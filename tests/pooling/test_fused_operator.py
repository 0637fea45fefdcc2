"""The operators of the fused kernels can be traced, compiled and exported by torch."""

import pytest
import torch
from fused_checking import DEVICE, TINY, random_batch

from apood.pooling import Preprocessing
from apood.pooling.fused import pool_packed, prepare_queries
from apood.pooling.kernels.tuning import force_tuning

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks():
    with force_tuning(TINY):
        yield


@pytest.fixture
def batch():
    return random_batch([20, 3, 0], 32, 2, 2, torch.float32)


def test_operators_are_registered_well(batch):
    tokens, queries, origin = batch
    values, origin = tokens.values.to(DEVICE), origin.to(DEVICE)
    weights = queries.to(DEVICE)
    torch.library.opcheck(torch.ops.apood.token_stats, (values, True, origin, True))
    stats = torch.ops.apood.token_stats(values, True, origin, True)
    columns, beta, *_ = prepare_queries(weights, 1.0, "euclidean", Preprocessing(True, origin), torch.float32)
    inputs = (weights, values, tokens.offsets, beta, origin, columns.weights, columns.shift, columns.half, None, *stats)
    torch.library.opcheck(torch.ops.apood.attention_pool, inputs)
    pooled = torch.ops.apood.attention_pool(*inputs)
    torch.library.opcheck(torch.ops.apood.attention_pool_gradient, (*inputs, *pooled, *pooled))


def loss(queries, values, offsets):
    h, mass = pool_packed(values, offsets, queries, 0.7, "dot", Preprocessing(unit=True))
    mu = (torch.softmax(mass, 0) * h).sum(0)
    return (h - mu).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiles_without_a_break(batch, dtype):
    tokens, queries, _ = batch
    values = tokens.values.to(DEVICE, dtype)
    ours, compiled = (queries.clone().to(DEVICE).requires_grad_() for _ in range(2))
    loss(ours, values, tokens.offsets).backward()
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    torch.compile(loss, fullgraph=True, backend=backend)(compiled, values, tokens.offsets).backward()
    torch.testing.assert_close(ours.grad, compiled.grad)


def test_gradients_may_be_asked_for_twice_and_of_one_output(batch):
    tokens, queries, _ = batch
    weights = queries.to(DEVICE).requires_grad_()
    h, mass = pool_packed(tokens.values.to(DEVICE), tokens.offsets, weights, 0.7, "dot", Preprocessing())
    (first,) = torch.autograd.grad(h.sum(), weights, retain_graph=True)
    (again,) = torch.autograd.grad(h.sum(), weights, retain_graph=True)
    (other,) = torch.autograd.grad(mass[:2].sum(), weights)
    assert torch.equal(first, again) and not torch.equal(first, other)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(h.sum(), weights)
    with torch.no_grad():
        assert not pool_packed(tokens.values.to(DEVICE), tokens.offsets, weights, 0.7, "dot", Preprocessing())[
            0
        ].requires_grad


def test_exports(batch):
    tokens, queries, _ = batch
    values = tokens.values.to(DEVICE)

    class Pool(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = torch.nn.Parameter(queries.to(DEVICE))

        def forward(self, values, offsets):
            return pool_packed(values, offsets, self.queries, 0.7, "euclidean", Preprocessing())

    pool = Pool()
    total, bounds = torch.export.Dim("total", min=2), torch.export.Dim("bounds", min=3)
    program = torch.export.export(pool, (values, tokens.offsets), dynamic_shapes=({0: total}, {0: bounds}))
    other, _, _ = random_batch([9, 30], 32, 1, 1, torch.float32, seed=5)
    args = other.values.to(DEVICE), other.offsets
    for found, expected in zip(program.module()(*args), pool(*args), strict=True):
        torch.testing.assert_close(found, expected)
