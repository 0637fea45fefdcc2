"""The operators are good citizens of torch: checked, traced, compiled, exported, captured; and pools can be frozen."""

import pytest
import torch
from fused_checking import DEVICE, TINY, error, random_batch

from apood.pooling import Preprocessing
from apood.pooling.captured import PreparedPool
from apood.pooling.eager import attention_pool_eager
from apood.pooling.fused import columns_of, pool_packed
from apood.pooling.kernels.tuning import forced

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks():
    with forced(TINY):
        yield


@pytest.fixture
def batch():
    return random_batch([20, 3, 0], 32, 2, 2, torch.float32)


def test_operators_are_registered_well(batch):
    tokens, queries, origin = batch
    values, origin = tokens.values.to(DEVICE), origin.to(DEVICE)
    weights = queries.to(DEVICE).requires_grad_()
    torch.library.opcheck(torch.ops.apood.token_stats, (values, True, origin, True))
    scales, halves = torch.ops.apood.token_stats(values, True, origin, True)
    columns = columns_of(weights, torch.float32, origin, True)
    beta = torch.ones((), device=DEVICE)
    tail = (columns.weights, columns.shift, columns.half, None, scales, halves)
    torch.library.opcheck(torch.ops.apood.attention_pool, (values, tokens.offsets, weights, beta, origin, *tail))


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


def test_a_prepared_pool_gives_what_the_definition_gives():
    dtype = torch.bfloat16
    tokens, queries, origin = random_batch([20, 30, 5, 70, 1, 0], 32, 2, 2, dtype)
    preprocessing = Preprocessing(True, origin)
    pool = PreparedPool(queries.to(DEVICE), 1.0, "euclidean", preprocessing, dtype)
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, "euclidean", preprocessing)
    found = [pool(tokens.values.to(DEVICE), tokens.offsets)]
    assert error(found[0].value, truth.value) < 1e-5 and error(found[0].log_mass, truth.log_mass) < 1e-5
    # one at a time, longer and shorter ones in turn through the same buffers
    for index in (1, 0, 4, 3, 5, 1):
        alone = tokens.select([index])
        found.append(pool(alone.values.to(DEVICE), alone.offsets))
        for field in ("value", "log_mass"):
            assert error(getattr(found[-1], field)[0], getattr(truth, field)[index]) < 1e-5
    # what was returned first is not overwritten by what came later
    assert error(found[1].value[0], truth.value[1]) < 1e-5


def test_what_comes_after_a_prepared_pool_is_that_of_each_function(batch):
    tokens, queries, _ = batch
    pool = PreparedPool(queries.to(DEVICE), 1.0, "dot", Preprocessing(), torch.float32)
    for part in (tokens[:1], tokens, tokens[1:2]):
        given = part.values.to(DEVICE), part.offsets
        for function in (lambda pooled: pooled.value * 2, lambda pooled: pooled.log_mass.sum(1)):
            torch.testing.assert_close(pool.then(*given, function), function(pool(*given)))


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("unit", [False, True])
def test_broken_tokens_of_one_caller_do_not_reach_the_next(similarity, unit):
    tokens, queries, _ = random_batch([35, 50], 32, 2, 2, torch.float32)
    pool = PreparedPool(queries.to(DEVICE), 1.0, similarity, Preprocessing(unit), torch.float32)
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, similarity, Preprocessing(unit))
    for index, number in ((0, torch.nan), (1, torch.inf)):
        broken = torch.full((60, 32), number, device=DEVICE)
        assert not torch.isfinite(pool(broken, torch.tensor([0, 60])).value).any()
        alone = tokens.select([index])
        found = pool(alone.values.to(DEVICE), alone.offsets)
        for field in ("value", "log_mass"):
            assert error(getattr(found, field)[0], getattr(truth, field)[index]) < 1e-5


@pytest.mark.parametrize("inside_first", [False, True])
def test_a_prepared_pool_is_used_inside_and_outside_of_inference_mode(inside_first):
    tokens, queries, _ = random_batch([20], 32, 2, 2, torch.float32)
    pool = PreparedPool(queries.to(DEVICE), 1.0, "dot", Preprocessing(), torch.float32)
    found = []
    for inside in (inside_first, not inside_first):
        with torch.inference_mode(inside):
            found.append(pool(tokens.values.to(DEVICE), tokens.offsets))
    assert torch.equal(found[0].value, found[1].value)
