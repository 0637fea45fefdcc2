"""Pools by bfloat16 products: never wrong by more than a thousandth of h, whatever the attention looks like."""

import pytest
import torch
from builders import random_queries, random_tokens

from apood.pooling import Frame, attention_pool, coarse, rounded
from apood.pooling.coarse import attention_pool_coarse, may_be_coarse
from apood.pooling.eager import attention_pool_eager
from apood.tokens.batch import TokenBatch

DIM, HEADS, QUERIES = 48, 12, 3
BFLOAT = torch.bfloat16
LENGTHS = {
    "one sequence": [600],
    "a long one": [5000],
    "no whole vectors": [333, 701],
    "short ones": [16] * 40,
    "all lengths": [1, 3, 0, 500, 33, 2, 900, 64, 64, 7],
}


def tokens_like(kind: str, lengths: list[int]) -> TokenBatch:
    tokens = random_tokens(lengths, DIM, dtype=torch.float32)
    values = tokens.values.clone()
    if kind == "with a common mean":
        values += 20 * torch.randn(DIM, generator=torch.Generator().manual_seed(3))
    if kind == "with outliers":
        values[::50] *= 30
    if kind == "of four kinds":
        values = values[torch.arange(len(values)) % 4]
    return TokenBatch(values.to(BFLOAT), tokens.offsets)


def queries_of(size: float = 1.0) -> torch.Tensor:
    return rounded(random_queries(HEADS, QUERIES, DIM, dtype=torch.float32, scale=size), BFLOAT)


def relative(found, expected):
    finite = torch.isfinite(expected)
    assert torch.equal(finite, torch.isfinite(found))
    return float((found.double() - expected)[finite].norm() / expected[finite].norm())


@pytest.mark.parametrize("kind", ["normal", "with a common mean", "with outliers", "of four kinds"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("most", [1e-30, 0.1, 1.0, 5.0, 30.0, 1e4])
@pytest.mark.parametrize("centred", [False, True])
def test_errors_stay_below_a_thousandth(kind, lengths, most, centred):
    tokens, queries = tokens_like(kind, lengths), queries_of()
    frame = Frame(False, 0.9 * tokens.values.float().mean(0) if centred else None)
    beta = most / float((tokens.values.float() @ queries.flatten(0, 1).T).abs().max())
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), beta, "dot", frame)
    found = attention_pool_coarse(tokens, queries, beta, frame)
    assert found.value.dtype == torch.float32
    assert relative(found.value, expected.value) < 1e-3
    assert relative(found.log_mass, expected.log_mass) < 1e-3


def heads_done_again(monkeypatch, tokens, queries, beta):
    """The share of heads in each block that was tried."""
    shares = []
    attempt = coarse._Attempt.__call__

    def noted(self, block, heads, rectangles, single):
        found, suffering = attempt(self, block, heads, rectangles, single)
        shares.append(len(suffering) / HEADS)
        return found, suffering

    monkeypatch.setattr(coarse._Attempt, "__call__", noted)
    attention_pool_coarse(tokens, queries, beta, Frame())
    return shares


def test_attention_spread_over_many_tokens_needs_no_float32(monkeypatch):
    tokens, queries = tokens_like("normal", [30_000] * 4), queries_of(DIM**-0.5)
    shares = heads_done_again(monkeypatch, tokens, queries, 0.5)
    assert len(shares) > 4 and not any(shares)


def test_attention_to_a_few_tokens_is_left_to_float32_after_one_attempt(monkeypatch):
    tokens, queries = tokens_like("normal", [30_000] * 4), queries_of(DIM**-0.5)
    assert heads_done_again(monkeypatch, tokens, queries, 8.0) == [1.0]
    exact = attention_pool(tokens, queries, 8.0, exact=True)
    for found, expected in zip(attention_pool_coarse(tokens, queries, 8.0, Frame()), exact, strict=True):
        assert torch.equal(found, expected)


def test_equal_tokens_are_not_tried(monkeypatch):
    assert not heads_done_again(monkeypatch, tokens_like("of four kinds", [5000]), queries_of(), 0.5)


def test_an_infinite_token_spoils_its_own_sequence_alone():
    tokens, queries = tokens_like("normal", [600, 600]), queries_of()
    tokens.values[3] = torch.inf
    pooled = attention_pool_coarse(tokens, queries, 0.5, Frame())
    assert torch.isfinite(pooled.value[1]).all() and not torch.isfinite(pooled.value[0]).any()


def test_who_asks_for_exact_products_gets_them(monkeypatch):
    monkeypatch.setattr(coarse, "_has_products", lambda: True)
    tokens, queries = tokens_like("normal", [30_000]), queries_of(DIM**-0.5)
    expected = attention_pool_eager(tokens.to(dtype=torch.float64), queries.double(), 0.5)
    assert relative(attention_pool(tokens, queries, 0.5, exact=True).value, expected.value) < 1e-6
    assert 1e-6 < relative(attention_pool(tokens, queries, 0.5).value, expected.value) < 1e-3


def test_only_what_loses_nothing_else_is_done_coarsely(monkeypatch):
    monkeypatch.setattr(coarse, "_has_products", lambda: True)
    tokens, queries = tokens_like("normal", [600]), queries_of()
    assert may_be_coarse(tokens, queries, 1.0, "dot", Frame())
    assert may_be_coarse(tokens, queries, 1.0, "dot", Frame(False, torch.ones(DIM)))
    assert not may_be_coarse(tokens, queries + 1e-3, 1.0, "dot", Frame()), "rounding the queries costs more"
    assert not may_be_coarse(tokens, queries, 1.0, "euclidean", Frame())
    assert not may_be_coarse(tokens, queries, 1.0, "dot", Frame(unit=True))
    assert not may_be_coarse(tokens, queries, 0.0, "dot", Frame())
    assert not may_be_coarse(tokens.to(dtype=torch.float32), queries, 1.0, "dot", Frame())
    assert not may_be_coarse(tokens_like("normal", [100]), queries, 1.0, "dot", Frame())
    learning = queries.clone().requires_grad_()
    assert not may_be_coarse(tokens, learning, 1.0, "dot", Frame())
    with torch.no_grad():
        assert may_be_coarse(tokens, learning, 1.0, "dot", Frame())
    monkeypatch.setattr(coarse, "_has_products", lambda: False)
    assert not may_be_coarse(tokens, queries, 1.0, "dot", Frame())


def test_a_torch_that_does_not_tell_has_no_such_products(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert coarse._has_products.__wrapped__() is False
