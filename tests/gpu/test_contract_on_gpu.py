"""Every registered method gives on a GPU what it gives on the CPU. Run with `pytest -m gpu` where there is one."""

from dataclasses import replace

import numpy as np
import pytest
from builders import observed_sequences

from apood.detectors.contract.artefact import load_detector
from apood.detectors.contract.registry import METHODS, detector_class

pytestmark = pytest.mark.gpu

DIM = 8


@pytest.fixture(scope="module")
def train():
    return observed_sequences(120, DIM)


@pytest.fixture(scope="module")
def test_set():
    inside, outside = (observed_sequences(12, DIM, seed=2, shift=shift) for shift in (0.0, 4.0))
    return type(inside).concatenate([inside, outside])


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    return request.param


def on_gpu(batch):
    """The batch with its tokens and all its channels on the GPU."""
    channels = {name: channel.to("cuda") for name, channel in batch.channels.items()}
    return replace(batch.to("cuda"), channels=channels)


def detector_of(method, device):
    """A detector with its defaults, but for a short training, that computes on `device` where it has the choice."""
    detector = detector_class(method)()
    chosen = {"device": device, "steps": 50}
    return detector.set_params(**{name: value for name, value in chosen.items() if name in detector.get_params()})


def fit_on_cpu(method, tokens, *, move=lambda batch: batch):
    """A detector that computes on the CPU; `move` is applied to the data it is fitted on."""
    detector = detector_of(method, "cpu")
    aux = move(observed_sequences(30, DIM, seed=3, shift=4.0)) if detector.aux == "required" else None
    return detector.fit(move(tokens), aux=aux)


@pytest.fixture(scope="module")
def fitted(method, train):
    return fit_on_cpu(method, train)


def compute_on(detector, device):
    """Moves a fitted detector, and what it is made of."""
    if "device" in detector.get_params(deep=False):
        detector.set_params(device=device)
    for member in getattr(detector, "members_", []):
        compute_on(member, device)
    return detector


def assert_close(found, expected, tolerance):
    """Relative to the largest score: one near 0 is a difference of large numbers."""
    assert found.shape == expected.shape and np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_a_detector_fitted_on_cpu_scores_alike_on_gpu(fitted, test_set):
    expected = fitted.score_samples(test_set)
    try:
        assert_close(compute_on(fitted, "cuda").score_samples(test_set), expected, 1e-4)
        assert_close(fitted.score_samples(on_gpu(test_set)), expected, 1e-4)
    finally:
        compute_on(fitted, "cpu")
    assert np.array_equal(fitted.score_samples(test_set), expected), "and on the CPU again as before"


@pytest.mark.parametrize("move", [lambda batch: batch.to("cuda"), on_gpu], ids=["tokens", "everything"])
def test_data_on_the_gpu_scores_like_data_on_the_cpu(fitted, test_set, move):
    assert_close(fitted.score_samples(move(test_set)), fitted.score_samples(test_set), 1e-5)


def test_a_fit_on_data_on_the_gpu_is_like_one_on_the_cpu(method, fitted, train, test_set):
    again = fit_on_cpu(method, train, move=on_gpu)
    # rounding in the pooled data is amplified by every step of a method that is trained
    assert_close(again.score_samples(test_set), fitted.score_samples(test_set), 2e-2)
    assert_close(again.score_samples(on_gpu(test_set)), again.score_samples(test_set), 1e-4)


def test_a_detector_fitted_on_gpu_is_saved_and_loaded(method, train, test_set, tmp_path):
    if "device" not in detector_class(method)().get_params():
        return
    detector = detector_of(method, "cuda")
    aux = observed_sequences(30, DIM, seed=3, shift=4.0) if detector.aux == "required" else None
    detector.fit(train, aux=aux).calibrate(train, 0.9).save(tmp_path / "detector")
    loaded = load_detector(tmp_path / "detector")
    assert_close(loaded.score_samples(test_set), detector.score_samples(test_set), 1e-6)
    assert_close(compute_on(loaded, "cpu").score_samples(test_set), detector.score_samples(test_set), 1e-4)
