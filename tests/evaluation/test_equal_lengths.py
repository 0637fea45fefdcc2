"""Metrics with weights, and weights that give ID and OOD inputs the same lengths."""

import numpy as np
import pytest

from apood.evaluation.metrics import auroc, compute_weighted, fpr95, weigh_lengths
from apood.support.errors import InputError


def random_scores(seed: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    sizes = dice.integers(1, 90, 2)
    if ties:
        return dice.integers(0, 12, sizes[0]).astype(float), dice.integers(-3, 9, sizes[1]).astype(float)
    return dice.normal(1, 1, sizes[0]), dice.normal(0, 1, sizes[1])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_equal_weights_change_nothing(seed: int, ties: bool) -> None:
    id_, ood = random_scores(seed, ties=ties)
    for scale in (1, 0.37):
        found = compute_weighted(id_, ood, np.full((1, len(id_)), scale), np.full((1, len(ood)), scale))
        assert found[:, 0] == pytest.approx([auroc(id_, ood).value, fpr95(id_, ood).value], abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_a_weight_counts_how_often_an_input_occurs(seed: int) -> None:
    id_, ood = random_scores(seed, ties=seed % 2 == 0)
    dice = np.random.default_rng(seed)
    counts = [np.stack([dice.integers(0, 4, len(own)) for _ in range(3)]) for own in (id_, ood)]
    for own in counts:
        own[:, 0] += 1
    found = compute_weighted(id_, ood, *counts)
    for row in range(3):
        repeated = np.repeat(id_, counts[0][row]), np.repeat(ood, counts[1][row])
        assert found[:, row] == pytest.approx([auroc(*repeated).value, fpr95(*repeated).value], abs=1e-12)


def test_infinite_scores_are_ordinary() -> None:
    found = compute_weighted(np.array([0.0, np.inf]), np.array([-np.inf, -np.inf]), np.ones((1, 2)), np.ones((1, 2)))
    assert found[:, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.ones((1, 3)), "must have 2 columns"),
        (np.ones(2), "must have 2 columns"),
        (np.array([[1.0, -1.0]]), "at least 0"),
        (np.zeros((1, 2)), "some above 0"),
    ],
)
def test_bad_weights_are_refused(weights: np.ndarray, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        compute_weighted(np.zeros(2), np.zeros(2), weights, np.ones((1, 2)))


def bins(lengths: np.ndarray) -> np.ndarray:
    return np.floor(4 * np.log2(lengths)).astype(int)


@pytest.mark.parametrize("seed", range(10))
def test_both_sets_have_the_same_lengths_under_the_weights(seed: int) -> None:
    dice = np.random.default_rng(seed)
    id_, ood = dice.integers(1, 100, 400), dice.integers(20, 300, 300)
    weights = weigh_lengths(id_, ood)
    assert weights is not None
    shares = [np.bincount(bins(own), w, minlength=40) for own, w in zip((id_, ood), weights, strict=True)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-12) and shares[0].sum() == pytest.approx(1)
    assert np.all(weights[0] >= 0)
    swapped = weigh_lengths(ood, id_)
    assert swapped is not None and np.array_equal(swapped[0], weights[1]) and np.array_equal(swapped[1], weights[0])


def test_sets_of_the_same_lengths_keep_equal_weights() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    weights = weigh_lengths(lengths, np.repeat(lengths, 2))
    assert weights is not None
    assert weights[0] == pytest.approx(1 / 200) and weights[1] == pytest.approx(1 / 400)


def test_length_alone_is_worth_nothing_at_equal_lengths() -> None:
    """A score that falls with the length separates the sets, but not at equal lengths."""
    dice = np.random.default_rng(0)
    id_, ood = np.exp(dice.normal(3, 0.5, 3000)).astype(int) + 1, np.exp(dice.normal(3.7, 0.5, 3000)).astype(int) + 1
    scores = [-own.astype(float) for own in (id_, ood)]
    weights = weigh_lengths(id_, ood)
    assert weights is not None and auroc(*scores).value > 0.8
    assert compute_weighted(*scores, *(own[None] for own in weights))[0, 0] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("id_", "ood"),
    [
        (np.full(100, 10), np.full(100, 40)),  # no common bin
        (np.full(100, 10), np.r_[np.full(20, 10), np.full(200, 40)]),  # 20 texts of a common length
        (np.zeros(100, int), np.full(100, 10)),  # no tokens at all
        (np.full(100, 10), np.zeros(0, int)),
    ],
)
def test_sets_whose_lengths_hardly_overlap_are_not_compared(id_: np.ndarray, ood: np.ndarray) -> None:
    assert weigh_lengths(id_, ood) is None


def test_a_text_without_tokens_has_no_weight() -> None:
    lengths = np.r_[0, np.full(60, 10)]
    weights = weigh_lengths(lengths, lengths[1:])
    assert weights is not None and weights[0][0] == 0 and weights[0].sum() == pytest.approx(1)
