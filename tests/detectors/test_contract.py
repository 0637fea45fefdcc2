"""What every registered method keeps: a new one is tested here the moment it has its line in the registry."""

import copy
import inspect
import random
import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_tokens
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from apood.decisions.threshold import conformal_threshold
from apood.detectors import base, data_checks
from apood.detectors.base import AuxUse, Detector
from apood.detectors.registry import METHODS, detector_class
from apood.support.errors import DataWarning, InputError, NotCalibratedError
from apood.tokens.batch import FLOAT_DTYPES, TokenBatch

DIM = 8
ENCODER = {"model": "a/model", "layer": -1, "mode": "input"}


def learnt(detector):
    return {key: value for key, value in vars(detector).items() if key.endswith("_")}


def assert_same_state(found, expected):
    assert learnt(found).keys() == learnt(expected).keys()
    for key, value in learnt(expected).items():
        other = learnt(found)[key]
        assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value, key


def assert_same_scores(found, expected, tolerance=1e-6):
    """The same but for rounding, relative to the largest: a score near 0 is a difference of large numbers."""
    assert found.shape == expected.shape and found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def with_value(batch, sequence, token, value):
    values = batch.values.clone()
    values[int(batch.offsets[sequence]) + token, 3] = value
    return TokenBatch(values, batch.offsets)


def with_empty(batch, position):
    lengths = batch.lengths.tolist()
    lengths.insert(position, 0)
    return TokenBatch.from_lengths(batch.values, lengths)


# the class and its parameters


def test_the_class_says_who_it_is(method):
    chosen = detector_class(method)
    assert issubclass(chosen, Detector) and chosen.name == method
    assert chosen.__doc__ and chosen.__doc__ != Detector.__doc__
    assert isinstance(chosen.requires, frozenset) and chosen.aux in get_args(AuxUse)


def test_the_constructor_only_stores(method):
    chosen = detector_class(method)
    detector = chosen()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(chosen).parameters.items()
        if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    }
    assert detector.get_params() == defaults == vars(detector)


def test_clone_and_set_params(fitted):
    twin = clone(fitted)
    assert type(twin) is type(fitted) and twin.get_params() == fitted.get_params() and learnt(twin) == {}
    assert twin.set_params(**fitted.get_params()) is twin
    with pytest.raises(ValueError, match="Invalid parameter"):
        twin.set_params(no_such_parameter=1)


def test_fit_returns_self_and_keeps_the_parameters(new, train):
    detector = new()
    before = copy.deepcopy(detector.get_params())
    assert detector.fit(train) is detector
    assert detector.get_params() == before
    assert learnt(detector) and vars(detector).keys() == before.keys() | learnt(detector).keys()


def test_a_second_fit_forgets_the_first(new, train, held_out, calibrated):
    assert_same_state(calibrated.fit(held_out), new().fit(held_out))
    assert not hasattr(calibrated, "threshold_")
    assert_same_state(calibrated.fit(train), new().fit(train))


def test_the_same_seed_gives_the_same_detector(new, train, fitted):
    again = new().fit(train)
    assert_same_state(again, fitted)
    if "seed" in fitted.get_params():
        other = new(seed=fitted.get_params()["seed"] + 1).fit(train)
        assert any(not torch.equal(v, learnt(fitted)[k]) for k, v in learnt(other).items() if torch.is_tensor(v))


def test_global_state_is_left_alone(new, train, test_set):
    def state():
        return (
            torch.get_default_dtype(),
            torch.get_rng_state().tolist(),
            str(np.random.get_state()),
            random.getstate(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            np.geterr(),
        )

    before = state()
    new().fit(train).calibrate(test_set, 0.5).predict(test_set)
    assert state() == before


# the data


def test_scores_are_finite_and_higher_inside(fitted, method, test_set):
    scores = fitted.score_samples(test_set)
    assert scores.shape == (24,) and scores.dtype == np.float64 and np.isfinite(scores).all()
    if method != "length":  # which sees nothing of what sets the two halves apart
        assert scores[:12].mean() > scores[12:].mean()


def test_a_store_is_as_good_as_memory(new, train, test_set, fitted, stored):
    from_store = new().fit(stored(train))
    assert_same_state(from_store, fitted)
    expected = fitted.score_samples(test_set)
    assert np.array_equal(fitted.score_samples(stored(test_set, name="test")), expected)


def test_reading_in_small_batches_changes_nothing(new, train, test_set, fitted, monkeypatch):
    expected = fitted.score_samples(test_set)
    for module in (base, data_checks, *map(inspect.getmodule, map(detector_class, METHODS))):
        if hasattr(module, "token_budget"):
            monkeypatch.setattr(module, "token_budget", lambda _: 17)
    assert_same_scores(fitted.score_samples(test_set), expected)
    assert_same_scores(new().fit(train).score_samples(test_set), expected)


def test_all_forms_of_input_are_the_same(new, train, test_set, fitted):
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
    assert np.array_equal(new().fit([z.numpy() for z in train]).score_samples(test_set), expected)


def test_a_score_does_not_depend_on_its_neighbours(fitted, test_set):
    expected = fitted.score_samples(test_set)
    alone = np.concatenate([fitted.score_samples(test_set[i : i + 1]) for i in range(len(test_set))])
    assert_same_scores(alone, expected)
    order = torch.randperm(len(test_set), generator=torch.Generator().manual_seed(0))
    assert_same_scores(fitted.score_samples(test_set.select(order)), expected[order.numpy()])
    strangers = random_tokens([1, 5000, 2, 300, 11, 11], DIM, dtype=torch.float32, scale=100)
    crowd = TokenBatch.concatenate([strangers, test_set, strangers])
    assert_same_scores(fitted.score_samples(crowd)[6:-6], expected)


def test_the_input_is_left_alone(new, train, test_set):
    before = train.values.clone(), test_set.values.clone()
    new().fit(train).score_samples(test_set)
    assert torch.equal(train.values, before[0]) and torch.equal(test_set.values, before[1])


def test_sequences_of_one_token(new, test_set):
    singles = correlated_sequences(80, DIM, seed=5, lengths=(1, 1))
    scores = new().fit(singles).score_samples(test_set)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_every_dtype_is_read_as_the_numbers_it_holds(new, train, test_set, fitted, dtype):
    rounded = test_set.to(dtype=dtype)
    # computed in float32 unless the tokens are float64
    tolerance = 1e-4 if dtype == torch.float64 else 1e-6
    assert_same_scores(fitted.score_samples(rounded), fitted.score_samples(rounded.to(dtype=torch.float32)), tolerance)
    train = train.to(dtype=dtype)
    scores = new().fit(train).score_samples(test_set)
    assert_same_scores(scores, new().fit(train.to(dtype=torch.float32)).score_samples(test_set), 1e-3)


# what is refused


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_named(new, train, fitted, value):
    sequence = int((train.lengths > 2).nonzero()[4])
    for token in (0, 2):
        bad = with_value(train, sequence, token, value)
        where = rf"^Token {token} of sequence {sequence} in the {{}} is NaN or infinite; every value must be finite\.$"
        with pytest.raises(InputError, match=where.format("ID data")):
            new().fit(bad)
        with pytest.raises(InputError, match=where.format("data to score")):
            fitted.score_samples(bad)


def test_the_number_of_a_bad_sequence_counts_all_batches(new, train, fitted, monkeypatch):
    for module in (base, data_checks):
        monkeypatch.setattr(module, "token_budget", lambda _: 17)
    for action in (new().fit, fitted.score_samples):
        with pytest.raises(InputError, match=r"^Token 0 of sequence 71 in the "):
            action(with_value(train, 71, 0, torch.nan))


def test_huge_finite_values_have_a_score(fitted, test_set):
    half = test_set.to(dtype=torch.float16)
    half.values[0] = 60000.0  # the sum of these is infinite in float16
    assert np.isfinite(fitted.score_samples(half)).all()
    scores = fitted.score_samples(with_value(test_set, 3, 0, 3e38))
    assert (scores < np.inf).all(), "it may overflow to -inf, but not to NaN"
    assert_same_scores(np.delete(scores, 3), np.delete(fitted.score_samples(test_set), 3))


def test_an_empty_sequence_is_refused_in_fit(new, train):
    with pytest.raises(InputError, match=r"^Sequence 7 of the ID data has no tokens; remove empty sequences"):
        new().fit(with_empty(train, 7))


def test_an_empty_sequence_is_out_of_distribution(calibrated, test_set):
    batch = with_empty(with_empty(test_set, 7), 0)
    with pytest.warns(DataWarning, match=r"^2 of 26 sequences have no tokens; their score is -inf") as caught:
        scores = calibrated.score_samples(batch)
    assert len(caught) == 1
    assert np.flatnonzero(np.isneginf(scores)).tolist() == [0, 8]
    assert_same_scores(np.delete(scores, [0, 8]), calibrated.score_samples(test_set))
    with pytest.warns(DataWarning):
        assert (calibrated.predict(batch)[[0, 8]] == -1).all()
    with pytest.warns(DataWarning):
        assert (calibrated.p_values(batch)[[0, 8]] == 1 / 61).all()


def test_an_empty_sequence_is_out_even_where_the_threshold_is_minus_infinity(calibrated, held_out, test_set):
    with pytest.warns(DataWarning):
        calibrated.calibrate(with_empty(with_empty(held_out, 0), 0), accept=0.98)
    assert calibrated.threshold_ == -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)
        assert calibrated.predict(with_empty(test_set, 1))[:3].tolist() == [1, -1, 1]
        assert calibrated.decision_function(with_empty(test_set, 1))[:3].tolist() == [np.inf, -np.inf, np.inf]


def test_no_sequences_at_all(new, fitted, train):
    for nothing in (train[:0], TokenBatch.from_padded(torch.zeros(0, 3, DIM))):
        with pytest.raises(InputError, match=r"^There are no ID sequences to fit on\.$"):
            new().fit(nothing)
        assert fitted.score_samples(nothing).shape == (0,)
    for action in (new().fit, fitted.score_samples):
        with pytest.raises(InputError, match=r"^There are no sequences: the list is empty\.$"):
            action([])


@pytest.mark.parametrize("wrong", [None, 3, "text", np.zeros((4, DIM)), [np.zeros(DIM)], [np.zeros((2, DIM), int)]])
def test_what_is_no_data_is_refused(new, fitted, wrong):
    for action in (new().fit, fitted.score_samples):
        with pytest.raises(InputError, match=r"^Tokens must "):
            action(wrong)


def test_another_dimension_is_refused(fitted):
    with pytest.raises(InputError, match=r"^The tokens have D=5, this detector was fitted on D=8\.$"):
        fitted.score_samples(random_tokens([3], 5))


def test_another_encoder_is_refused(new, train, test_set, stored):
    detector = new().fit(stored(train, ENCODER))
    assert detector.encoder_ == ENCODER
    same = detector.score_samples(stored(test_set, ENCODER, "same"))
    assert np.array_equal(detector.score_samples(test_set), same), "tokens in memory are trusted"
    other = stored(test_set, ENCODER | {"layer": 3}, "other")
    sentence = (
        r"^The tokens come from model a/model, layer 3, mode input, "
        r"this detector was fitted on tokens from model a/model, layer -1, mode input\.$"
    )
    for action in (detector.score_samples, detector.calibrate):
        with pytest.raises(InputError, match=sentence):
            action(other)


def test_aux_is_taken_or_refused(new, train, stored):
    aux = correlated_sequences(5, DIM, seed=3, shift=4.0)
    if new().aux == "unused":
        with pytest.raises(InputError, match="learns from in-distribution data alone and takes no AUX sequences"):
            new().fit(train, aux)
        return
    assert_same_state(new().fit(train, list(aux)), new().fit(train, stored(aux)))
    for wrong, sentence in (
        (aux[:0], r"^There are no AUX sequences to fit on\.$"),
        ([], r"^There are no sequences: the list is empty\.$"),
        (with_empty(aux, 2), r"^Sequence 2 of the AUX data has no tokens"),
        (with_value(aux, 1, 1, torch.nan), r"^Token 1 of sequence 1 in the AUX data is NaN"),
        (random_tokens([3], 5), r"^The AUX tokens have D=5, the ID tokens have D=8\.$"),
    ):
        with pytest.raises(InputError, match=sentence):
            new().fit(train, wrong)
    stores = stored(train, ENCODER, "id"), stored(aux, ENCODER | {"layer": 3}, "aux")
    with pytest.raises(InputError, match=r"^The AUX tokens come from .*layer 3.*, the ID tokens from .*layer -1"):
        new().fit(*stores)


NEED_FIT = ("score_samples", "decision_function", "predict", "p_values", "select_ood", "calibrate", "save")
NEED_THRESHOLD = ("decision_function", "predict", "p_values", "select_ood")


@pytest.mark.parametrize("action", NEED_FIT)
def test_nothing_works_before_fit(new, test_set, action):
    with pytest.raises(NotFittedError):
        getattr(new(), action)(test_set)


@pytest.mark.parametrize("action", NEED_FIT)
def test_a_fit_that_fails_leaves_nothing_behind(calibrated, train, test_set, action, monkeypatch):
    def broken(*_):
        raise InputError("no")

    monkeypatch.setattr(type(calibrated), "_fit", broken)
    with pytest.raises(InputError):
        calibrated.fit(train)
    with pytest.raises(NotFittedError):
        getattr(calibrated, action)(test_set)


@pytest.mark.parametrize("action", NEED_THRESHOLD)
def test_decisions_need_calibration_and_say_so_before_the_work(fitted, method, test_set, action, monkeypatch):
    monkeypatch.setattr(type(fitted), "score_samples", lambda *_: pytest.fail("scored for nothing"))
    sentence = f"^This {method} detector has no threshold yet: call calibrate with in-distribution sequences first"
    with pytest.raises(NotCalibratedError, match=sentence):
        getattr(fitted, action)(test_set)


def test_calibration_refuses_what_cannot_work(fitted, held_out):
    detector = copy.deepcopy(fitted)
    with pytest.raises(InputError, match=r"needs at least 19 calibration scores, got 18\.$"):
        detector.calibrate(held_out[:18])
    for accept in (0.0, 1.0, -1.0, 1.5, np.nan):
        with pytest.raises(InputError, match=r"^accept must lie strictly between 0 and 1"):
            detector.calibrate(held_out, accept)
    assert not hasattr(detector, "threshold_")
    assert detector.calibrate(held_out[:19]) is detector


# decisions


def test_decisions_follow_from_scores(calibrated, held_out, test_set):
    scores, own = calibrated.score_samples(test_set), calibrated.score_samples(held_out)
    assert calibrated.accept_ == 0.9 and calibrated.threshold_ == conformal_threshold(own, 0.9)
    assert torch.equal(calibrated.calibration_scores_, torch.from_numpy(np.sort(own)))
    margin = calibrated.decision_function(test_set)
    assert np.array_equal(margin, scores - calibrated.threshold_)
    decisions = calibrated.predict(test_set)
    assert set(decisions) <= {1, -1} and np.array_equal(decisions == 1, margin >= 0)
    p = calibrated.p_values(test_set)
    assert np.array_equal(p, [(1 + (own <= score).sum()) / 61 for score in scores])
    assert np.array_equal(p <= 0.1 + 1e-12, decisions == -1)
    assert (calibrated.predict(held_out) == 1).mean() >= 0.9
    chosen = calibrated.select_ood(test_set, rate=0.2)
    assert chosen.dtype == bool and (not chosen.any() or p[chosen].max() <= p[~chosen].min(initial=1))
