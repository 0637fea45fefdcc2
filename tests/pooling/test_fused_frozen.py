"""A pool with fixed queries by kernels: batches, and single sequences through the buffers of a graph."""

import pytest
import torch
from fused_checking import DEVICE, TINY, error, random_batch

from apood.pooling import FrozenPool, Preprocessing, frozen
from apood.pooling.algebra import narrow_tokens
from apood.pooling.eager import attention_pool_eager
from apood.pooling.kernels.tuning import force_tuning
from apood.tokens.batch import TokenBatch

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(frozen, "has_kernels", lambda _: True)
    with force_tuning(TINY):
        yield


def assert_pools(found, truth, index=slice(None)):
    for own, expected in zip(found, truth, strict=True):
        assert error(own, expected[index]) < 1e-5


def test_pools_are_those_of_the_definition():
    tokens, queries, origin = random_batch([20, 30, 5, 70, 1, 0], 32, 2, 2, torch.bfloat16)
    preprocessing = Preprocessing(True, origin)
    pool = FrozenPool(queries.to(DEVICE), 1.0, "euclidean", preprocessing)
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, "euclidean", preprocessing)
    assert_pools(pool(tokens.to(DEVICE)), truth)
    # one at a time, longer and shorter ones in turn through the same buffers
    order = (1, 0, 4, 3, 5, 1)
    found = [pool(tokens.select([index]).to(DEVICE)) for index in order]
    for pooled, index in zip(found, order, strict=True):  # at the end: no result is overwritten by a later one
        assert_pools(pooled, truth, [index])


def test_exact_queries_are_not_rounded():
    tokens, queries, _ = random_batch([20, 9], 32, 2, 2, torch.bfloat16)
    queries = queries + 1e-4
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0)
    for index in (slice(None), [0]):
        some = tokens.select(index).to(DEVICE)
        assert_pools(FrozenPool(queries.to(DEVICE), 1.0, exact=True)(some), truth, index)
        assert error(FrozenPool(queries.to(DEVICE), 1.0)(some).value, truth.value[index]) > 1e-4


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_half_queries_meet_tokens_of_any_size_in_half_precision(similarity, monkeypatch):
    """Queries from a store in float16 and tokens in bfloat16, as an encoder on a GPU gives them."""
    made = []
    monkeypatch.setattr(frozen, "narrow_tokens", lambda values: made.append(1) or narrow_tokens(values))
    tokens, queries, origin = random_batch([20, 9, 1, 0], 32, 2, 2, torch.float16)
    tokens = tokens.to(dtype=torch.bfloat16)
    sizes = torch.exp2(torch.linspace(-60, 60, len(tokens.values))).to(torch.bfloat16)
    tokens = TokenBatch(tokens.values * sizes[:, None], tokens.offsets)
    assert not torch.equal(queries.bfloat16().float(), queries)
    preprocessing = Preprocessing(True, origin)
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, similarity, preprocessing)
    pool = FrozenPool(queries.to(DEVICE), 1.0, similarity, preprocessing, exact=True)
    for index in (slice(None), [0], [1]):
        assert_pools(pool(tokens.select(index).to(DEVICE)), truth, index)
    assert made


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_tokens_show_in_half_precision_and_zeros_do_not(broken):
    tokens, queries, _ = random_batch([6, 6, 6], 32, 2, 2, torch.float16)
    tokens = tokens.to(dtype=torch.bfloat16)
    tokens.values[8, 3] = broken
    tokens.values[14] = 0
    pool = FrozenPool(queries.to(DEVICE), 1.0, preprocessing=Preprocessing(True), exact=True)
    for index in (slice(None), [0], [1], [2]):
        finite = pool(tokens.select(index).to(DEVICE)).value.isfinite().all(1).tolist()
        assert finite == (torch.tensor([True, False, True])[index]).tolist()


@pytest.mark.parametrize("unit", [False, True])
def test_other_queries_are_multiplied_in_single_precision(unit, monkeypatch):
    monkeypatch.setattr(frozen, "narrow_tokens", None)
    tokens, queries, _ = random_batch([20, 9], 32, 2, 2, torch.float16)
    queries = queries + 1e-6 if unit else queries
    preprocessing = Preprocessing(unit)
    truth = attention_pool_eager(
        tokens.to(dtype=torch.bfloat16).to(dtype=torch.float64), queries.double(), 1.0, "dot", preprocessing
    )
    pool = FrozenPool(queries.to(DEVICE), 1.0, preprocessing=preprocessing, exact=True)
    assert_pools(pool(tokens.to(DEVICE, torch.bfloat16)), truth)


def test_the_function_that_finishes_is_part_of_the_pool():
    tokens, queries, _ = random_batch([20, 3, 0], 32, 2, 2, torch.float32)
    pool = FrozenPool(
        queries.to(DEVICE), 1.0, finish=lambda pooled: pooled.value - pooled.log_mass.sum(1, keepdim=True)
    )
    for some in (tokens[:1], tokens[:2], tokens[1:2]):
        value, log_mass = pool(some.to(DEVICE))
        torch.testing.assert_close(pool.finish(some.to(DEVICE)), value - log_mass.sum(1, keepdim=True))


def test_graphs_are_few(monkeypatch):
    made = []

    class Counted(frozen._GraphOfOne):
        def __init__(self, pool, longest, function):
            made.append(longest)
            super().__init__(pool, longest, function)

    monkeypatch.setattr(frozen, "_GraphOfOne", Counted)
    pool = FrozenPool(torch.randn(1, 1, 32, device=DEVICE), 1.0)
    for length in (1, 16, 17, 512, 513, 2, 30, 257):
        some = TokenBatch.from_lengths(torch.randn(length, 32, device=DEVICE), [length])
        pool(some)
        pool.finish(some)
    assert made == [16, 32, 512]


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("unit", [False, True])
def test_broken_tokens_of_one_caller_do_not_reach_the_next(similarity, unit):
    tokens, queries, _ = random_batch([35, 50], 32, 2, 2, torch.float32)
    pool = FrozenPool(queries.to(DEVICE), 1.0, similarity, Preprocessing(unit))
    truth = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, similarity, Preprocessing(unit))
    for index, number in ((0, torch.nan), (1, torch.inf)):
        broken = TokenBatch.from_lengths(torch.full((60, 32), number, device=DEVICE), [60])
        assert not torch.isfinite(pool(broken).value).any()
        assert_pools(pool(tokens.select([index]).to(DEVICE)), truth, [index])


@pytest.mark.parametrize("inside_first", [False, True])
def test_a_pool_is_used_inside_and_outside_of_inference_mode(inside_first):
    tokens, queries, _ = random_batch([20], 32, 2, 2, torch.float32)
    pool, found = FrozenPool(queries.to(DEVICE), 1.0), []
    for inside in (inside_first, not inside_first):
        with torch.inference_mode(inside):
            found.append(pool(tokens.to(DEVICE)))
    assert torch.equal(found[0].value, found[1].value)
