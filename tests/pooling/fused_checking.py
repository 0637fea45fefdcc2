"""What the tests of the fused kernels share: random batches, errors, one comparison with the definition.

Without a GPU the kernels run in Triton's interpreter (see `tests/conftest.py`), with small blocks.
"""

from contextlib import nullcontext
from dataclasses import replace

import torch
import triton.language as tl
from triton.runtime import interpreter

from apood.pooling.algebra import Preprocessing
from apood.pooling.eager import attention_pool_eager
from apood.pooling.fused import attention_pool_fused
from apood.pooling.kernels.tuning import Blocks, ProductBlocks, Tuning, force_tuning
from apood.tokens.batch import TokenBatch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SMALL = Blocks(bc=16, bs=32, tail=16, bk=32, warps=4, stages=2)
TINY = Tuning(SMALL, SMALL, ProductBlocks(bc=16, bd=32, bk=32, warps=4, stages=2, splits=2), chunk=64)
PLAIN = replace(TINY, forward=replace(SMALL, tma=False), coefficients=replace(SMALL, tma=False))
SLOTS = replace(PLAIN, chunk=16, short=True)

# max |error| / rms; a gradient sums coefficients that are rounded to float16 where the tokens have 16 bits
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
GRADIENT = {torch.float32: 3e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def widen(create_dot):
    """The interpreter keeps bfloat16 as integers and multiplies them as such."""

    def as_float(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        data = interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None).view("float32")
        return interpreter.TensorHandle(data, tl.float32)

    return lambda self, a, b, *rest: create_dot(self, as_float(a), as_float(b), *rest)


if DEVICE == "cpu":
    interpreter.InterpreterBuilder.create_dot = widen(interpreter.InterpreterBuilder.create_dot)


def random_batch(lengths, dim, heads, per_head, dtype, spread=1.0, seed=0):
    """Tokens around an offset, queries that their dtype holds exactly, and an origin."""
    g = torch.Generator().manual_seed(seed)
    values = (torch.randn(sum(lengths), dim, generator=g) + 0.5).to(dtype)
    queries = (torch.randn(heads, per_head, dim, generator=g) * spread / dim**0.5).to(dtype).float()
    return TokenBatch.from_lengths(values, lengths), queries, torch.randn(dim, generator=g) * 0.3


def error(found, expected):
    """max |error| / rms; both must be finite in the same places."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(found), finite)
    rms = expected[finite].square().mean().sqrt().clamp_min(1e-30)
    return float((found - expected)[finite].abs().max() / rms) if finite.any() else 0.0


def errors(tokens, queries, beta, similarity="dot", preprocessing=None, tuning=TINY, exact=False):
    """Errors of h, L and the gradient of the queries against the definition in float64."""
    preprocessing = preprocessing or Preprocessing()
    truth = queries.double().requires_grad_()
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), truth, beta, similarity, preprocessing)
    ours = queries.detach().clone().to(DEVICE).requires_grad_()
    g = torch.Generator().manual_seed(1)
    grads = [torch.randn(expected.value.shape, generator=g, dtype=torch.float64) for _ in range(2)]
    filled = (tokens.lengths > 0)[:, None]
    with force_tuning(tuning) if tuning else nullcontext():
        found = attention_pool_fused(tokens.to(DEVICE), ours, beta, similarity, preprocessing, exact)
        torch.autograd.backward(list(found), [x.float().to(DEVICE) for x in grads])
    # -inf of an empty sequence has no gradient
    torch.autograd.backward([expected.value, expected.log_mass.masked_fill(~filled, 0)], grads)
    return error(found.value, expected.value), error(found.log_mass, expected.log_mass), error(ours.grad, truth.grad)


def check(lengths, dim, heads, per_head, dtype, beta=1.0, similarity="dot", unit=False, shifted=False, **options):
    """Asserts that a random batch is pooled as defined, gradients included."""
    tokens, queries, origin = random_batch(lengths, dim, heads, per_head, dtype, options.pop("spread", 1.0))
    preprocessing = Preprocessing(unit, origin if shifted else None)
    h, mass, gradient = errors(tokens, queries, beta, similarity, preprocessing, **options)
    assert h < TOLERANCE[dtype] and mass < TOLERANCE[dtype] and gradient < GRADIENT[dtype], (h, mass, gradient)
