"""Neighbours: averages, training sequences among the others, near copies, and the view `summary`."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from comparisons import assert_same_scores
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

import apood
from apood.detectors import knn
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.support.errors import DataWarning, InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import Subset

DIM = 8


def means(batch):
    return normalize(np.stack([z.double().numpy().mean(0) for z in batch]))


def near_copies(batch, share, times=1):
    """Return the sequences and near copies of a share of them."""
    generator = torch.Generator().manual_seed(1)
    part = batch.select(slice(round(share * len(batch))))
    noise = [1e-3 * torch.randn(part.values.shape, generator=generator) for _ in range(times)]
    return TokenBatch.concatenate([batch, *[TokenBatch(part.values + own, part.offsets) for own in noise]])


# Averages.


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 10**6))
def test_the_average_is_over_the_nearest_ones(count, k, seed):
    train, test = (correlated_sequences(n, DIM, seed=seed + i) for i, n in enumerate((count, 5)))
    k = min(k, count)
    distances, _ = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(means(train)).kneighbors(means(test))
    for average, expected in ((True, distances.mean(1)), (False, distances[:, -1])):
        detector = KNN(k=k, average=average).fit(train)
        assume(not detector.skips_first_ and not detector.skips_last_)  # a few sequences may begin alike by chance
        found = detector.score_samples(test)
        np.testing.assert_allclose(found, -expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [8, 64, 1000])
def test_averages_do_not_depend_on_the_tiles(train, test_set, monkeypatch, chunk):
    detector = KNN(k=7, average=True).fit(train)
    expected, known = detector.score_samples(test_set), detector.score_training(torch.arange(len(train)))
    monkeypatch.setattr(knn, "_CHUNK", chunk)
    np.testing.assert_allclose(detector.score_samples(test_set), expected, rtol=1e-9)
    found = detector.score_training(torch.arange(len(train)))
    np.testing.assert_allclose(found.scores, known.scores, rtol=1e-9)
    assert torch.equal(found.copied, known.copied)


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_average_is_true_or_false(train, wrong):
    with pytest.raises(InputError, match=rf"^average must be True or False, got {wrong!r}\.$"):
        KNN(average=wrong).fit(train)


# Training sequences among the others.


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("k", [1, 3, 39])
def test_left_out_is_as_if_it_had_never_been_there(k, average):
    train = correlated_sequences(40, DIM)
    found = KNN(k=k, average=average).fit(train).score_training(torch.tensor([7, 0, 39]))
    assert not found.copied.any() and found.scores.dtype == torch.float64
    for place, number in enumerate((7, 0, 39)):
        others = Subset(train, [i for i in range(40) if i != number])
        expected = KNN(k=k, average=average).fit(others).score_samples(train.select([number]))
        assert float(found.scores[place]) == pytest.approx(float(expected[0]), rel=1e-5)


@given(st.integers(2, 100), st.integers(1, 100), st.booleans(), st.integers(0, 10**6))
def test_left_out_by_brute_force(count, k, average, seed):
    """A near copy is nearer than a tenth of the distance to the 32nd nearest, or to that in the middle."""
    train = correlated_sequences(count, 3, seed=seed)  # of few dimensions, so that some are near
    detector = KNN(k=min(k, count), average=average, normalize="none").fit(train)
    assume(not detector.skips_first_ and not detector.skips_last_)  # two sequences may begin alike by chance
    x = np.stack([z.double().numpy().mean(0) for z in train])
    found = detector.score_training(torch.arange(count))
    crowd, wanted = max(1, min(32, (count - 1) // 2)), min(detector.k, count - 1)
    for number in range(count):
        distances = np.sort(np.linalg.norm(np.delete(x, number, 0) - x[number], axis=1))
        rest = distances[distances > 0.1 * distances[crowd - 1]]
        assert bool(found.copied[number]) == (len(rest) < count - 1)
        expected = 0.0 if len(rest) < wanted else rest[:wanted].mean() if average else rest[wanted - 1]
        assert -float(found.scores[number]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("count", "dim", "shrinkage"), [(60, 8, 0.1), (60, 8, 0.5), (40, 8, 0.0), (60, 40, 0.1)])
def test_a_metric_without_the_sequence_itself(count, dim, shrinkage):
    train = correlated_sequences(count, dim)
    settings = {"k": 3, "average": True, "shrinkage": shrinkage}
    found = MahalanobisKNN(**settings).fit(train).score_training(torch.arange(count)).scores
    expected = [
        MahalanobisKNN(**settings)
        .fit(Subset(train, [j for j in range(count) if j != i]))
        .score_samples(train.select([i]))[0]
        for i in range(count)
    ]
    np.testing.assert_allclose(found, expected, rtol=0.05)
    np.testing.assert_allclose(found.negative().log().std(correction=0), np.log(np.negative(expected)).std(), rtol=0.1)


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
@pytest.mark.parametrize(("count", "dim"), [(60, 128), (100, 64), (300, 16)])
@pytest.mark.parametrize("kind", [KNN, MahalanobisKNN])
def test_training_sequences_are_as_far_as_new_ones(kind, count, dim):
    """Also with fewer sequences than dimensions, where each has made the metric wide along itself."""
    train, new = (correlated_sequences(n, dim, seed=n, lengths=(4, 8)) for n in (count, 400))
    detector = kind(k=3, average=True).fit(train)
    own = detector.log_distances(detector.score_training(torch.arange(count)).scores)
    others = detector.log_distances(torch.from_numpy(detector.score_samples(new)))
    assert float(own.mean() - others.mean()) == pytest.approx(0, abs=0.4 * float(others.std()))
    assert float(own.std() / others.std()) == pytest.approx(1, abs=0.25)


# Near copies.


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("times", [1, 4])
def test_near_copies_do_not_count_as_neighbours(times, average):
    """Of 100 sequences, 30 are there again, slightly changed: those 30 and their copies are near copies."""
    corpus = correlated_sequences(100, DIM, lengths=(4, 8))
    detector = KNN(k=1, average=average).fit(near_copies(corpus, 0.3, times))
    found = detector.score_training(torch.arange(len(detector.bank_)))
    assert found.copied.tolist() == [True] * 30 + [False] * 70 + [True] * 30 * times
    plain = KNN(k=1, average=average).fit(corpus).score_training(torch.arange(100)).scores
    np.testing.assert_allclose(found.scores[:100], plain, atol=0.01)


def test_exact_copies_of_one_sequence_leave_the_others_alone():
    corpus = correlated_sequences(50, DIM, lengths=(4, 8))
    detector = KNN(k=3, average=True).fit(TokenBatch.concatenate([corpus, *[corpus[:1]] * 200]))
    found = detector.score_training(torch.arange(50))
    assert found.copied.tolist() == [True] + [False] * 49 and found.scores[0] == 0
    assert found.scores[1:].max() < -0.05


def test_sequences_of_a_tight_cluster_are_no_copies():
    """Sequences of one kind may be far nearer to each other than to those of other kinds."""
    generator = torch.Generator().manual_seed(0)
    topics = 100 * torch.randn(5, DIM, generator=generator)
    train = [topics[i % 5] + torch.randn(6, DIM, generator=generator) for i in range(300)]
    found = KNN(k=3, average=True, normalize="none").fit(train).score_training(torch.arange(300))
    assert not found.copied.any() and found.scores.min() > -10


# The view `summary`.


def with_summary(batch, seed=0, dim=12, shift=0.0, rows=1):
    """Return the sequences with random summaries, which `shift` moves to another direction."""
    values = torch.randn(rows * len(batch), dim, generator=torch.Generator().manual_seed(seed))
    values += torch.linspace(-2, 2, dim) + shift
    return TokenBatch(
        batch.values, batch.offsets, channels={"summary": Ragged.from_lengths(values, [rows] * len(batch))}
    )


@pytest.fixture(scope="module")
def summarised():
    return with_summary(correlated_sequences(60, DIM))


@pytest.mark.parametrize("how", ["none", "tokens", "pooled"])
def test_the_summary_is_compared_instead_of_the_tokens(summarised, how, tmp_path):
    detector = KNN(k=2, normalize=how, view="summary").fit(summarised)
    assert detector.requires == {"summary"}
    test = with_summary(correlated_sequences(10, DIM, seed=1), seed=1)
    x, y = (batch.channels["summary"].values.double().numpy() for batch in (summarised, test))
    if how != "none":
        x, y = normalize(x), normalize(y)
    distances, _ = NearestNeighbors(n_neighbors=2).fit(x).kneighbors(y)
    scores = detector.score_samples(test)
    np.testing.assert_allclose(scores, -distances[:, 1], rtol=1e-5)
    other_tokens = with_summary(correlated_sequences(10, DIM, seed=2, shift=9.0), seed=1)
    assert np.array_equal(detector.score_samples(other_tokens), scores)
    detector.calibrate(with_summary(correlated_sequences(40, DIM, seed=3), seed=3)).save(tmp_path / "detector")
    loaded = apood.load(tmp_path / "detector")
    assert loaded.view == "summary" and np.array_equal(loaded.score_samples(test), scores)
    assert_same_scores(np.array([loaded.score_samples(test[i : i + 1])[0] for i in range(10)]), scores)


def test_a_summary_needs_no_tokens(summarised, tmp_path):
    alone = TokenBatch.without_tokens(**summarised.channels)
    detector = KNN(view="summary").fit(alone)
    detector.save(tmp_path / "detector")
    for found in (detector, apood.load(tmp_path / "detector")):
        assert np.array_equal(found.score_samples(alone), KNN(view="summary").fit(summarised).score_samples(summarised))


def test_a_missing_summary_is_named(summarised):
    plain = correlated_sequences(60, DIM)
    with pytest.raises(InputError, match=r"^The method knn needs summary, which the ID data lack; they have tokens\.$"):
        KNN(view="summary").fit(plain)
    with pytest.raises(InputError, match="knn needs summary, which the data to score lack; they have tokens"):
        KNN(view="summary").fit(summarised).score_samples(plain)


def test_several_rows_numbers_and_other_dimensions_are_refused(summarised):
    plain = correlated_sequences(60, DIM)
    detector = KNN(view="summary").fit(summarised)
    two = with_summary(plain, rows=2)
    for action, where in ((detector.score_samples, "the data to score"), (KNN(view="summary").fit, "the ID data")):
        with pytest.raises(InputError, match=f"^Sequence 0 of {where} has several rows of summary; a sequence has one"):
            action(two)
        numbers = TokenBatch(
            plain.values, plain.offsets, channels={"summary": Ragged.from_lengths(torch.ones(60), [1] * 60)}
        )
        with pytest.raises(InputError, match=f"^The summary in {where} must be one vector per sequence"):
            action(numbers)
    with pytest.raises(InputError, match=r"^The summary has 7 numbers, and this detector was fitted on 12\.$"):
        detector.score_samples(with_summary(plain, dim=7))
    assert len(detector.fit(with_summary(plain, dim=7)).centre_) == 7
    bad = with_summary(plain)
    bad.channels["summary"].values[3, 2] = torch.nan
    with pytest.raises(InputError, match=r"^Row 0 of summary of sequence 3 in the ID data is NaN"):
        KNN(view="summary").fit(bad)


def test_a_sequence_without_a_summary_lies_outside(summarised):
    detector = KNN(view="summary").fit(summarised)
    lengths = [1] * 5 + [0] + [1] * 4
    some = Ragged.from_lengths(torch.randn(9, 12, generator=torch.Generator().manual_seed(0)), lengths)
    tokens = correlated_sequences(10, DIM)
    with pytest.warns(DataWarning, match="1 of 10 sequences have no summary"):
        scores = detector.score_samples(TokenBatch(tokens.values, tokens.offsets, channels={"summary": some}))
    assert np.flatnonzero(np.isneginf(scores)).tolist() == [5]


@pytest.mark.parametrize("wrong", ["logits", None, 3])
def test_a_view_that_is_none_is_refused(train, wrong):
    with pytest.raises(InputError, match=r"^view must be one of tokens, summary, got"):
        KNN(view=wrong).fit(train)
