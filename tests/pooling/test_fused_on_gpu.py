"""The kernels on a real GPU, with the blocks that it is given: shapes, precision, memory, graphs. Run with `-m gpu`."""

import threading

import pytest
import torch
from fused_checking import error, errors, random_batch

from apood.pooling import FrozenPool, Preprocessing, attention_pool
from apood.pooling.eager import attention_pool_eager
from apood.pooling.kernels.tuning import Tuning, choose_tuning
from apood.tokens.batch import TokenBatch

pytestmark = pytest.mark.gpu

BFLOAT, HALF, FLOAT = torch.bfloat16, torch.float16, torch.float32
LARGE, SMALL = 2**18, 2**9  # tokens for which the rule takes large and small blocks
# most cases share D and T, so that they share kernels too: to compile these takes most of the time
CASES = {
    "uniform": ([512, 512], 1024, 64, 4, BFLOAT, LARGE, {}),
    "ragged": ([1, 700, 3, 64, 255, 257, 9000, 0], 1024, 16, 4, BFLOAT, LARGE, {"beta": 0.5}),
    "preprocessing": (
        [512, 600],
        1024,
        64,
        4,
        BFLOAT,
        LARGE,
        {"similarity": "euclidean", "unit": True, "origin": True},
    ),
    "float16": ([512, 77], 1024, 64, 4, HALF, LARGE, {}),
    "float32": ([1, 700, 40], 1024, 64, 4, FLOAT, LARGE, {}),
    "T=3, M=5, D=33": ([1, 7, 40], 33, 5, 3, BFLOAT, SMALL, {}),
    "one token, one query": ([1], 64, 1, 1, BFLOAT, SMALL, {}),
    "small": ([1, 70, 40, 0, 16], 1024, 64, 4, BFLOAT, SMALL, {}),
    "16 tokens each": ([16, 3, 0, 40, 9, 16] * 9, 1024, 16, 4, BFLOAT, -LARGE, {"unit": True, "origin": True}),
    "16 tokens each, float32": ([16, 3, 0, 40, 9, 16] * 9, 1024, 16, 4, FLOAT, -LARGE, {}),
    "one token each": ([1] * 70, 1024, 32, 1, BFLOAT, -LARGE, {}),
}


def blocks_for(dtype, size, dim) -> Tuning:
    """What a batch of so many tokens would be given; of very short sequences if `size` is negative."""
    sequences = -size // 16 if size < 0 else 4
    described = dim * dtype.itemsize % 16 == 0
    return choose_tuning(dtype, abs(size), 1024, 1024, sequences, described=described)


@pytest.mark.parametrize("case", CASES)
def test_every_shape_and_dtype(case):
    lengths, dim, heads, per_head, dtype, size, options = CASES[case]
    tokens, queries, origin = random_batch(lengths, dim, heads, per_head, dtype)
    preprocessing = Preprocessing(options.get("unit", False), origin if options.get("origin") else None)
    tuning = blocks_for(dtype, size, dim)
    h, mass, gradient = errors(
        tokens, queries, options.get("beta", 1.0), options.get("similarity", "dot"), preprocessing, tuning
    )
    assert h < 1e-5 and mass < 1e-5 and gradient < (5e-5 if dtype == FLOAT else 1e-2), (h, mass, gradient)


def truth(values, lengths, queries, beta, grads):
    """(h, L) and the gradient in float64, a sequence at a time."""
    queries = queries.double().requires_grad_()
    pools = []
    for index, sequence in enumerate(values.split(lengths)):
        batch = TokenBatch.from_lengths(sequence.double(), [len(sequence)])
        pooled = attention_pool_eager(batch, queries, beta)
        torch.autograd.backward(list(pooled), [g[index : index + 1].double() for g in grads])
        pools.append([x.detach() for x in pooled])
    return *(torch.cat(x) for x in zip(*pools, strict=True)), queries.grad


@pytest.mark.parametrize(
    ("dtype", "exact", "limits"),
    [
        (FLOAT, False, (1e-5, 1e-5, 5e-5)),
        (BFLOAT, False, (5e-3, 5e-3, 1e-2)),
        (BFLOAT, True, (1e-5, 1e-5, 5e-5)),
        (HALF, False, (5e-3, 5e-3, 1e-2)),
    ],
    ids=["float32", "bfloat16", "bfloat16 exact", "float16"],
)
def test_precision_at_the_size_of_a_model(dtype, exact, limits):
    lengths = [512] * 64
    g = torch.Generator("cuda").manual_seed(0)
    values = torch.randn(sum(lengths), 1024, generator=g, device="cuda").to(dtype)
    queries = torch.randn(256, 4, 1024, generator=g, device="cuda") / 50
    if not exact:
        queries = queries.to(dtype).float()
    beta = 30 / float((values.float() @ queries.flatten(0, 1).T).abs().max())
    grads = [torch.randn(len(lengths), 256, generator=g, device="cuda") for _ in range(2)]
    expected = truth(values, lengths, queries, beta, grads)
    weights = queries.clone().requires_grad_()
    tokens = TokenBatch.from_lengths(values, lengths)
    pooled = attention_pool(tokens, weights, beta, exact=exact)
    torch.autograd.backward(list(pooled), grads)
    for found, wanted, limit in zip((*pooled, weights.grad), expected, limits, strict=True):
        assert error(found, wanted) < limit
    again = queries.clone().requires_grad_()
    torch.autograd.backward(list(attention_pool(tokens, again, beta, exact=exact)), grads)
    assert torch.equal(again.grad, weights.grad), "the same at every run"
    sharp = queries.clone().requires_grad_()
    pooled = attention_pool(tokens, sharp, beta * 1e4 / 30, exact=exact)
    torch.autograd.backward(list(pooled), grads)
    assert all(bool(torch.isfinite(x).all()) for x in (*pooled, sharp.grad))


def test_memory_is_far_below_the_similarities():
    values = torch.randn(2**17, 1024, device="cuda", dtype=BFLOAT)
    queries = torch.randn(256, 4, 1024, device="cuda").div_(32).requires_grad_()
    tokens = TokenBatch.from_lengths(values, [512] * 256)
    similarities = len(values) * 1024 * 4
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    pooled = attention_pool(tokens, queries, 1.0)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < similarities / 50
    (pooled.value.sum() + pooled.log_mass.sum()).backward()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < similarities


def test_tokens_on_the_cpu_meet_queries_on_the_gpu():
    tokens, queries, _ = random_batch([5, 40], 1024, 64, 4, BFLOAT)
    for found, expected in zip(
        attention_pool(tokens, queries.cuda(), 1.0), attention_pool(tokens.to("cuda"), queries.cuda(), 1.0), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [BFLOAT, FLOAT], ids=str)
def test_a_frozen_pool_replays_graphs_without_new_memory(dtype):
    lengths = [16, 1, 100, 500, 37, 512, 700, 3]
    tokens, queries, origin = random_batch(lengths, 1024, 64, 4, dtype)
    preprocessing = Preprocessing(True, origin)
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1.0, "dot", preprocessing)
    tokens = tokens.to("cuda")
    pool = FrozenPool(queries.cuda(), 1.0, preprocessing=preprocessing)
    alone = [tokens.select([index]) for index in range(len(lengths))]
    found = [pool(one) for one in alone]
    for number in (torch.nan, torch.inf):  # which later calls must not see
        for length in (16, 64, 128, 512):
            broken = torch.full((length, 1024), number, dtype=dtype, device="cuda")
            assert not torch.isfinite(pool(TokenBatch.from_lengths(broken, [length])).value).any()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["num_device_alloc"]
    wrong = []

    def again():
        for index, one in enumerate(alone * 5):
            if not torch.equal(pool(one).value, found[index % len(alone)].value):
                wrong.append(index)

    threads = [threading.Thread(target=again) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and torch.cuda.memory_stats()["num_device_alloc"] == before
    for index, pooled in enumerate(found):
        assert error(pooled.value[0], expected.value[index]) < 1e-5
        assert error(pooled.log_mass[0], expected.log_mass[index]) < 1e-5
    whole = pool(tokens)
    assert error(whole.value, expected.value) < 1e-5 and error(whole.log_mass, expected.log_mass) < 1e-5
