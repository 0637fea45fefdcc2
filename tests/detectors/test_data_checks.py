"""The checks of data for methods that read tokens and channels at once, or channels of other kinds."""

import pytest
import torch

from apood.detectors.contract.data_checks import (
    find_nonempty,
    get_required_parts,
    is_coarse,
    refuse_lacking,
    refuse_nonfinite,
    refuse_unfit,
)
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch

BOTH = frozenset({"tokens", "logits"})


def observed(tokens=(1, 2, 1), logits=(1, 1, 1)):
    channel = Ragged.from_lengths(torch.zeros(sum(logits), 4), logits)
    return TokenBatch.from_lengths(torch.zeros(sum(tokens), 3), tokens).with_channels(logits=channel)


def test_the_parts_that_are_required():
    batch = observed()
    assert get_required_parts(batch, frozenset({"tokens"})) == {"tokens": batch}
    assert get_required_parts(batch, BOTH) == {"logits": batch.channels["logits"], "tokens": batch}


def test_a_sequence_is_nonempty_if_every_part_has_rows():
    batch = observed(tokens=(0, 2, 1, 0), logits=(1, 1, 0, 0))
    assert find_nonempty(batch, BOTH).tolist() == [False, True, False, False]
    assert find_nonempty(batch, frozenset({"tokens"})).tolist() == [False, True, True, False]
    assert find_nonempty(batch, frozenset({"logits"})).tolist() == [True, True, False, False]


def test_tokens_are_coarse_if_bfloat16_holds_them_in_whatever_dtype_they_are_stored():
    exact = TokenBatch.from_lengths(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), [12, 8])
    assert not is_coarse(exact) and not is_coarse(exact.select([]))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert is_coarse(TokenBatch(exact.values.bfloat16().to(dtype), exact.offsets))
    assert not is_coarse(TokenBatch.from_lengths(torch.zeros(0, 3), [0, 0])), "no tokens show no precision"


def test_what_is_lacking_is_named_with_what_is_there():
    refuse_lacking(observed(), "m", BOTH, "ID data")
    with pytest.raises(
        InputError, match=r"^The method m needs labels, which the ID data lack; they have tokens, logits\.$"
    ):
        refuse_lacking(observed(), "m", BOTH | {"labels"}, "ID data")
    with pytest.raises(InputError, match=r"lack; they have tokens\.$"):
        refuse_lacking(TokenBatch.from_lengths(torch.zeros(1, 3), [1]), "m", BOTH, "ID data")


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (observed()[:0], r"^There are no AUX sequences to fit on\.$"),
        (observed(tokens=(1, 0, 1)), "^Sequence 1 of the AUX data has no tokens;"),
        (observed(logits=(1, 1, 0)), "^Sequence 2 of the AUX data has no logits;"),
    ],
)
def test_what_is_unfit_in_any_part_is_refused(batch, sentence):
    refuse_unfit(observed(), BOTH, "AUX")
    with pytest.raises(InputError, match=sentence):
        refuse_unfit(batch, BOTH, "AUX")


def test_the_additional_check_comes_last(monkeypatch):
    monkeypatch.setattr("apood.detectors.contract.data_checks.token_budget", lambda _: 2)
    asked = []
    refuse_unfit(observed(), BOTH, "AUX", lambda batch, first, where: asked.append((len(batch), first, where)))
    assert asked == [(1, 0, "the AUX data"), (1, 1, "the AUX data"), (1, 2, "the AUX data")]
    wrong = observed()
    wrong.values[0] = torch.nan
    with pytest.raises(InputError, match=r"^Token 0 of sequence 0 in the ID data is NaN"):
        refuse_unfit(wrong, BOTH, "ID", lambda *_: pytest.fail("asked of what is not finite"))


def test_empty_sequences_are_refused_before_a_token_is_read(monkeypatch):
    monkeypatch.setattr(TokenBatch, "batches", lambda *_: pytest.fail("read for nothing"))
    with pytest.raises(InputError, match=r"^Sequence 1 of the ID data has no tokens"):
        refuse_unfit(observed(tokens=(1, 0, 1)), BOTH, "ID")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_value_is_named_in_any_part(value):
    batch = observed()
    batch.channels["logits"].values[2, 1] = value
    refuse_nonfinite(batch, frozenset({"tokens"}), 0, "the ID data")
    with pytest.raises(InputError, match=r"^Row 0 of logits of sequence 12 in the ID data is NaN or infinite"):
        refuse_nonfinite(batch, BOTH, 10, "the ID data")
    batch.values[2, 1] = value
    with pytest.raises(InputError, match=r"^Token 1 of sequence 11 in the ID data is NaN or infinite"):
        refuse_nonfinite(batch, frozenset({"tokens"}), 10, "the ID data")


def test_infinities_that_cancel_are_found():
    batch = observed()
    batch.values[0, 0], batch.values[3, 0] = torch.inf, -torch.inf
    with pytest.raises(InputError, match=r"^Token 0 of sequence 0"):
        refuse_nonfinite(batch, BOTH, 0, "the ID data")


def test_a_sum_that_overflows_is_no_infinity():
    batch = observed().to(dtype=torch.float16)
    batch.values[:] = 60000.0
    assert not torch.isfinite(batch.values.sum())
    refuse_nonfinite(batch, BOTH, 0, "the ID data")


@pytest.mark.parametrize("values", [torch.arange(3), torch.ones(3, dtype=torch.bool), torch.zeros(3, 2, 2)])
def test_channels_of_any_kind_are_checked(values):
    batch = observed().with_channels(extra=Ragged.from_lengths(values, [2, 0, 1]))
    refuse_nonfinite(batch, BOTH | {"extra"}, 0, "the ID data")
    assert find_nonempty(batch, BOTH | {"extra"}).tolist() == [True, False, True]
    if values.is_floating_point():
        values[2, 0, 1] = torch.nan
        with pytest.raises(InputError, match=r"^Row 0 of extra of sequence 2 in the ID data"):
            refuse_nonfinite(batch, BOTH | {"extra"}, 0, "the ID data")
