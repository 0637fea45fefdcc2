"""What every registered method keeps: a new one is tested here the moment it has its line in the registry.

Methods come in kinds: `requires` says what they look at, tokens or channels beside them, and `aux` whether they
learn from outliers. What is planted (a NaN, an empty sequence, another dtype) is planted where the method looks.
"""

import copy
import inspect
import json
import os
import random
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from builders import observed_sequences, random_tokens, side_channels
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from apood.decisions.threshold import conformal_threshold
from apood.detectors.base import AuxUse, Detector
from apood.detectors.registry import METHODS, detector_class
from apood.support.errors import DataWarning, InputError, NotCalibratedError
from apood.tokens.batch import FLOAT_DTYPES, Ragged, TokenBatch
from apood.tokens.subset import Subset

DIM = 8
ENCODER = {"model": "a/model", "layer": -1, "mode": "input"}
CHANNELS = set(side_channels(1))
TOKENS_ALONE = {"tokens"}


@pytest.fixture(scope="session")
def looks_at(new):
    """The names of what the method in turn looks at."""
    return sorted(new().requires)


def learnt(detector):
    return {key: value for key, value in vars(detector).items() if key.endswith("_")}


def same_value(found, expected):
    """Whether two things are equal: tensors bit by bit, detectors by their parameters and what they learnt."""
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, Detector):
        return type(found) is type(expected) and same_value(vars(found), vars(expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    return found == expected


def same_state(found, expected):
    names = learnt(expected).keys()
    return learnt(found).keys() == names and all(same_value(learnt(found)[k], learnt(expected)[k]) for k in names)


def assert_same_scores(found, expected, tolerance=1e-6):
    """The same but for rounding, relative to the largest: a score near 0 is a difference of large numbers."""
    assert found.shape == expected.shape and found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def part_of(batch, name):
    """The tokens or a channel."""
    return Ragged(batch.values, batch.offsets) if name == "tokens" else batch.channels[name]


def with_part(batch, name, part):
    """The batch with other tokens, or with a channel replaced."""
    if name == "tokens":
        return replace(batch, values=part.values, offsets=part.offsets)
    return batch.with_channels(**{name: part})


def with_value(batch, name, sequence, row, value):
    """The batch with one number of its tokens or of a channel replaced."""
    part = part_of(batch, name)
    values = part.values.clone()
    values.view(len(values), -1)[int(part.offsets[sequence]) + row, -1] = value
    return with_part(batch, name, Ragged(values, part.offsets))


def with_dtype(batch, names, dtype):
    for name in names:
        batch = with_part(batch, name, part_of(batch, name).to(dtype=dtype))
    return batch


def with_empty(batch, name, position):
    """The batch with a sequence inserted at `position` that has nothing in the part `name`."""
    order = list(range(len(batch)))
    longer = batch.select([*order[:position], 0, *order[position:]])
    part = part_of(longer, name)
    lengths, keep = part.lengths.clone(), torch.ones(len(part.values), dtype=torch.bool)
    lengths[position] = 0
    keep[int(part.offsets[position]) : int(part.offsets[position + 1])] = False
    return with_part(longer, name, Ragged.from_lengths(part.values[keep], lengths))


def without(batch, *channels):
    return replace(batch, channels={name: c for name, c in batch.channels.items() if name not in channels})


def read_in_small_batches(monkeypatch):
    """Wherever a module of the package asks how many tokens to read at once."""
    for name, module in sys.modules.items():
        if name.startswith("apood.") and hasattr(module, "token_budget"):
            monkeypatch.setattr(module, "token_budget", lambda _: 17)


# the class and its parameters


def test_the_class_says_who_it_is(method):
    chosen = detector_class(method)
    assert issubclass(chosen, Detector) and chosen.name == method
    assert chosen.__doc__ and chosen.__doc__ != Detector.__doc__
    detector = chosen()
    assert isinstance(detector.requires, frozenset) and detector.aux in get_args(AuxUse)
    assert detector.requires and detector.requires <= CHANNELS | TOKENS_ALONE, "the data of these tests has it"


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
    assert type(twin) is type(fitted) and same_value(twin.get_params(), fitted.get_params()) and learnt(twin) == {}
    assert twin.set_params(**fitted.get_params()) is twin
    with pytest.raises(ValueError, match="Invalid parameter"):
        twin.set_params(no_such_parameter=1)


def test_settings_worth_trying_are_settings(new):
    for supervised in {"unused": [False], "optional": [False, True], "required": [True]}[new().aux]:
        space = new().hyperparameter_space(DIM, supervised=supervised)
        assert space and all(space.count(setting) == 1 for setting in space)
        for setting in space:
            assert json.loads(json.dumps(setting, allow_nan=False)) == setting, "it is written into reports"
            new().set_params(**setting).check_parameters()


def test_fit_returns_self_and_keeps_the_parameters(new, fit, train):
    detector = new()
    before = copy.deepcopy(detector.get_params())
    assert fit(detector, train) is detector
    assert same_value(detector.get_params(), before)
    assert learnt(detector) and vars(detector).keys() == before.keys() | learnt(detector).keys()


def test_a_second_fit_forgets_the_first(new, fit, train, held_out, fitted, calibrated):
    assert same_state(fit(calibrated, held_out), fit(new(), held_out))
    assert not hasattr(calibrated, "threshold_")
    assert same_state(fit(calibrated, train), fitted)


def test_the_same_seed_gives_the_same_detector(new, fit, train, fitted):
    assert same_state(fit(new(), train), fitted)
    if "seed" in fitted.get_params():
        assert not same_state(fit(new(seed=fitted.get_params()["seed"] + 1), train), fitted)


def test_global_state_is_left_alone(new, fit, train, test_set):
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
    fit(new(), train).calibrate(test_set, 0.5).predict(test_set)
    assert state() == before


def test_random_numbers_of_others_change_nothing(fitted, test_set):
    expected = fitted.score_samples(test_set)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        assert np.array_equal(fitted.score_samples(test_set), expected)


# the data


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


def test_reading_in_small_batches_changes_nothing(new, fit, train, test_set, fitted, monkeypatch):
    expected = fitted.score_samples(test_set)
    read_in_small_batches(monkeypatch)
    assert_same_scores(fitted.score_samples(test_set), expected)
    assert_same_scores(fit(new(), train).score_samples(test_set), expected)


def test_all_forms_of_input_are_the_same(new, fit, train, test_set, fitted):
    expected = fitted.score_samples(test_set)
    if fitted.requires != TOKENS_ALONE:  # arrays have no channels
        return
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
    again = new().fit(bare(train), bare(aux) if fitted.aux == "required" else None)
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


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_every_dtype_is_read_as_the_numbers_it_holds(new, fit, train, test_set, fitted, looks_at, dtype):
    rounded = with_dtype(test_set, looks_at, dtype)
    # computed in float32 unless the tokens are float64
    tolerance = 1e-4 if dtype == torch.float64 else 1e-6
    as_float32 = with_dtype(rounded, looks_at, torch.float32)
    assert_same_scores(fitted.score_samples(rounded), fitted.score_samples(as_float32), tolerance)
    if dtype != torch.float32:
        train = with_dtype(train, looks_at, dtype)
        scores = fit(new(), train).score_samples(test_set)
        as_float32 = with_dtype(train, looks_at, torch.float32)
        # AP-OOD, alone or in a fusion, keeps queries that the dtype of its tokens holds exactly
        coarse = dtype == torch.bfloat16 and new().name in ("ap-ood", "fusion")
        tolerance = 1e-2 if coarse else 1e-3
        assert_same_scores(scores, fit(new(), as_float32).score_samples(test_set), tolerance)


# what is refused


def place(name, row, sequence):
    return f"Token {row} of sequence {sequence}" if name == "tokens" else f"Row {row} of {name} of sequence {sequence}"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_named(new, fit, train, fitted, looks_at, value):
    for name in looks_at:
        lengths = part_of(train, name).lengths
        sequence = int((lengths == lengths.max()).nonzero()[-1])
        for row in {0, int(lengths[sequence]) - 1}:
            bad = with_value(train, name, sequence, row, value)
            sentence = f"^{place(name, row, sequence)} in the {{}} is NaN or infinite; every value must be finite\\.$"
            with pytest.raises(InputError, match=sentence.format("ID data")):
                fit(new(), bad)
            with pytest.raises(InputError, match=sentence.format("data to score")):
                fitted.score_samples(bad)


def test_the_number_of_a_bad_sequence_counts_all_batches(new, fit, train, fitted, looks_at, monkeypatch):
    read_in_small_batches(monkeypatch)
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


def test_an_empty_sequence_is_out_even_where_the_threshold_is_minus_infinity(calibrated, held_out, test_set, looks_at):
    name = looks_at[0]
    with pytest.warns(DataWarning):
        calibrated.calibrate(with_empty(with_empty(held_out, name, 0), name, 0), accept=0.98)
    assert calibrated.threshold_ == -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)
        batch = with_empty(test_set, name, 1)
        assert calibrated.predict(batch)[:3].tolist() == [1, -1, 1]
        assert calibrated.decision_function(batch)[:3].tolist() == [np.inf, -np.inf, np.inf]


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


@pytest.mark.parametrize("wrong", [None, 3, "text", np.zeros((4, DIM)), [np.zeros(DIM)], [np.zeros((2, DIM), int)]])
def test_what_is_no_data_is_refused(new, fitted, wrong):
    for action in (new().fit, fitted.score_samples):
        with pytest.raises(InputError, match=r"^Tokens must "):
            action(wrong)


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
                new().fit(train, without(aux, name))


def test_another_dimension_is_refused_where_tokens_matter(fitted, test_set, looks_at):
    other = replace(test_set, values=test_set.values[:, :5])
    if "tokens" in looks_at:
        with pytest.raises(InputError, match=r"^The tokens have D=5, this [a-z-]+ detector was fitted on D=8\.$"):
            fitted.score_samples(other)
    else:
        assert np.array_equal(fitted.score_samples(other), fitted.score_samples(test_set))


def test_calibration_on_what_it_was_fitted_on_is_told(fitted, train, held_out, stored):
    for same in (train, stored(train, ENCODER, "again")):
        assert fitted.was_fitted_on(same) and not fitted.was_fitted_on(held_out)
    with pytest.warns(DataWarning, match=r"^The detector is calibrated on the very sequences it was fitted on"):
        copy.deepcopy(fitted).calibrate(train)


def test_another_encoder_is_refused(new, fit, train, test_set, stored):
    detector = fit(new(), stored(train, ENCODER))
    assert detector.encoder_ == ENCODER
    same = detector.score_samples(stored(test_set, ENCODER, "same"))
    assert np.array_equal(detector.score_samples(test_set), same), "tokens in memory are trusted"
    other = stored(test_set, ENCODER | {"layer": 3}, "other")
    sentence = (
        r"^The tokens come from another encoder \(layer 3\) than those that this [a-z-]+ detector was fitted on "
        r"\(layer -1\)\.$"
    )
    for action in (detector.score_samples, detector.calibrate):
        with pytest.raises(InputError, match=sentence):
            action(other)


def test_aux_is_refused_where_it_is_not_used(new, method, train, aux):
    if new().aux == "unused":
        sentence = f"^{method} learns from in-distribution data alone and takes no AUX sequences"
        with pytest.raises(InputError, match=sentence):
            new().fit(train, aux)


def test_aux_is_asked_for_where_it_is_required(new, method, train):
    if new().aux == "required":
        sentence = f"^{method} learns what sets ID and AUX sequences apart, and no AUX were given"
        with pytest.raises(InputError, match=sentence):
            new().fit(train)


def test_aux_where_it_is_used(new, train, test_set, aux, stored, looks_at):
    if new().aux == "unused":
        return
    detector = new().fit(train, aux)
    scores = detector.score_samples(test_set)
    assert np.isfinite(scores).all() and scores[:12].mean() > scores[12:].mean()
    assert same_state(new().fit(stored(train), stored(aux, name="aux")), detector)
    assert not same_state(new().fit(train, aux[:20]), detector), "it makes a difference"
    if detector.aux == "optional":  # a method that lives on outliers may ask for more than one
        assert np.isfinite(new().fit(train, aux[:1]).score_samples(test_set)).all()
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
            new().fit(train, wrong)
    if "tokens" in looks_at:
        with pytest.raises(InputError, match=r"^The AUX tokens have D=5, the ID tokens have D=8\.$"):
            new().fit(train, replace(aux, values=aux.values[:, :5]))
    stores = stored(train, ENCODER, "id"), stored(aux, ENCODER | {"layer": 3}, "other")
    with pytest.raises(
        InputError, match=r"^The AUX tokens come from another encoder \(layer 3\) than the ID tokens \(layer -1\)\.$"
    ):
        new().fit(*stores)


NEED_FIT = ("score_samples", "decision_function", "predict", "p_values", "select_ood", "calibrate", "save")
NEED_THRESHOLD = ("decision_function", "predict", "p_values", "select_ood")


@pytest.mark.parametrize("action", NEED_FIT)
def test_nothing_works_before_fit(new, test_set, action):
    with pytest.raises(NotFittedError):
        getattr(new(), action)(test_set)


@pytest.mark.parametrize("action", NEED_FIT)
def test_a_fit_that_fails_leaves_nothing_behind(calibrated, fit, train, test_set, action, monkeypatch):
    def broken(*_):
        raise InputError("no")

    monkeypatch.setattr(type(calibrated), "_fit", broken)
    with pytest.raises(InputError, match=r"^no$"):
        fit(calibrated, train)
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


# saving


def test_every_method_scores_the_same_in_a_new_process(new_detector, fit, train, held_out, test_set, stored, tmp_path):
    program = """
import sys
import numpy as np
import apood
store, *folders = sys.argv[1:]
for folder in folders:
    detector = apood.load(folder)
    np.save(folder + ".npy", detector.decision_function(apood.TokenStore(store)))
"""
    store = stored(test_set)
    detectors = {method: fit(new_detector(method), train).calibrate(held_out, 0.9) for method in METHODS}
    folders = {method: tmp_path / f"saved-{method}" for method in METHODS}
    for method, detector in detectors.items():
        detector.save(folders[method])
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", program, store.folder, *folders.values()], check=True, env=environment)
    for method, detector in detectors.items():
        found = np.load(f"{folders[method]}.npy")
        assert np.array_equal(found, detector.decision_function(store)), method
