"""What every registered method refuses or warns about, in the data that it reads."""

import copy
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from builders import part_of, side_channels, with_dtype, with_empty, with_value
from comparisons import assert_same_scores, same_state

from apood.detectors.contract.base import AuxUse
from apood.detectors.contract.registry import METHODS, detector_class
from apood.support.errors import DataWarning, InputError
from apood.tokens.batch import TokenBatch

DIM = 8
ENCODER = {"model": "a/model", "layers": "-1", "mode": "input"}
CHANNELS = set(side_channels(1))
TOKENS_ALONE = {"tokens"}


USES_AUX = {use: [m for m in METHODS if detector_class(m)().aux == use] for use in get_args(AuxUse)}


def with_methods(methods):
    return pytest.mark.parametrize("method", methods, indirect=True)


def without(batch, *channels):
    return replace(batch, channels={name: c for name, c in batch.channels.items() if name not in channels})


def place(name, row, sequence):
    return f"Token {row} of sequence {sequence}" if name == "tokens" else f"Row {row} of {name} of sequence {sequence}"


def test_a_non_finite_value_is_named(new, fit, train, fitted, looks_at):
    for name in looks_at:
        lengths = part_of(train, name).lengths
        sequence = int((lengths == lengths.max()).nonzero()[-1])
        for row, value in product({0, int(lengths[sequence]) - 1}, [torch.nan, torch.inf, -torch.inf]):
            bad = with_value(train, name, sequence, row, value)
            for action, where in ((lambda data: fit(new(), data), "ID data"), (fitted.score_samples, "data to score")):
                with pytest.raises(InputError, match=f"^{place(name, row, sequence)} in the {where} .*finite"):
                    action(bad)


def test_the_number_of_a_bad_sequence_counts_all_batches(new, fit, train, fitted, looks_at, read_in_small_batches):
    read_in_small_batches()
    for name in looks_at:
        bad = with_value(train, name, 71, 0, torch.nan)
        for action in (lambda data: fit(new(), data), fitted.score_samples):
            with pytest.raises(InputError, match=f"^{place(name, 0, 71)} in the "):
                action(bad)


def test_huge_finite_values_have_a_score(fitted, test_set, looks_at):
    for name in looks_at:
        half = with_dtype(test_set, [name], torch.float16)
        part_of(half, name).values[0] = -60000.0 if name.endswith("logprobs") else 60000.0
        if name == "sample_logprobs":  # its last column is a number of tokens
            part_of(half, name).values[0, 1] = 60000.0
        # the sum of these is infinite in float16
        assert np.isfinite(fitted.score_samples(half)).all()
        huge = -3e38 if name == "token_logprobs" else 3e38
        scores = fitted.score_samples(with_value(test_set, name, 3, 0, huge))
        assert (scores < np.inf).all(), "it may overflow to -inf, but not to NaN"
        assert_same_scores(np.delete(scores, 3), np.delete(fitted.score_samples(test_set), 3))


def test_tokens_beyond_float32_are_refused_in_fit_and_no_score_is_nan(new, fit, train, fitted, test_set, looks_at):
    for name in looks_at:
        for size in (1e300, 1e30):
            huge = -size if name.endswith("logprobs") else size
            wide_train, wide = (
                with_value(with_dtype(batch, looks_at, torch.float64), name, 3, 0, huge) for batch in (train, test_set)
            )
            if name == "sample_logprobs":  # its last column is a number of tokens
                for batch in (wide_train, wide):
                    part_of(batch, name).values[int(part_of(batch, name).offsets[3])] = torch.tensor(
                        [huge, size], dtype=torch.float64
                    )
            if name in ("tokens", "sentences"):  # what is learnt from other channels never squares them
                with pytest.raises(InputError, match=f"^{place(name, 0, 3)} in the ID data has a value above 1e\\+15"):
                    fit(new(), wide_train)
            else:
                fit(new(), wide_train)
            scores = fitted.score_samples(wide)
            assert (scores < np.inf).all()
            assert_same_scores(np.delete(scores, 3), np.delete(fitted.score_samples(test_set), 3), 1e-4)


@with_methods([m for m in METHODS if "normalize" in detector_class(m)().get_params()])
def test_a_direction_that_is_lost_is_out_of_distribution(new, fit, train, held_out, method):
    """As a unit vector it would be zero, which lies near the mean of all directions."""
    huge = TokenBatch.from_sequences([np.full((5, DIM), 1e300) * (-1) ** np.arange(DIM)])
    for normalize in ("tokens",) if method == "ap-ood" else ("tokens", "pooled"):
        detector = fit(new(normalize=normalize), train).calibrate(held_out, accept=0.9)
        assert detector.predict(huge).tolist() == [-1]


def test_an_empty_sequence_is_refused_in_fit(new, fit, train, looks_at):
    for name in looks_at:
        sentence = f"^Sequence 7 of the ID data has no {name}; remove empty sequences"
        with pytest.raises(InputError, match=sentence):
            fit(new(), with_empty(train, name, 7))


def test_an_empty_sequence_is_out_of_distribution(calibrated, test_set, looks_at):
    for name in looks_at:
        batch = with_empty(with_empty(test_set, name, 7), name, 0)
        sentence = f"^2 of 26 sequences have no {' or '.join(looks_at)}; their score is -inf"
        with pytest.warns(DataWarning, match=sentence) as caught:
            scores = calibrated.score_samples(batch)
        assert len(caught) == 1
        assert np.flatnonzero(np.isneginf(scores)).tolist() == [0, 8]
        assert_same_scores(np.delete(scores, [0, 8]), calibrated.score_samples(test_set))
        with pytest.warns(DataWarning):
            assert (calibrated.predict(batch)[[0, 8]] == -1).all()
        with pytest.warns(DataWarning):
            assert (calibrated.p_values(batch)[[0, 8]] == 1 / 61).all()


def test_nothing_but_empty_sequences(fitted, test_set, looks_at):
    first = test_set[:1]
    for name in looks_at:
        with pytest.warns(DataWarning, match=r"^1 of 1 sequences have no "):
            assert fitted.score_samples(with_empty(first, name, 0)[:1]).tolist() == [-np.inf]


def test_calibration_refuses_empty_sequences(calibrated, held_out, looks_at):
    before = calibrated.calibration
    for name in looks_at:
        with_two = with_empty(with_empty(held_out, name, 40), name, 3)
        sentence = rf"^2 of 62 calibration sequences have no {' or '.join(looks_at)}, the first is sequence 3; remove"
        with pytest.raises(InputError, match=sentence):
            calibrated.calibrate(with_two)
    assert calibrated.calibration is before, "it is not half calibrated"


def test_calibration_refuses_too_many_infinite_scores(calibrated, held_out, monkeypatch):
    own = type(calibrated)._score
    monkeypatch.setattr(
        type(calibrated), "_score", lambda self, batch: own(self, batch).where(batch.lengths > 2, -np.inf)
    )
    few = int((held_out.lengths <= 2).sum())
    with pytest.raises(InputError, match=rf"^{few} of 60 calibration sequences have the score -inf.*rate of 0.95"):
        calibrated.calibrate(held_out)
    assert np.isfinite(calibrated.calibrate(held_out, accept=0.5).threshold_)


def test_no_sequences_at_all(new, fit, fitted, train):
    nothings = [train[:0]]
    if fitted.requires == TOKENS_ALONE:
        nothings.append(TokenBatch.from_padded(torch.zeros(0, 3, DIM)))
    for nothing in nothings:
        with pytest.raises(InputError, match=r"^There are no ID sequences to fit on\.$"):
            fit(new(), nothing)
        assert fitted.score_samples(nothing).shape == (0,)
    for action in (new().fit, fitted.score_samples):
        with pytest.raises(InputError, match=r"^There are no sequences: the list is empty\.$"):
            action([])


def test_what_is_no_data_is_refused(new, fitted):
    wrongs = {
        r"^Tokens must ": [None, 3, "text", [np.zeros((2, DIM), int)]],
        r"at sequence 0; a vector is a sequence of one token as vector\[None\]\.$": [[np.zeros(DIM)]],
        r"^A 2-D array \[4, 8\] .*: give \[X\] for the former, and X\[:, None\]": [
            np.zeros((4, DIM)),
            torch.zeros(4, DIM),
        ],
    }
    for sentence, given in wrongs.items():
        for wrong, action in product(given, (new().fit, fitted.score_samples)):
            with pytest.raises(InputError, match=sentence):
                action(wrong)


@with_methods(["knn", "binary-logits"])
def test_what_is_no_label_is_refused_in_favour_of_aux(new, train, aux):
    for wrong in (aux, train, list(aux), [0, 1], np.zeros((len(train), 1)), 3, np.array(3), "labels"):
        with pytest.raises(InputError, match=r"^The second argument of fit is y, .*: fit\(X, aux=outliers\)\.$"):
            new().fit(train, wrong)


@with_methods([m for m in METHODS if detector_class(m)().requires & CHANNELS])
def test_a_channel_that_is_missing_is_named_with_the_method(new, fit, train, test_set, aux, fitted, method, looks_at):
    for name in set(looks_at) & CHANNELS:
        sentence = f"^The method {method} needs {name}, which the {{}} lack; they have "
        with pytest.raises(InputError, match=sentence.format("ID data")):
            fit(new(), without(train, name))
        for data in (without(test_set, name), TokenBatch.from_sequences(list(test_set))):
            with pytest.raises(InputError, match=f"^The method {method} needs .* data to score lack; they have tokens"):
                fitted.score_samples(data)
        if fitted.aux != "unused":
            with pytest.raises(InputError, match=sentence.format("AUX data")):
                new().fit(train, aux=without(aux, name))


def test_another_dimension_is_refused_where_tokens_matter(fitted, test_set, looks_at):
    other = replace(test_set, values=test_set.values[:, :5])
    if "tokens" in looks_at:
        with pytest.raises(InputError, match=r"^The tokens have D=5, this [a-z-]+ detector was fitted on D=8\.$"):
            fitted.score_samples(other)
    else:
        assert np.array_equal(fitted.score_samples(other), fitted.score_samples(test_set))


def test_calibration_on_the_fitted_sequences_warns(fitted, train, held_out, stored):
    for same in (train, stored(train, ENCODER, "again")):
        assert fitted.was_fitted_on(same) and not fitted.was_fitted_on(held_out)
    with pytest.warns(DataWarning, match="calibrated on the sequences it was fitted on"):
        copy.deepcopy(fitted).calibrate(train)


def test_another_encoder_is_refused(new, fit, train, test_set, stored):
    detector = fit(new(), stored(train, ENCODER))
    assert detector.encoder_ == ENCODER
    same = detector.score_samples(stored(test_set, ENCODER, "same"))
    assert np.array_equal(detector.score_samples(test_set), same), "tokens in memory are trusted"
    other = stored(test_set, ENCODER | {"layers": "3"}, "other")
    sentence = (
        r"^The tokens come from another encoder \(layers 3\) than those that this [a-z-]+ detector was fitted on "
        r"\(layers -1\)\.$"
    )
    for action in (detector.score_samples, detector.calibrate):
        with pytest.raises(InputError, match=sentence):
            action(other)


@with_methods(USES_AUX["unused"])
def test_aux_is_refused_where_it_is_not_used(new, method, train, aux):
    with pytest.raises(InputError, match=f"^{method} .*no AUX"):
        new().fit(train, aux=aux)


@with_methods(USES_AUX["required"])
def test_aux_is_asked_for_where_it_is_required(new, method, train):
    with pytest.raises(InputError, match=f"^{method} .*no AUX sequences were given"):
        new().fit(train)


@with_methods(USES_AUX["optional"] + USES_AUX["required"])
def test_aux_where_it_is_used(new, train, test_set, aux, stored, looks_at):
    detector = new().fit(train, aux=aux)
    scores = detector.score_samples(test_set)
    assert np.isfinite(scores).all() and scores[:12].mean() > scores[12:].mean()
    assert same_state(new().fit(stored(train), aux=stored(aux, name="aux")), detector)
    assert not same_state(new().fit(train, aux=aux[:20]), detector), "it makes a difference"
    if detector.aux == "optional":  # a method that lives on outliers may ask for more than one
        assert np.isfinite(new().fit(train, aux=aux[:1]).score_samples(test_set)).all()
    for wrong, sentence in (
        (aux[:0], r"^There are no AUX sequences to fit on\.$"),
        ([], r"^There are no sequences: the list is empty\.$"),
        *((with_empty(aux, name, 2), f"^Sequence 2 of the AUX data has no {name}") for name in looks_at),
        *(
            (with_value(aux, name, 1, 0, torch.nan), f"^{place(name, 0, 1)} in the AUX data is NaN")
            for name in looks_at
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            new().fit(train, aux=wrong)
    if "tokens" in looks_at:
        with pytest.raises(InputError, match=r"^The AUX tokens have D=5, the ID tokens have D=8\.$"):
            new().fit(train, aux=replace(aux, values=aux.values[:, :5]))
    stores = stored(train, ENCODER, "id"), stored(aux, ENCODER | {"layers": "3"}, "other")
    with pytest.raises(
        InputError, match=r"^The AUX tokens come from another encoder \(layers 3\) than the ID tokens \(layers -1\)\.$"
    ):
        new().fit(stores[0], aux=stores[1])
