"""Every registered method, small enough to be fitted in a moment, and the data it is fitted on."""

import copy

import pytest
from builders import correlated_sequences

from apood.detectors.registry import METHODS, detector_class
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

DIM = 8
SMALL = {"ap-ood": {"steps": 20}}  # what a method is given in the tests of the contract


@pytest.fixture(scope="session")
def new_detector():
    """Builds a detector by the name of its method."""
    return lambda method, **arguments: detector_class(method)(**SMALL.get(method, {}) | arguments)


@pytest.fixture(scope="session", params=METHODS)
def method(request):
    """The name of every registered method in turn."""
    return request.param


@pytest.fixture(scope="session")
def new(method, new_detector):
    """Builds a detector of the method in turn."""
    return lambda **arguments: new_detector(method, **arguments)


@pytest.fixture(scope="session")
def train():
    return correlated_sequences(80, DIM, lengths=(1, 12))


@pytest.fixture(scope="session")
def held_out():
    return correlated_sequences(60, DIM, seed=1, lengths=(1, 12))


@pytest.fixture(scope="session")
def test_set():
    """ID sequences, then OOD sequences."""
    inside, outside = (correlated_sequences(12, DIM, seed=2, lengths=(1, 12), shift=shift) for shift in (0.0, 4.0))
    return type(inside).concatenate([inside, outside])


@pytest.fixture(scope="session")
def fitted(new, train):
    """A fitted detector of the method in turn, shared by all tests: look, do not touch."""
    return new().fit(train)


@pytest.fixture
def calibrated(fitted, held_out):
    """A calibrated detector of the method in turn, of the test's own."""
    return copy.deepcopy(fitted).calibrate(held_out, accept=0.9)


@pytest.fixture
def stored(tmp_path):
    """Writes a batch to a store of several shards and opens it."""

    def write(batch, encoder=None, name="store"):
        shard_bytes = max(1, batch.values.nbytes // 4)
        options = {"dim": batch.dim, "dtype": batch.dtype, "encoder": encoder, "shard_bytes": shard_bytes}
        with TokenStoreWriter(tmp_path / name, **options) as writer:
            writer.append(batch)
        return TokenStore(tmp_path / name)

    return write
