"""The fused kernels equal the definition for every shape, dtype, preprocessing and path through the code."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from fused_checking import DEVICE, PLAIN, SLOTS, SMALL, TINY, check, error, errors, random_batch

from apood.pooling.algebra import Preprocessing
from apood.pooling.eager import attention_pool_eager
from apood.pooling.fused import attention_pool_fused, prepare_queries
from apood.pooling.kernels import launch
from apood.pooling.kernels.backward import pool_gradient
from apood.pooling.kernels.forward import compute_token_stats, pool_forward
from apood.pooling.kernels.launch import make_plan
from apood.pooling.kernels.plan import cut_into_items
from apood.pooling.kernels.tuning import Blocks, Tuning, choose_tuning, force_tuning

# the interpreter computes -inf - -inf and 0 / 0 before it picks what is right
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = {
    "one token": ([1], 64, 2, 2),
    "D=33, T=3, M=5": ([1, 7, 40], 33, 5, 3),
    "T=1": ([5, 33, 16], 64, 7, 1),
    "T=5 of 3 heads": ([32, 65], 40, 3, 5),
    "columns of one block": ([31], 32, 4, 4),
    "a head wider than a block": ([20], 32, 2, 32),
    "a head of 70 queries": ([9], 32, 1, 70),
    "empty sequences": ([0, 5, 0, 70, 0], 40, 3, 2),
    "exact tiles": ([32, 64], 64, 4, 4),
}
PATHS = {"descriptors": TINY, "pointers": PLAIN, "slots": SLOTS}


@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes(shape):
    lengths, dim, heads, per_head = SHAPES[shape]
    # rows of 33 numbers cannot be described to the copy engine: the rule finds that out
    tuning = None if dim == 33 else TINY
    check(lengths, dim, heads, per_head, torch.float32, tuning=tuning)
    check(lengths, dim, heads, per_head, torch.bfloat16, similarity="euclidean", tuning=tuning)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_preprocessing_on_every_path(dtype, path):
    check([3, 0, 70], 40, 3, 2, dtype, 2.0, "euclidean", True, True, spread=4.0, tuning=PATHS[path])


@pytest.mark.parametrize(("unit", "shifted"), [(True, False), (False, True)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_of_the_preprocessing(dtype, unit, shifted):
    check([3, 40], 40, 3, 2, dtype, 2.0, "dot", unit, shifted, spread=4.0)


@pytest.mark.parametrize("change", [{"persistent": 1}, {"tail": 32}, {"bk": 64}, {"bc": 32, "bs": 64}], ids=str)
def test_blocks_change_nothing(change):
    blocks = replace(SMALL, **change)
    for lengths, chunk in (([64, 64], 64), ([5, 70, 40], 32), ([5, 70, 40], 128)):
        tuning = Tuning(blocks, blocks, replace(TINY.product, splits=3), chunk)
        check(lengths, 64, 3, 4, torch.float32, tuning=tuning)


@pytest.mark.parametrize("lengths", [[1] * 9, [16, 3, 0, 40, 9]], ids=str)
@pytest.mark.parametrize("per_head", [1, 3, 4])
def test_short_sequences_share_a_tile(lengths, per_head):
    check(lengths, 33, 5, per_head, torch.float32, tuning=SLOTS)


def test_one_long_sequence_among_short_ones():
    blocks = Blocks(16, 128, 32, 32, 4, 2)
    check([5, 2000, 1, 40], 32, 4, 2, torch.float32, tuning=Tuning(blocks, blocks, TINY.product, 256))


@pytest.mark.parametrize("lengths", [[], [0, 0]], ids=str)
def test_nothing_to_pool(lengths):
    tokens, queries, _ = random_batch(lengths, 32, 3, 2, torch.float32)
    weights = queries.to(DEVICE).requires_grad_()
    pooled = attention_pool_fused(tokens.to(DEVICE), weights, 1.0, "dot", Preprocessing(), False)
    pooled.value.sum().backward()
    assert pooled.value.shape == pooled.log_mass.shape == (len(lengths), 3)
    assert (pooled.value == 0).all() and (pooled.log_mass == -torch.inf).all() and (weights.grad == 0).all()


@pytest.mark.parametrize("path", PATHS)
def test_beta_zero_is_the_mean(path):
    check([3, 70, 1], 32, 4, 2, torch.float32, 0.0, "euclidean", tuning=PATHS[path])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sharp_attention(dtype, path):
    tokens, queries, _ = random_batch([40, 3], 32, 3, 2, dtype)
    largest = float((tokens.values.float() @ queries.flatten(0, 1).T).abs().max())
    h, mass, gradient = errors(tokens, queries, 30 / largest, tuning=PATHS[path])
    assert h < 1e-5 and mass < 1e-5 and gradient < (3e-5 if dtype == torch.float32 else 1e-2)
    h, mass, _ = errors(tokens, queries, 1e4 / largest, tuning=PATHS[path])  # the gradient is finite
    assert h < 1e-3 and mass < 1e-5, "a logit of 1e4 is known to 1e-3"


def test_small_and_large_queries_keep_their_digits_in_float16():
    tokens, queries, origin = random_batch([40, 33], 32, 4, 2, torch.float16)
    for factor in (1e-6, 1e6):
        for similarity, beta in (("dot", 1 / factor), ("euclidean", 0.0)):
            assert max(errors(tokens, queries * factor, beta, similarity, Preprocessing(False, origin))[:2]) < 2e-3


def test_tiny_gradients_do_not_vanish_in_half_precision():
    tokens, queries, _ = random_batch([40, 33], 32, 4, 2, torch.bfloat16)
    grads = []
    with force_tuning(TINY):
        for factor in (1.0, 2.0**-40):
            weights = queries.clone().to(DEVICE).requires_grad_()
            pooled = attention_pool_fused(tokens.to(DEVICE), weights, 1.0, "dot", Preprocessing(), False)
            ((pooled.value.sum() + 0.1 * pooled.log_mass.sum()) * factor).backward()
            grads.append(weights.grad / factor)
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


def test_exact_products_keep_queries_that_bfloat16_cannot_hold():
    tokens, queries, _ = random_batch([40, 33], 32, 4, 2, torch.bfloat16)
    queries = queries * (1 + 2.0**-12)
    assert max(errors(tokens, queries, 1.0, exact=True)) < 3e-5
    assert errors(tokens, queries, 1.0)[0] > 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_pieces_of_the_backward_pass_add_up_and_repeat(path):
    tokens, queries, origin = random_batch([20, 60, 0, 40, 3], 32, 3, 2, torch.float32)
    preprocessing = Preprocessing(True, origin)
    truth = queries.double().requires_grad_()
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), truth, 1.0, "euclidean", preprocessing)
    grads = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.ones(5, 3)
    filled = (tokens.lengths > 0)[:, None]
    torch.autograd.backward([expected.value, expected.log_mass.masked_fill(~filled, 0)], [g.double() for g in grads])
    tuning = PATHS[path]
    values, queries, origin = tokens.values.to(DEVICE), queries.to(DEVICE), origin.to(DEVICE)
    plan = cut_into_items(tokens.offsets, values.device, min(32, tuning.chunk), 40, not tuning.short)
    assert len(plan.pieces) > 2
    columns, beta, *_ = prepare_queries(queries, 1.0, "euclidean", Preprocessing(True, origin), torch.float32)
    stats = compute_token_stats(values, True, origin, True)
    pooled = pool_forward(values, columns, stats, beta, plan, tuning)
    on_device = tuple(g.to(DEVICE) for g in grads)
    found = [pool_gradient(values, columns, stats, origin, beta, plan, tuning, pooled, on_device) for _ in range(2)]
    assert error(found[0].view(truth.shape), truth.grad) < 3e-5
    assert torch.equal(*found)


@pytest.mark.parametrize("path", PATHS)
def test_work_lists_cover_every_token_once(path):
    lengths = [0, 5, 700, 1, 64, 0, 129]
    tokens, _, _ = random_batch(lengths, 8, 1, 1, torch.float32)
    plan = make_plan(tokens.offsets, tokens.values, 2**24, PATHS[path])
    seen = torch.zeros(sum(lengths), dtype=torch.int64)
    for piece in plan.pieces:
        for start, stop, row, sequence in plan.items[piece.first_item : piece.last_item].tolist():
            assert piece.first_token <= start <= stop <= piece.last_token
            assert tokens.offsets[sequence] <= start and stop <= tokens.offsets[sequence + 1]
            assert plan.first[sequence] <= row < plan.first[sequence + 1]
            assert stop - start <= plan.chunk
            seen[start:stop] += 1
    assert (seen == 1).all() and sorted(plan.items[:, 2].tolist()) == list(range(len(plan.items)))


BATCHES = [(2**18, 512), (2**14, 32), (2**18, 2**14), (512, 1)]  # tokens and sequences, for every rule


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("described", [True, False])
def test_blocks_shrink_to_the_shared_memory_of_the_gpu(described, dtype):
    # of an RTX 4090, and of smaller ones
    for (tokens, sequences), limit in product(BATCHES, [101_376, 65_536, 24_576]):
        there = choose_tuning(dtype, tokens, 1024, 1024, sequences, described=described)
        here = choose_tuning(dtype, tokens, 1024, 1024, sequences, described=described, shared_memory=limit)
        assert (here.chunk, here.short) == (there.chunk, there.short)
        for blocks in (here.forward, here.coefficients):
            assert blocks.stages * (blocks.bc + blocks.bs) * blocks.bk * dtype.itemsize <= limit
            assert min(blocks.bc, blocks.bs, blocks.bk) >= 16 and blocks.tail <= blocks.bs
            assert not here.short or blocks.bs >= here.chunk
        assert (here.product.bc + here.product.bd) * here.product.bk * here.product.stages * dtype.itemsize <= limit


def test_a_gpu_with_little_shared_memory_pools_with_small_blocks(monkeypatch):
    used = []
    monkeypatch.setattr(launch, "get_shared_memory", lambda _: 2**14)
    monkeypatch.setattr(launch, "choose_tuning", lambda *a, **k: used.append(choose_tuning(*a, **k)) or used[-1])
    check([70, 3], 64, 4, 2, torch.float32, tuning=None)
    usual = choose_tuning(torch.float32, 73, 64, 8, 2, multiprocessors=4)
    assert used and all(tuning.forward.bs < usual.forward.bs for tuning in used)


def test_a_rule_chooses_blocks_that_fit_the_shape():
    large = choose_tuning(torch.bfloat16, 2**18, 1024, 1024, 512)
    assert large.forward.tma and large.chunk == 1024 and not large.short
    plain = choose_tuning(torch.bfloat16, 2**14, 1024, 1024, 32)
    assert not plain.forward.tma, "from Python a described launch takes longer than the work"
    assert plain.chunk == 512, "one item a sequence, and enough of them"
    assert choose_tuning(torch.bfloat16, 2**14, 1024, 1024, 32, captured=True).forward.tma
    assert choose_tuning(torch.bfloat16, 2**18, 1024, 1024, 2**14).short
    assert not choose_tuning(torch.float32, 2**18, 33, 1024, 512, described=False).coefficients.tma
    with force_tuning(TINY):
        assert choose_tuning(torch.bfloat16, 2**18, 1024, 1024, 512) == TINY
    assert choose_tuning(torch.bfloat16, 2**18, 1024, 1024, 512) == large
