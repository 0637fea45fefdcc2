"""The blocked pool, wherever its blocks are cut: values, gradients, and the buffers that it reuses."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders import random_queries, random_tokens
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apood.pooling import Pooled, Preprocessing
from apood.pooling import blocked as module
from apood.pooling.algebra import similarities_and_logits
from apood.pooling.blocked import attention_pool_blocked
from apood.pooling.eager import attention_pool_eager

DIM, HEADS = 6, 5
lengths_of_batches = st.lists(st.one_of(st.integers(0, 9), st.integers(10, 130)), min_size=1, max_size=9).filter(sum)
MOVED = Preprocessing(False, torch.ones(DIM))
preprocessings = st.sampled_from(
    [Preprocessing(), Preprocessing(unit=True), Preprocessing(True, torch.full((DIM,), 0.3)), MOVED]
)
similarities = st.sampled_from(["dot", "euclidean"])


def error(found, expected):
    """Largest error over the root mean square."""
    return float((found.double() - expected).abs().max() / expected.square().mean().sqrt())


def cost_of_float32(tokens, queries, beta, similarity, preprocessing):
    """How far off float32 may be, to first order, for h and L of sequences that all have tokens.

    A similarity is off by c u |w||z| and a logit by c u λ, where λ sums the sizes of its terms, which may cancel.
    By their derivatives this moves h by c u Σ p (|w||z| + λ |a - h|), and L by c u Σ p λ. About c = 10 roundings
    make a logit: D of its product, then β, the preprocessing and the norms. (Those of a sum over S tokens go either way
    and add up to √S / 2, which is less.)
    """
    c, u = 10, 2.0**-24
    costs = []
    for sequence in tokens:
        z = preprocessing.apply(sequence)
        a, logits = (x.flatten(1) for x in similarities_and_logits(z, queries, beta, similarity))
        p, mass = torch.softmax(logits, 1), torch.logsumexp(logits, 1)
        apart = (a - (p * a).sum(1, keepdim=True)).abs()
        w_norm, z_norm = queries.norm(dim=2, keepdim=True), z.norm(dim=1)
        product = (w_norm * z_norm).flatten(1)
        size = beta * (product if similarity == "dot" else (w_norm + z_norm).square().flatten(1) / 2)
        value = c * (p * (product + size * apart)).sum(1)
        costs.append((u * value, u * c * ((p * size).sum(1) + mass.abs() + 1)))
    return Pooled(*map(torch.stack, zip(*costs, strict=True)))


def gradients(pool, queries, weights):
    """The gradient of a sum of h and L in which no two entries weigh the same; L of an empty sequence is left out."""
    queries = queries.detach().clone().requires_grad_()
    value, mass = pool(queries)
    loss = (value * weights).sum() + (mass * weights.flip(1)).masked_fill(mass.isinf(), 0).sum()
    return torch.autograd.grad(loss, queries)[0]


@settings(max_examples=60, deadline=None)
@given(
    lengths_of_batches,
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    similarities,
    preprocessings,
    st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 30.0]),
    st.sampled_from([1, 300, 2**19]),
)
# terms of logits that cancel, seldom seen by chance: h is off by more than 1e-5 of its root mean square
@example([0, 0, 122, 11], 4, torch.float32, "euclidean", MOVED, 30.0, 300)
@example([96, 5, 4, 0], 4, torch.float16, "euclidean", MOVED, 30.0, 2**19)
# a piece with nearly all of the mass: its share is off by more than its own rounding
@example([0, 25, 0, 52], 2, torch.bfloat16, "euclidean", MOVED, 30.0, 300)
def test_every_cut_gives_the_definition(lengths, queries, dtype, similarity, preprocessing, most, block):
    tokens = random_tokens(lengths, DIM, dtype=dtype)
    weights = random_queries(HEADS, queries, DIM, dtype=torch.float32)
    filled = torch.tensor(lengths) > 0
    exact = tokens.select(filled.nonzero()[:, 0]).to(dtype=torch.float64), weights.double()
    wide = attention_pool_eager(*exact, 1.0, similarity, preprocessing)
    beta = most / float(wide.log_mass.abs().max())  # L up to about `most`
    expected = attention_pool_eager(*exact, beta, similarity, preprocessing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_THREAD_ELEMENTS", block)
        found = attention_pool_blocked(tokens, weights, beta, similarity, preprocessing)
    for own, definition, cost in zip(
        found, expected, cost_of_float32(*exact, beta, similarity, preprocessing), strict=True
    ):
        assert own.dtype == torch.float32
        assert ((own[filled] - definition).abs() <= cost).all()
    assert (found.value[~filled] == 0).all() and (found.log_mass[~filled] == -torch.inf).all()


@settings(max_examples=60, deadline=None)
@given(
    lengths_of_batches,
    st.integers(1, 4),
    similarities,
    preprocessings,
    st.sampled_from([0.0, 0.7, 5.0]),
    st.sampled_from([1, 300, 2**19]),
    st.sampled_from([0, 500, 2**24]),
)
def test_gradients_are_those_of_the_definition(lengths, queries, similarity, preprocessing, beta, block, kept):
    """Whether similarities were kept for the backward pass, or some, or none."""
    tokens, start = random_tokens(lengths, DIM), random_queries(HEADS, queries, DIM)
    weights = torch.linspace(-1, 2, len(lengths) * HEADS, dtype=torch.float64).view(len(lengths), HEADS)
    filled = tokens.select([i for i, length in enumerate(lengths) if length])
    rows = torch.tensor(lengths) > 0
    expected = gradients(
        lambda q: attention_pool_eager(filled, q, beta, similarity, preprocessing), start, weights[rows]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_THREAD_ELEMENTS", block)
        patch.setattr(module, "_KEPT_ELEMENTS", kept)
        found = gradients(lambda q: attention_pool_blocked(tokens, q, beta, similarity, preprocessing), start, weights)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_in_float32_are_as_precise(dtype, similarity):
    tokens = random_tokens([1, 40, 300, 700], 33, dtype=dtype)
    start = random_queries(5, 3, 33, scale=0.5).float()
    weights = torch.linspace(-1, 2, 20).view(4, 5)
    found = gradients(lambda q: attention_pool_blocked(tokens, q, 0.6, similarity, Preprocessing()), start, weights)
    exact = tokens.to(dtype=torch.float64)
    expected = gradients(lambda q: attention_pool_eager(exact, q, 0.6, similarity), start.double(), weights.double())
    assert error(found, expected) < 1e-5


def test_similarities_keep_their_digits_beside_a_tiny_beta():
    """Times β they would be subnormal numbers, which have fewer digits the smaller they are."""
    tokens = random_tokens([40], DIM, dtype=torch.float32, scale=1e-9)
    queries = random_queries(HEADS, 2, DIM, dtype=torch.float32, scale=1e-9)
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 1e-23).value
    found = attention_pool_blocked(tokens, queries, 1e-23, "dot", Preprocessing()).value
    assert error(found, expected) < 1e-5


def test_a_small_beta_needs_no_second_tensor_for_the_logits():
    tokens, queries = random_tokens([40], DIM), random_queries(HEADS, 2, DIM)
    pool = module._BlockedPool(tokens, queries, 1e-17, "dot", Preprocessing())
    scaled, logits = pool.compute_similarities(tokens.values, slice(None), single=True, keep=False)
    assert logits is scaled
    torch.testing.assert_close(scaled / 1e-17, (queries.flatten(0, 1) @ tokens.values.T).view(HEADS, -1))


def test_a_second_backward_pass_finds_what_the_first_one_found():
    tokens, queries = random_tokens([3, 40, 17], DIM), random_queries(HEADS, 2, DIM).requires_grad_()
    loss = attention_pool_blocked(tokens, queries, 0.7, "euclidean", Preprocessing()).value.square().sum()
    first, second = (torch.autograd.grad(loss, queries, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_queries_may_lie_in_memory_in_any_order():
    tokens, queries = random_tokens([3, 40], DIM), random_queries(HEADS, 2, DIM)
    turned = queries.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    weights = torch.ones(2, HEADS, dtype=torch.float64)

    def pool(q):
        return attention_pool_blocked(tokens, q, 0.7, "dot", Preprocessing())

    start = turned.detach().requires_grad_()
    value, mass = pool(start)
    (found,) = torch.autograd.grad((value + mass).sum(), start)
    torch.testing.assert_close(found, gradients(pool, queries, weights))


def test_nothing_is_kept_or_recorded_without_a_gradient():
    tokens, queries = random_tokens([3, 40], DIM), random_queries(HEADS, 2, DIM).requires_grad_()
    with torch.no_grad():
        assert not attention_pool_blocked(tokens, queries, 0.7, "dot", Preprocessing()).value.requires_grad
    assert not attention_pool_blocked(tokens, queries.detach(), 0.7, "dot", Preprocessing()).value.requires_grad
    assert attention_pool_blocked(tokens, queries, 0.7, "dot", Preprocessing()).value.requires_grad


def pools_of(seed):
    """Pools of another shape for every seed, all through the same memory."""
    tokens = random_tokens([seed, 2 * seed, 5, 16], DIM, seed=seed, dtype=torch.float32)
    queries = random_queries(2 + seed % 3, 1 + seed % 4, DIM, seed=seed, dtype=torch.float32)
    return attention_pool_blocked(tokens, queries, 0.7, ["dot", "euclidean"][seed % 2], Preprocessing())


def assert_identical(found: list[Pooled], expected: list[Pooled]):
    assert all(torch.equal(x, y) for f, e in zip(found, expected, strict=True) for x, y in zip(f, e, strict=True))


def test_the_same_call_gives_the_same_bits_and_no_result_lies_in_memory_used_again():
    first = [pools_of(seed) for seed in range(1, 40)]
    copies = [Pooled(*(x.clone() for x in pooled)) for pooled in first]
    again = [pools_of(seed) for seed in range(1, 40)]
    assert_identical(first, copies)
    assert_identical(again, copies)


def test_threads_do_not_share_memory():
    expected = [pools_of(seed) for seed in range(1, 40)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(pools_of, list(range(1, 40)) * 5))
    assert_identical(found, expected * 5)


def test_inference_mode_leaves_nothing_behind_that_others_cannot_use():
    def in_turns():  # in a thread of its own, whose memory is new
        with torch.inference_mode():
            inside = pools_of(7)
        return inside, pools_of(7)

    with ThreadPoolExecutor(1) as threads:
        inside, outside = threads.submit(in_turns).result()
    assert_identical([inside], [outside])
    assert not outside.value.is_inference()
