"""The alarms that the drift alarm is compared with do what they are said to do."""

import numpy as np
import pytest

from benchmarks.drift_rivals import (
    CLEAN,
    NEVER,
    SHIFT,
    confidence_band,
    cusum_path,
    ks_every_window,
    rank_among_all_before,
    simple_jumper,
)

RNG = np.random.default_rng(0)


class Halves:
    """Draws that are always one half."""

    def random(self, count):
        return np.full(count, 0.5)


def test_p_values_against_a_growing_set_count_all_before():
    calibration, stream = RNG.normal(size=20), RNG.normal(size=1100)
    found = rank_among_all_before(calibration, stream, Halves())
    for place in (0, 3, 499, 500, 1099):
        before = np.concatenate([calibration, stream[:place]])
        assert found[place] == pytest.approx(((before < stream[place]).sum() + 0.5) / (len(before) + 1))


def test_the_jumper_is_quiet_on_uniform_p_values_and_finds_low_ones():
    alarms = [simple_jumper(np.random.default_rng(seed).random(2000), 0.05) != NEVER for seed in range(100)]
    assert np.mean(alarms) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    assert simple_jumper(np.full(200, 0.05), 0.01) < 50


def test_the_cusum_is_the_largest_sum_of_log_ratios_of_an_end():
    stream = RNG.normal(size=50)
    ratio = np.log(0.9 + 0.1 * np.exp(-SHIFT * stream - SHIFT**2 / 2))
    naive = [max(0.0, *(ratio[start : end + 1].sum() for start in range(end + 1))) for end in range(50)]
    np.testing.assert_allclose(cusum_path(stream), naive, atol=1e-12)


@pytest.mark.parametrize("alarm", [confidence_band, ks_every_window])
def test_a_great_drift_is_found(alarm):
    calibration = RNG.normal(size=500)
    assert alarm(calibration, RNG.normal(-2, size=2000), 0.01) <= 500
    assert alarm(calibration, RNG.normal(2, size=2000), 0.01) == NEVER


def test_a_window_of_the_ks_test_is_counted_in_inputs():
    calibration = RNG.normal(size=500)
    stream = np.concatenate([RNG.normal(1, size=1000), RNG.normal(-2, size=500)])
    assert ks_every_window(calibration, stream, 0.01) == 1500 < CLEAN
