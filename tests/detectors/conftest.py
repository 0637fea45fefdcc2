"""Fixtures: every registered method with settings that make its fit fast, and the data of the tests."""

import copy
import sys

import pytest
from builders import observed_sequences

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.registry import METHODS, detector_class
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

DIM = 8
SMALL = {
    "ap-ood": {"steps": 20},
    "deep-svdd": {"steps": 40},
    "deep-sad": {"steps": 40},
    "fusion": {"members": [APOOD(steps=20), KNN(), Mahalanobis(normalize="pooled")]},
}  # arguments of a method in the tests of the contract


@pytest.fixture(scope="session")
def new_detector():
    """Return a function that builds a detector from the name of its method."""
    return lambda method, **arguments: detector_class(method)(**SMALL.get(method, {}) | arguments)


@pytest.fixture(scope="session", params=METHODS)
def method(request):
    """Return the name of each registered method in turn."""
    return request.param


@pytest.fixture(scope="session")
def new(method, new_detector):
    """Return a function that builds a detector of the method in turn."""
    return lambda **arguments: new_detector(method, **arguments)


@pytest.fixture(scope="session")
def looks_at(new):
    """Return the names of what the method in turn reads."""
    return sorted(new().requires)


@pytest.fixture(scope="session")
def train():
    return observed_sequences(80, DIM)


@pytest.fixture(scope="session")
def held_out():
    return observed_sequences(60, DIM, seed=1)


@pytest.fixture(scope="session")
def test_set():
    """Return ID sequences, then OOD sequences."""
    inside, outside = (observed_sequences(12, DIM, seed=2, shift=shift) for shift in (0.0, 4.0))
    return type(inside).concatenate([inside, outside])


@pytest.fixture(scope="session")
def aux():
    """Return auxiliary outliers."""
    return observed_sequences(30, DIM, seed=3, shift=4.0)


@pytest.fixture(scope="session")
def fit(aux):
    """Return a function that fits a detector, with auxiliary outliers if it requires them."""
    return lambda detector, tokens: detector.fit(tokens, aux=aux if detector.aux == "required" else None)


@pytest.fixture(scope="session")
def fitted(new, fit, train):
    """Return a fitted detector of the method in turn, which all tests share and none may change."""
    return fit(new(), train)


@pytest.fixture
def calibrated(fitted, held_out):
    """Return a calibrated detector of the method in turn, a new one for each test."""
    return copy.deepcopy(fitted).calibrate(held_out, accept=0.9)


@pytest.fixture
def stored(tmp_path):
    """Return a function that writes a batch to a store of several shards and opens it."""

    def write(batch, encoder=None, name="store"):
        shard_bytes = max(1, batch.values.nbytes // 4)
        options = {"dim": batch.dim, "dtype": batch.dtype, "encoder": encoder, "shard_bytes": shard_bytes}
        with TokenStoreWriter(tmp_path / name, **options) as writer:
            writer.append(batch)
        return TokenStore(tmp_path / name)

    return write


@pytest.fixture
def read_in_small_batches(monkeypatch):
    """Return a function after which the package reads only a few tokens at once."""

    def patch():
        for name, module in sys.modules.items():
            if name.startswith("apood.") and hasattr(module, "token_budget"):
                monkeypatch.setattr(module, "token_budget", lambda _: 17)

    return patch
