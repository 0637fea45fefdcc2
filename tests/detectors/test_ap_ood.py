"""AP-OOD: its start, its training, its scores and its token contributions."""

import copy

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_tokens
from comparisons import with_parameters
from sklearn.exceptions import NotFittedError

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import prepare_start, resolve
from apood.detectors.ap_ood.training import pool_corpus, squared_distances
from apood.detectors.contract.artefact import load_detector
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.shared.mean_pooling import compute_moments, pool_means
from apood.detectors.shared.sinks import find_sinks
from apood.evaluation.metrics import auroc
from apood.pooling import Preprocessing, attention_pool, compute_prototype
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

DIM = 8
CPU = torch.device("cpu")

any_fit = pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")


def generator():
    return torch.Generator().manual_seed(0)


def moved(batch, factor=1.0, offset=0.0):
    return TokenBatch(batch.values * factor + offset, batch.offsets)


def length_factors(detector, batch):
    """Return the factors by which the length law corrects distances."""
    return (-detector.length_law_.compute_allowances(batch.lengths)[:, 0]).exp()


@pytest.fixture(scope="module")
def detector(train):
    return APOOD(steps=20).fit(train)


# The start.


@pytest.mark.parametrize("normalize", ["none", "tokens"])
def test_the_robust_start_is_the_mahalanobis_distance(train, test_set, normalize):
    recipe = resolve("robust", queries=1, beta=0.0, unit_tokens=normalize == "tokens")
    start = prepare_start(train, recipe, generator(), CPU)
    queries = start.queries(start.weights)
    mu = pool_corpus(train, queries, 0.0, recipe, start).mean
    distances = squared_distances(attention_pool(test_set, queries, 0.0, "dot", start.preprocessing), mu).sum(1)
    _, mean, covariance = compute_moments(train, normalize)
    share = 0.1 * DIM / (len(train) + DIM)  # of the mean variance: less with more sequences
    shrunk = (1 - share) * covariance + share * covariance.diagonal().mean() * torch.eye(DIM).double()
    centred = pool_means(test_set, normalize) - mean
    np.testing.assert_allclose(distances, (centred @ shrunk.inverse() * centred).sum(1), rtol=1e-4)
    unshrunk = -Mahalanobis(normalize=normalize).fit(train).score_samples(test_set)
    np.testing.assert_allclose(distances, unshrunk, rtol=0.2)


def test_the_papers_start_is_standard_normal(train):
    start = prepare_start(train, resolve("paper", heads=500), generator(), CPU)
    assert start.preprocessing.origin is None and not start.preprocessing.unit and start.whitening is None
    assert start.beta == pytest.approx(DIM**-0.5)
    assert float(start.weights.mean()) == pytest.approx(0, abs=0.05)
    assert float(start.weights.std()) == pytest.approx(1, abs=0.05)


def test_a_euclidean_start_is_at_tokens(train):
    start = prepare_start(train, resolve("robust", similarity="euclidean"), generator(), CPU)
    tokens = start.preprocessing.apply(train.values)
    gaps = (start.weights.flatten(0, 1)[:, None] - tokens).abs().amax(2).amin(1)
    assert start.whitening is None and float(gaps.max()) < 1e-6


@pytest.mark.parametrize("sharpness", [0.7, 3.0])
def test_the_sharpness_is_the_spread_of_the_logits(train, sharpness):
    for factor in (1.0, 1000.0):
        source = moved(train, factor)
        start = prepare_start(source, resolve("robust", unit_tokens=False, sharpness=sharpness), generator(), CPU)
        z = start.preprocessing.apply(source.values)
        logits = start.beta * torch.einsum("sd,mtd->mts", z, start.queries(start.weights))
        assert float(logits.std()) == pytest.approx(sharpness, rel=1e-3)


def test_the_robust_recipe_ignores_scale_and_offset(train, test_set):
    """Scores of rescaled and shifted data are the same, without tuning."""
    robust = APOOD(steps=20, normalize="none")
    expected = copy.deepcopy(robust).fit(train).score_samples(test_set)
    for factor, offset in ((100.0, 0.0), (1.0, 30.0)):
        found = robust.fit(moved(train, factor, offset)).score_samples(moved(test_set, factor, offset))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@any_fit
def test_one_sequence_is_too_few_for_the_robust_recipe(train):
    with pytest.raises(InputError, match="same vector"):
        APOOD().fit(train[:1])
    APOOD(recipe="paper", steps=2).fit(train[:1])


# Sinks.


def with_first_token(batch, first):
    return TokenBatch.from_sequences([torch.cat([first[None] + 0 * z[:1], z]) for z in batch])


def test_a_constant_first_token_is_found_and_skipped(train, test_set):
    sink = torch.full((DIM,), 20.0)
    detector = APOOD(steps=20).fit(with_first_token(train, sink))
    assert detector.skips_first_
    scores = detector.score_samples(with_first_token(test_set, sink))
    np.testing.assert_array_equal(detector.score_samples(with_first_token(test_set, -5 * sink)), scores)
    assert np.isfinite(detector.score_samples([sink[None]])).all(), "a sequence of one token keeps it"


def test_a_sink_is_a_first_or_last_token_that_hardly_varies(train):
    noise = 0.02 * torch.randn(len(train), DIM, generator=generator())
    ends = [(torch.ones(1, DIM) + n, z) for n, z in zip(noise, train, strict=True)]
    assert find_sinks(TokenBatch.from_sequences([torch.cat([end, z]) for end, z in ends])) == (True, False)
    assert find_sinks(TokenBatch.from_sequences([torch.cat([z, end]) for end, z in ends])) == (False, True)
    assert find_sinks(TokenBatch.from_sequences([torch.cat([end, z, -end]) for end, z in ends])) == (True, True)
    assert find_sinks(train) == (False, False)


def test_tokens_that_all_have_their_places_are_no_sinks():
    """In pairs of two kinds of tokens, each kind hardly varies, and yet both say something."""
    pairs = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]) + 0.1 * torch.randn(100, 2, 2, generator=generator())
    assert not any(find_sinks(TokenBatch.from_padded(pairs)))


@pytest.mark.parametrize("length", [1, 2])
def test_a_token_is_no_sink_if_nothing_would_be_left(length):
    constant = TokenBatch.from_padded(torch.ones(20, length, DIM))
    constant.values[:] += torch.randn(1, DIM, generator=generator())
    assert not all(find_sinks(constant))


def test_the_length_of_a_sink_may_vary(train):
    sizes = torch.rand(len(train), 1, generator=generator()) * 100 + 1
    scaled = [torch.cat([size * torch.ones(1, DIM), z]) for size, z in zip(sizes, train, strict=True)]
    assert find_sinks(TokenBatch.from_sequences(scaled)) == (True, False)


@pytest.mark.parametrize(("share", "expected"), [(0.09, True), (0.11, False)])
def test_a_sink_varies_less_than_a_tenth_as_much_as_the_other_tokens(share, expected):
    batch = correlated_sequences(200, DIM, lengths=(8, 8))
    unit = torch.nn.functional.normalize
    first, centre = batch.offsets[:-1], unit(torch.ones(DIM), dim=0)
    directions = unit(batch.values[first], dim=1)
    low, high = 0.0, 1.0
    for _ in range(40):  # how much of another direction a constant one needs to vary that much
        mixed = (low + high) / 2
        batch.values[first] = unit(centre + mixed * directions, dim=1)
        z = unit(batch.values, dim=1)
        others = z[torch.arange(len(z)) % 8 > 0].var(0).sum()
        low, high = (mixed, high) if z[first].var(0).sum() < share * others else (low, mixed)
    assert find_sinks(batch).first is expected


@any_fit
def test_the_paper_skips_nothing(train):
    assert not APOOD(recipe="paper", steps=2).fit(with_first_token(train, torch.ones(DIM))).skips_first_


# The learnt attributes.


@any_fit
@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("recipe", ["robust", "paper"])
def test_the_score_is_the_formula_of_what_is_learnt(train, test_set, recipe, similarity):
    detector = APOOD(recipe=recipe, similarity=similarity, steps=15, queries=2, score="sum").fit(train)
    preprocessing = Preprocessing(recipe == "robust", detector.origin_ if recipe == "robust" else None)
    corpus, pooled = (
        attention_pool(batch, detector.queries_, detector.beta_, similarity, preprocessing)
        for batch in (train, test_set)
    )
    mu = corpus.value.mean(0) if recipe == "robust" else compute_prototype(corpus)
    torch.testing.assert_close(detector.prototype_, mu, rtol=1e-4, atol=1e-5)
    each = detector.log_norms_ - squared_distances(pooled, detector.prototype_)
    factors = length_factors(detector, test_set)
    assert (recipe == "paper") == bool((factors == 1).all())
    total = detector.log_norms_.sum()
    scores = detector.score_samples(test_set)
    np.testing.assert_allclose(scores, total - factors * (total - each.sum(1)), rtol=1e-4, atol=1e-4)
    least = detector.log_norms_.amin()
    lowest = with_parameters(detector, score="min").score_samples(test_set)
    np.testing.assert_allclose(lowest, least - factors * (least - each.amin(1)), rtol=1e-4, atol=1e-4)
    on_train = squared_distances(corpus, detector.prototype_).mean()
    assert detector.mean_distance_ == pytest.approx(float(on_train), rel=1e-3)


def test_training_lowers_the_loss(train):
    def loss(detector):
        z = attention_pool(train, detector.queries_, detector.beta_, "dot", Preprocessing(True, detector.origin_))
        flat = detector.queries_.flatten(1).double()
        return float(squared_distances(z).mean(0).sum() - torch.linalg.slogdet(flat @ flat.T).logabsdet)

    before, after = (loss(APOOD(steps=steps, learning_rate=0.003).fit(train)) for steps in (1, 60))
    assert after < before - 0.1


@any_fit
def test_the_score_of_one_head_is_its_own_minimum(train, test_set):
    detector = APOOD(heads=1, steps=5, score="sum").fit(train)
    total = detector.score_samples(test_set)
    assert np.array_equal(with_parameters(detector, score="min").score_samples(test_set), total)


def test_the_cache_of_scoring_follows_the_learnt_attributes(train, test_set, tmp_path):
    detector = APOOD(steps=5).fit(train)
    before = detector.score_samples(test_set)
    moved = copy.deepcopy(detector)
    moved.prototype_ = detector.prototype_ + 1
    assert not np.allclose(moved.score_samples(test_set), before)
    np.testing.assert_array_equal(detector.score_samples(test_set), before)
    detector.save(tmp_path / "detector")
    np.testing.assert_array_equal(load_detector(tmp_path / "detector").score_samples(test_set), before)
    other = with_parameters(detector, similarity="euclidean", score="min").score_samples(test_set)
    assert not np.allclose(other, before)
    again = detector.set_params(similarity="dot", score="sum", seed=1).fit(train)
    assert not np.array_equal(again.score_samples(test_set), before)


def toy(centres, count, seed):
    """Return the paper's toy data: pairs of tokens in the plane, in either order."""
    noise = torch.randn(count, 2, 2, generator=torch.Generator().manual_seed(seed))
    pairs = torch.tensor(centres) + 0.1 * noise
    pairs[::2] = pairs[::2].flip(1)
    return TokenBatch.from_padded(pairs)


def test_attention_finds_what_averaging_hides():
    inside, outside = ((1.0, 1.0), (-1.0, -1.0)), ((-1.0, 1.0), (1.0, -1.0))
    train, test_in, test_out = toy(inside, 300, 0), toy(inside, 100, 1), toy(outside, 100, 2)

    def quality(detector):
        return auroc(detector.score_samples(test_in), detector.score_samples(test_out)).value

    single = APOOD(heads=1, queries=1, beta=12.0, similarity="euclidean", recipe="paper", steps=200, seed=1)
    robust = APOOD(heads=2, queries=1, similarity="euclidean", normalize="none", steps=100, learning_rate=0.03)
    assert quality(Mahalanobis().fit(train)) < 0.6
    assert quality(single.fit(train)) > 0.99
    assert quality(robust.fit(train)) > 0.95


# Auxiliary outliers.


def test_more_outliers_do_not_hurt():
    counts = (0, 1, 8, 64, 150)  # the last more than there are ID sequences

    def qualities(seed):
        inside = [correlated_sequences(count, DIM, seed=10 * seed + i) for i, count in enumerate((100, 150))]
        outside = [correlated_sequences(150, DIM, seed=10 * seed + i, shift=1.5) for i in (2, 3)]
        for count in counts:
            aux = outside[0][:count] if count else None
            detector = APOOD(steps=20, learning_rate=0.01, seed=seed).fit(inside[0], aux=aux)
            yield auroc(detector.score_samples(inside[1]), detector.score_samples(outside[1])).value

    mean = np.mean([list(qualities(seed)) for seed in range(4)], axis=0)
    assert (np.diff(mean) > -0.01).all(), mean
    assert mean[-1] > mean[0] + 0.02, mean


@any_fit
@pytest.mark.parametrize("count", [1, 100])
def test_outliers_by_the_papers_recipe(train, count):
    aux = correlated_sequences(count, DIM, seed=3, shift=4.0)
    detector = APOOD(recipe="paper", steps=10).fit(train, aux=aux)
    assert np.isfinite(detector.score_samples(train)).all()


def test_outliers_of_no_weight_change_nothing(train, test_set):
    aux = correlated_sequences(10, DIM, seed=3, shift=4.0)
    alone, beside = APOOD(steps=10).fit(train), APOOD(steps=10, aux_weight=0.0).fit(train, aux=aux)
    np.testing.assert_allclose(beside.score_samples(test_set), alone.score_samples(test_set), rtol=1e-4, atol=1e-4)


# Contributions of tokens.


@any_fit
@pytest.mark.parametrize(("similarity", "score"), [("dot", "sum"), ("euclidean", "sum"), ("dot", "student")])
def test_contributions_of_tokens_sum_to_the_distance(train, test_set, similarity, score):
    detector = APOOD(steps=10, similarity=similarity, score=score).fit(train)
    contributions = detector.token_contributions(test_set)
    assert torch.equal(contributions.offsets, test_set.offsets)
    sums = torch.stack([part.sum() for part in contributions])
    distances = float(detector.log_norms_.sum()) - detector.score_samples(test_set)
    np.testing.assert_allclose(sums, distances, rtol=1e-4, atol=1e-4)


def test_the_student_score_is_the_definition_and_at_least_the_sum(train, test_set):
    detector = APOOD(steps=10).fit(train)
    student = detector.score_samples(test_set)
    total = with_parameters(detector, score="sum").score_samples(test_set)
    assert np.array_equal(with_parameters(detector, score="student").score_samples(test_set), student)
    preprocessing = Preprocessing(detector.unit_tokens_, detector.origin_)
    pooled = attention_pool(test_set, detector.queries_, detector.beta_, preprocessing=preprocessing)
    squares = (pooled.value - detector.prototype_).square().double()
    distances = length_factors(detector, test_set) * (3 * (squares / 3).log1p()).sum(1)
    expected = float(detector.log_norms_.sum()) - distances
    np.testing.assert_allclose(student, expected, rtol=1e-5)
    assert (student >= total - 1e-4).all()


@any_fit
def test_a_long_sequence_is_compared_with_long_ones():
    """The squared distance of the mean of S independent tokens falls as 1 / S; the law corrects for this."""
    sequences = [torch.randn(2 ** (1 + i % 6), DIM, generator=torch.Generator().manual_seed(i)) for i in range(600)]
    ordinary = TokenBatch.from_sequences(sequences[300:])
    robust = APOOD(steps=5, queries=1, beta=0.0, normalize="none", score="sum").fit(sequences[:300])
    allowances = robust.length_law_.compute_allowances(torch.tensor([2, 64, 640]))[:, 0].diff()
    assert float(allowances[0] / np.log(32)) == pytest.approx(-1, abs=0.2)
    assert float(allowances[1] / np.log(10)) == pytest.approx(-1, abs=0.3), "and so on beyond the longest"
    distances = torch.from_numpy(float(robust.log_norms_.sum()) - robust.score_samples(ordinary))
    by_length = [float(distances[ordinary.lengths == n].log().mean()) for n in (2, 4, 8, 16, 32, 64)]
    # the prior of 40 beside 300 sequences leaves an eighth of log 32 = 3.5
    assert max(by_length) - min(by_length) < 0.8, "length hardly tells any longer"


def test_a_foreign_token_contributes_most(train):
    detector = APOOD(steps=20, queries=1, normalize="none").fit(train)
    sequences = list(correlated_sequences(20, DIM, seed=7, lengths=(6, 6)))
    for i, z in enumerate(sequences):
        z[i % 6] += 12 * torch.sign(z[i % 6])
    contributions = detector.token_contributions(sequences)
    found = [int(part.argmax()) == i % 6 for i, part in enumerate(contributions)]
    assert sum(found) >= 18


def test_a_skipped_token_contributes_nothing(train, test_set):
    sink = torch.full((DIM,), 20.0)
    detector = APOOD(steps=20).fit(with_first_token(train, sink))
    batch = with_first_token(test_set, sink)
    contributions = detector.token_contributions(batch)
    assert (contributions.values[batch.offsets[:-1]] == 0).all()
    distances = float(detector.log_norms_.sum()) - detector.score_samples(batch)
    np.testing.assert_allclose([float(part.sum()) for part in contributions], distances, rtol=1e-4, atol=1e-4)


def test_contributions_are_refused_like_scores(detector):
    with pytest.raises(NotFittedError):
        APOOD().token_contributions([torch.zeros(2, DIM)])
    with pytest.raises(InputError, match=r"D=5, .*ap-ood .*D=8"):
        detector.token_contributions(random_tokens([3], 5))
    empty = detector.token_contributions(TokenBatch.from_lengths(torch.zeros(2, DIM), [0, 2, 0]))
    assert empty.lengths.tolist() == [0, 2, 0]
