"""Sinks: every method that pools tokens leaves out first or last tokens that hardly vary."""

import copy

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from comparisons import assert_same_scores

import apood
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.registry import METHODS, detector_class
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.shared.sinks import find_sinks, leave_out
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import copy_to_device

DIM = 8
POOLING = [method for method in METHODS if detector_class(method)().pools_tokens]
ENDS = {"first": (True, False), "last": (False, True), "both": (True, True)}
any_end = pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS.keys())
pooling = pytest.mark.parametrize("method", [*POOLING, "fusion"], indirect=True)


def with_sinks(batch, ends, value=3.0):
    """Return the sequences with constant tokens, one at the beginning and another one at the end."""
    first, last = torch.full((1, DIM), value), torch.linspace(-value, value, DIM)[None]
    return TokenBatch.from_sequences(
        [torch.cat([*[first] * ends[0], z, *[last] * ends[1]]).to(batch.dtype) for z in batch]
    )


@pytest.fixture(scope="module")
def train():
    return correlated_sequences(80, DIM)


@pytest.fixture(scope="module")
def test_set():
    return TokenBatch.concatenate([correlated_sequences(12, DIM, seed=2, shift=shift) for shift in (0.0, 4.0)])


@pytest.fixture(scope="module")
def outliers():
    return correlated_sequences(30, DIM, seed=3, shift=4.0)


@pytest.fixture
def fit_on(new, outliers):
    """Return a function that fits the method in turn on sequences with sinks at some ends."""

    def fit(batch, ends=(False, False)):
        detector = new()
        aux = with_sinks(outliers, ends) if detector.aux == "required" else None
        return detector.fit(with_sinks(batch, ends), aux=aux)

    return fit


def skips(detector):
    """Return which ends a detector, or each member of a fusion, leaves out."""
    own = getattr(detector, "members_", [detector])
    return {(member.skips_first_, member.skips_last_) for member in own}


def test_these_methods_pool():
    assert set(POOLING) == {
        "ap-ood",
        "mahalanobis",
        "knn",
        "mahalanobis-knn",
        "deep-svdd",
        "deep-sad",
        "relative-mahalanobis",
        "binary-logits",
        "trusted",
    }
    assert not KNN(view="summary").pools_tokens
    assert not any(APOOD(recipe=recipe).pools_tokens for recipe in ("paper", "reference"))


@pooling
@any_end
def test_constant_ends_change_no_score(fit_on, train, test_set, ends, tmp_path):
    plain, detector = fit_on(train), fit_on(train, ends)
    assert skips(plain) == {(False, False)} and skips(detector) == {ends}
    given = with_sinks(test_set, ends)
    if isinstance(detector, Fusion):  # its law knows all tokens
        members = zip(plain.members_, detector.members_, strict=True)
        for without, own in members:
            assert_same_scores(own.score_samples(given), without.score_samples(test_set), 1e-4)
    else:
        assert_same_scores(detector.score_samples(given), plain.score_samples(test_set), 1e-4)
    detector.save(tmp_path / "detector")
    loaded = apood.load(tmp_path / "detector")
    assert skips(loaded) == {ends} and np.array_equal(loaded.score_samples(given), detector.score_samples(given))


@pooling
@any_end
def test_it_does_not_matter_what_a_sink_holds(fit_on, train, test_set, ends):
    detector = fit_on(train, ends)
    expected = detector.score_samples(with_sinks(test_set, ends))
    assert np.array_equal(detector.score_samples(with_sinks(test_set, ends, value=-100.0)), expected)
    alone = [float(detector.score_samples([z])[0]) for z in with_sinks(test_set, ends)]
    assert_same_scores(np.array(alone), expected)


@pooling
@any_end
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_is_refused_in_a_sink_too(fit_on, train, test_set, ends, value):
    detector, given = fit_on(train, ends), with_sinks(test_set, ends)
    places = [int(given.offsets[4])] * ends[0] + [int(given.offsets[5]) - 1] * ends[1]
    for place in places:
        bad = TokenBatch(given.values.clone(), given.offsets)
        bad.values[place, 3] = value
        token = place - int(given.offsets[4])
        for batch, number in ((bad, 4), (bad[4:5], 0)):
            with pytest.raises(InputError, match=rf"^Token {token} of sequence {number} in the data to score"):
                detector.score_samples(batch)
        with pytest.raises(InputError, match=r"^Token .* in the ID data is NaN or infinite"):
            fit_on(bad)


@pooling
def test_a_sequence_that_would_be_empty_keeps_a_token(fit_on, train):
    detector = fit_on(train, (True, True))
    one, two, three = (torch.randn(n, DIM, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3))
    scores = detector.score_samples([one, two, three])
    assert np.isfinite(scores).all()
    if not isinstance(detector, Fusion):
        same = detector.score_samples([torch.cat([one, one]), two[1:], three[1:2]])
        np.testing.assert_allclose(scores, same, rtol=1e-5, atol=1e-5)


@pooling
@pytest.mark.parametrize("length", [1, 2])
def test_training_sequences_of_one_or_two_tokens(fit_on, length):
    train = correlated_sequences(60, DIM, lengths=(length, length))
    assert skips(fit_on(train)) == {(False, False)}
    assert np.isfinite(fit_on(train).score_samples(train)).all()
    assert skips(fit_on(train, (True, False))) == {(True, False)}


@any_end
@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_the_other_recipes_leave_nothing_out(train, ends):
    for recipe in ("paper", "reference"):
        detector = APOOD(recipe=recipe, steps=2).fit(with_sinks(train, ends))
        assert skips(detector) == {(False, False)}


def test_a_second_fit_forgets_the_sinks(train):
    detector = KNN().fit(with_sinks(train, (True, True)))
    assert skips(detector) == {(True, True)} and skips(detector.fit(train)) == {(False, False)}


def test_an_old_detector_that_knows_no_sinks_leaves_nothing_out(train, test_set):
    detector = KNN().fit(train)
    old = copy.deepcopy(detector)
    del old.skips_first_, old.skips_last_
    assert np.array_equal(old.score_samples(test_set), detector.score_samples(test_set))


@any_end
def test_contributions_of_sinks_are_zero_and_the_others_sum_to_the_distance(train, test_set, ends):
    detector, given = APOOD(steps=5).fit(with_sinks(train, ends)), with_sinks(test_set, ends)
    contributions = detector.token_contributions(given)
    assert torch.equal(contributions.offsets, given.offsets)
    for part in contributions:
        assert (part[: int(ends[0])] == 0).all() and (part[len(part) - int(ends[1]) :] == 0).all()
    distances = float(detector.log_norms_.sum()) - detector.score_samples(given)
    np.testing.assert_allclose([float(part.sum()) for part in contributions], distances, rtol=1e-4, atol=1e-4)


@any_end
def test_a_resident_source_is_trimmed_like_any_other(train, ends):
    given = with_sinks(train, ends)
    (resident,) = copy_to_device([given], torch.device("cpu"))
    found, expected = (leave_out(find_sinks(source), source) for source in (resident, given))
    assert torch.equal(found.lengths, train.lengths) and torch.equal(expected.lengths, train.lengths)
    whole = slice(None)
    assert torch.equal(found.select(whole).values, train.values)
    assert torch.equal(expected.select(whole).values, train.values)
