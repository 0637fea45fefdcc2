"""Standardised mean-pooled vectors of a whole corpus, against numpy."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from sklearn.preprocessing import StandardScaler, normalize

from apood.detectors.shared import mean_pooling
from apood.detectors.shared.mean_pooling import standardize, standardize_by
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

DIM = 8


def means(batch, how):
    """Return the mean-pooled sequences by numpy."""
    sequences = [normalize(z) if how == "tokens" else z for z in (z.double().numpy() for z in batch)]
    pooled = np.stack([z.mean(0) for z in sequences])
    return normalize(pooled) if how == "pooled" else pooled


@pytest.mark.parametrize("how", ["none", "tokens", "pooled"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_equals_scikit_learn(how, offset):
    id_data, aux = correlated_sequences(50, DIM, dtype=torch.float64), correlated_sequences(7, DIM, seed=1, shift=3.0)
    for batch in (id_data, aux):
        batch.values.add_(offset)
    reference = StandardScaler().fit(means(id_data, how))
    vectors, standard = standardize(id_data, how)
    assert vectors.dtype == torch.float32
    np.testing.assert_allclose(standard.mean, reference.mean_, rtol=1e-6)
    np.testing.assert_allclose(standard.scale, reference.scale_, rtol=1e-5)
    np.testing.assert_allclose(vectors, reference.transform(means(id_data, how)), rtol=0, atol=2e-4 if offset else 1e-5)
    outside = standardize_by(standard, aux, how)
    np.testing.assert_allclose(outside, standard.apply(torch.from_numpy(means(aux, how))), rtol=1e-3, atol=1e-3)


def test_it_does_not_depend_on_the_batches(monkeypatch):
    id_data = correlated_sequences(50, DIM)
    expected, standard = standardize(id_data, "none")
    for budget in (1, 17, 100):
        monkeypatch.setattr(mean_pooling, "token_budget", lambda _, budget=budget: budget)
        found, same = standardize(id_data, "none")
        assert torch.equal(found, expected) and all(map(torch.equal, same, standard))


def test_converting_in_parts_changes_nothing_but_rounding(monkeypatch):
    id_data = correlated_sequences(50, DIM)
    expected, _ = standardize(id_data, "none")
    monkeypatch.setattr(mean_pooling, "_ROWS", 7)
    torch.testing.assert_close(standardize(id_data, "none")[0], expected)


def test_a_constant_dimension_stays_small():
    id_data = correlated_sequences(50, DIM)
    id_data.values[:, 3] = 5.0
    vectors, standard = standardize(id_data, "none")
    assert (vectors[:, 3] == 0).all() and standard.scale[3] > 1e-4
    nudged = standard.apply(standard.mean + 1e-6)
    assert nudged.abs().max() < 1e-2, "rounding decides nothing"


@pytest.mark.parametrize("lengths", [[1], [3, 3], [1, 2, 7]])
def test_no_spread_is_refused(lengths):
    same = TokenBatch.from_lengths(torch.full((sum(lengths), DIM), 0.1), lengths)
    for how in ("none", "tokens", "pooled"):
        with pytest.raises(InputError, match="same vector"):
            standardize(same, how)


@pytest.mark.parametrize("budget", [1, 10**6])
def test_what_overflows_is_named_in_either_corpus(monkeypatch, budget):
    monkeypatch.setattr(mean_pooling, "token_budget", lambda _: budget)
    far = TokenBatch.from_lengths(torch.tensor([[0.0], [1.0], [3e38], [-1e39]], dtype=torch.float64), [1, 1, 1, 1])
    with pytest.raises(InputError, match=r"Sequence 3 of the ID data .*float32"):
        standardize(far, "none")
    _, standard = standardize(far[:2], "none")
    with pytest.raises(InputError, match=r"Sequence 2 of the AUX data .*float32"):
        standardize_by(standard, far, "none")
