"""Every registered method gives the same scores for the same data in any form, order and batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import observed_sequences, part_of, random_tokens, side_channels, with_dtype, with_value
from comparisons import assert_same_scores, same_state

from apood.detectors.contract.registry import METHODS, detector_class
from apood.tokens.batch import FLOAT_DTYPES, TokenBatch
from apood.tokens.source import Subset

DIM = 8
CHANNELS = set(side_channels(1))
TOKENS_ALONE = {"tokens"}


def test_scores_are_finite_and_higher_inside(fitted, method, test_set):
    scores = fitted.score_samples(test_set)
    assert scores.shape == (24,) and scores.dtype == np.float64 and np.isfinite(scores).all()
    if method != "length":  # which sees nothing of what sets the two halves apart
        assert scores[:12].mean() > scores[12:].mean()


def test_a_store_is_as_good_as_memory(new, fit, train, test_set, fitted, stored):
    assert same_state(fit(new(), stored(train)), fitted)
    expected = fitted.score_samples(test_set)
    assert np.array_equal(fitted.score_samples(stored(test_set, name="test")), expected)
    assert_same_scores(fitted.score_samples(Subset(test_set, slice(3, 20))), expected[3:20])


def test_reading_in_small_batches_changes_nothing(new, fit, train, test_set, fitted, read_in_small_batches):
    expected = fitted.score_samples(test_set)
    read_in_small_batches()
    assert_same_scores(fitted.score_samples(test_set), expected)
    assert_same_scores(fit(new(), train).score_samples(test_set), expected)


@pytest.mark.parametrize("method", [m for m in METHODS if detector_class(m)().requires == TOKENS_ALONE], indirect=True)
def test_all_forms_of_input_are_the_same(new, fit, train, test_set, fitted):
    expected = fitted.score_samples(test_set)
    longest = int(test_set.lengths.max())
    padded = torch.full((len(test_set), longest, DIM), torch.nan)  # what is masked may be anything
    mask = torch.zeros(len(test_set), longest, dtype=torch.bool)
    for i, sequence in enumerate(test_set):
        padded[i, : len(sequence)], mask[i, : len(sequence)] = sequence, True
    for form in (
        list(test_set),
        [sequence.numpy() for sequence in test_set],
        tuple(test_set),
        (padded, mask),
        (padded.numpy(), mask.numpy()),
        (padded, mask.int()),
    ):
        assert np.array_equal(fitted.score_samples(form), expected)
    assert np.array_equal(fit(new(), [z.numpy() for z in train]).score_samples(test_set), expected)


def test_only_what_is_required_is_looked_at(new, train, test_set, fitted, aux, looks_at):
    """Channels that a method does not name may be wrong or missing, and so may the tokens."""
    expected = fitted.score_samples(test_set)

    def bare(batch):
        channels = {name: batch.channels[name] for name in looks_at if name != "tokens"}
        return replace(batch, channels=channels) if "tokens" in looks_at else TokenBatch.without_tokens(**channels)

    for name in (CHANNELS | TOKENS_ALONE) - set(looks_at):
        assert np.array_equal(fitted.score_samples(with_value(test_set, name, 5, 0, torch.nan)), expected)
    assert np.array_equal(fitted.score_samples(bare(test_set)), expected)
    again = new().fit(bare(train), aux=bare(aux) if fitted.aux == "required" else None)
    assert np.array_equal(again.score_samples(bare(test_set)), expected)


def test_a_score_does_not_depend_on_its_neighbours(fitted, test_set):
    expected = fitted.score_samples(test_set)
    alone = np.concatenate([fitted.score_samples(test_set[i : i + 1]) for i in range(len(test_set))])
    assert_same_scores(alone, expected)
    order = torch.randperm(len(test_set), generator=torch.Generator().manual_seed(0))
    assert_same_scores(fitted.score_samples(test_set.select(order)), expected[order.numpy()])
    strangers = random_tokens([1, 5000, 2, 300, 11, 11], DIM, dtype=torch.float32, scale=100)
    strangers = strangers.with_channels(**side_channels(6, rows=(1, 900), shift=100))
    crowd = TokenBatch.concatenate([strangers, test_set, strangers])
    assert_same_scores(fitted.score_samples(crowd)[6:-6], expected)


def test_the_input_is_left_alone(new, fit, train, test_set):
    def content():
        return [part_of(batch, name).values for batch in (train, test_set) for name in ("tokens", *batch.channels)]

    before = [values.clone() for values in content()]
    fit(new(), train).score_samples(test_set)
    assert all(map(torch.equal, content(), before))


def test_sequences_of_one_token(new, fit, test_set):
    singles = observed_sequences(80, DIM, seed=5, lengths=(1, 1))
    scores = fit(new(), singles).score_samples(test_set)
    assert np.isfinite(scores).all()


def test_every_dtype_is_read_as_the_numbers_it_holds(new, fit, train, test_set, fitted, looks_at):
    for dtype in set(FLOAT_DTYPES) - {torch.float32}:
        rounded = with_dtype(test_set, looks_at, dtype)
        # computed in float32 unless the tokens are float64
        tolerance = 1e-4 if dtype == torch.float64 else 1e-6
        as_float32 = with_dtype(rounded, looks_at, torch.float32)
        assert_same_scores(fitted.score_samples(rounded), fitted.score_samples(as_float32), tolerance)
        rounded_train = with_dtype(train, looks_at, dtype)
        scores = fit(new(), rounded_train).score_samples(test_set)
        as_float32 = with_dtype(rounded_train, looks_at, torch.float32)
        # AP-OOD, alone or in a fusion, keeps queries that the dtype of its tokens holds exactly
        coarse = dtype == torch.bfloat16 and new().name in ("ap-ood", "fusion")
        tolerance = 1e-2 if coarse else 1e-3
        assert_same_scores(scores, fit(new(), as_float32).score_samples(test_set), tolerance)
